"""`fedcal data`: what data sets there are, and their files."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from fedcal.cli.start import safe
from fedcal.errors import FedCalError

out = Console()
data_app = typer.Typer(help="List data sets, and download or check their files.", no_args_is_help=True)

DataDir = Annotated[
    str | None, typer.Option(help="Folder of the data files (default: FEDCAL_DATA, else the user's cache).")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set (see `fedcal data list`).")]


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """List the data sets, and whether their files are here."""
    from rich.table import Table

    from fedcal.data import DATASETS, files

    table = Table("data set", "what it is", "classes", "model", "files")
    for name, about in DATASETS.items():
        status = files.status(name, data_dir)
        where = "embedded" if about.embedded else "here" if status.present else "missing"
        table.add_row(name, about.summary, str(len(about.classes)), about.model, where)
    out.print(table)
    where = safe(files.folder(data_dir))
    out.print(f"Files are looked for in {where}; get missing ones with: fedcal data fetch NAME", soft_wrap=True)


@data_app.command("fetch")
def data_fetch(name: Name, data_dir: DataDir = None) -> None:
    """Download a data set's files; files that are here and intact are not fetched again."""
    from fedcal.data import files

    fetched = files.fetch(name, data_dir)
    where = safe(files.status(name, data_dir).folder)
    out.print(
        f"{name}: {f'{len(fetched)} files fetched' if fetched else 'nothing to fetch'}; they are in {where}",
        soft_wrap=True,
    )


@data_app.command("verify")
def data_verify(name: Name, data_dir: DataDir = None) -> None:
    """Read a data set's files and check their content."""
    from fedcal.data import files

    findings = files.verify(name, data_dir)
    for finding in findings:
        mark = "[green]ok[/green] " if finding.ok else "[red]bad[/red]"
        out.print(f"{mark} {safe(finding.file)}: {safe(finding.message)}", soft_wrap=True)
    if bad := sum(not finding.ok for finding in findings):
        raise FedCalError(f"{name}: {bad} of {len(findings)} files are missing or damaged: fedcal data fetch {name}")
    out.print(f"{name}: all files are intact")
