"""`python -m paper NAME`: one of the paper's tables or figures, measured."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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


def paper(
    what: Annotated[Name, typer.Argument(help="Which table or figure.")],
    seeds: Annotated[int | None, typer.Option(min=1, max=100, help="Seeds 0, 1, … [default: 3; quick: 1]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small piece of it: minutes on two cores.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N. In full, a GPU is needed for most.")] = "cpu",
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for tables, pictures and JSON.")] = Path("runs/paper"),
    runs: Annotated[Path | None, typer.Option(help="Folder for recordings (large). [default: OUT/runs]")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Only cells of this data set; may be repeated.")] = None,
) -> None:
    """Measure one of the paper's tables or figures: train, record, fit every method, write Markdown, LaTeX, PNG and JSON.

    Each federation is recorded once and serves every table that asks for it; what is there is not done again, so the same
    command goes on where it stopped. paper/PAPER.md has the paper's figures beside ours.
    """
    from paper import reproduce

    began = time.perf_counter()

    def say(text: str) -> None:
        out.print(f"[dim]{time.perf_counter() - began:7.0f} s[/dim]  {text}", highlight=False)

    page = reproduce(
        what.value, out_dir, runs or out_dir / "runs", range(seeds or (1 if quick else 3)), quick, device, say, data
    )
    out.print(page.read_text(encoding="utf-8"), highlight=False, markup=False)
    out.print(f"written to {page.parent}")


if __name__ == "__main__":
    typer.run(paper)
