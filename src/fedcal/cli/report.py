"""`fedcal report`: a finished run's table and page again."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedcal.cli.start import safe

out = Console()


class Format(StrEnum):
    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"


class FigureFormat(StrEnum):
    png = "png"
    svg = "svg"
    pdf = "pdf"


def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    table: Annotated[Format, typer.Option("--format", "-f", help="Format of the table.")] = Format.terminal,
    figures: Annotated[Path | None, typer.Option(help="Also save every figure into this folder.")] = None,
    kind: Annotated[FigureFormat, typer.Option("--figure-format", help="Format of the figures.")] = FigureFormat.png,
) -> None:
    """Print a run's table, and write its report.html again."""
    from fedcal import report as reporting

    results = reporting.load(run_dir).results
    page = reporting.write(run_dir)
    print_results(results, table, quiet=False)
    if figures is not None:
        for path in reporting.save_all(run_dir, figures, kind):
            out.print(safe(path), soft_wrap=True)
    if table is Format.terminal:
        out.print(f"\nReport: [bold]{safe(page)}[/bold]", soft_wrap=True)


def print_results(results: dict[str, Any], table: Format, quiet: bool) -> None:
    """Print a run's table in the form that was asked for, and in the terminal what it shows, in words.

    Where it is quiet: nothing, unless the table is for another program.
    """
    from fedcal import report as reporting

    if table is Format.markdown:
        print(reporting.markdown(results))
    elif table is Format.latex:
        print(reporting.latex(results))
    elif not quiet:
        out.print(reporting.terminal(results))
        out.print()
        for number, sentence in enumerate(reporting.headline(results)):
            out.print(safe(sentence), style=None if number else "bold", highlight=False)
