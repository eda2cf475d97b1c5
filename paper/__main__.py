"""`python -m paper NAME`: one of the paper's tables or figures, measured."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedcal.cli.start import start

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out = Console()


class Name(StrEnum):
    table1 = "table1"
    table2 = "table2"
    table3 = "table3"
    figure1 = "figure1"
    figure2 = "figure2"
    figure4 = "figure4"
    figure5 = "figure5"
    theory = "theory"
    ensemble = "ensemble"
    momentum = "momentum"
    head = "head"


@app.command()
def measure(
    what: Annotated[Name, typer.Argument(metavar="NAME", help=f"One of: {', '.join(Name)}.")],
    seeds: Annotated[int | None, typer.Option(min=1, max=100, help="Seeds 0, 1, … \\[default: 3; quick: 1]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Only a small piece of it: minutes on two CPU cores.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; most need a GPU unless --quick is given.")] = "cpu",
    out_dir: Annotated[Path, typer.Option("--out", help="Folder of the results.")] = Path("runs/paper"),
    runs: Annotated[Path | None, typer.Option(help="Folder of the recordings (large). \\[default: OUT/runs]")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Only this data set; may be repeated.")] = None,
) -> None:
    """Measure one of the paper's tables or figures, and write it as Markdown, LaTeX, PNG and JSON.

    Federations are trained and recorded once, and every method is fitted on the recordings. Nothing is done twice: the same
    command goes on where it stopped, and tables share federations. paper/PAPER.md has the paper's figures beside ours.
    """
    from paper import reproduce

    began = time.perf_counter()

    def say(text: str) -> None:
        out.print(f"[dim]{time.perf_counter() - began:7.0f} s[/dim]  {text}", highlight=False)

    page = reproduce(
        what.value, out_dir, runs or out_dir / "runs", range(seeds or (1 if quick else 3)), quick, device, say, data
    )
    out.print(page.read_text(encoding="utf-8"), highlight=False, markup=False, soft_wrap=True)
    out.print(f"written to {page.parent}", highlight=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> None:
    """The entry point."""
    start(app, "python -m paper", arguments, kept="the same command goes on from here")


if __name__ == "__main__":
    main()
