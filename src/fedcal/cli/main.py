"""The command line: parse and call. Errors are one line and exit 2; nothing here decides anything."""

from __future__ import annotations

import inspect
import shlex
import sys
from dataclasses import fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedcal import __version__
from fedcal.cli import evaluate_files as cli_evaluate
from fedcal.cli import evaluate_sums as cli_sums
from fedcal.cli import federate as cli_federate
from fedcal.cli import logits as cli_files
from fedcal.cli.start import safe, start, when_stopped
from fedcal.errors import FedCalError
from fedcal.methods import Method
from fedcal.simulate.config import Config

app = typer.Typer(
    help="Calibrated confidence for federated models: globally, and at every client.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Data sets: what there is, and their files.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(cli_sums.server_app, name="server")
app.add_typer(cli_sums.client_app, name="client")
out = Console()


class Format(StrEnum):
    terminal = "terminal"
    markdown = "markdown"
    latex = "latex"


class FigureFormat(StrEnum):
    png = "png"
    svg = "svg"
    pdf = "pdf"


# --- run -----------------------------------------------------------------------------------------------------------


def run_command(out_dir: Path | None, resume: bool, overwrite: bool, quiet: bool, table: Format, **given: Any) -> None:
    """Train a federation, calibrate it with every method asked for, measure, and write a run folder.

    [bold]fedcal run --data digits --beta 0.1[/bold] needs nothing else. The folder holds config.json, results.json,
    rounds.jsonl, model.safetensors, one scaler file per method, and report.html.
    """
    from fedcal import report
    from fedcal.base.store import read_json
    from fedcal.cli.progress import RunProgress
    from fedcal.simulate.runs import run

    if resume and out_dir is None:
        raise FedCalError("--resume needs --out RUN, the folder of the run to go on with")
    if resume and out_dir and not out_dir.exists():
        raise FedCalError(f"--resume: there is no folder {out_dir}; check its name, or start the run without --resume")
    options: dict[str, Any] = {name: tuple(v) if name == "method" else v for name, v in given.items() if v is not None}
    stored = out_dir / "config.json" if out_dir else None
    if resume and stored and stored.exists():  # what is not said again is as it was
        config = replace(Config.from_dict(read_json(stored), str(stored)), **options)
    else:
        config = Config(**options)
    folder = out_dir or _next_folder(config)
    kept = f"finished rounds are kept in {folder}: go on with `fedcal run --resume --out {shlex.quote(str(folder))}`"
    with when_stopped(kept), RunProgress(out, config.rounds, quiet) as progress:
        results = run(
            config,
            folder,
            resume=resume,
            overwrite=overwrite,
            on_start=progress.start,
            on_round=progress.round,
        )
    _print_table(report.load(folder).results if not quiet or table != Format.terminal else results, table, quiet)
    if not quiet:
        out.print(f"\nReport: [bold]{safe(folder / 'report.html')}[/bold]", soft_wrap=True)


def _options_of_config() -> list[inspect.Parameter]:
    """One option for each field of Config. The default is None, so that what the user said can be told apart."""
    hints, parameters = get_type_hints(Config), []
    for entry in fields(Config):
        kinds = [k for k in get_args(hints[entry.name]) or (hints[entry.name],) if k is not type(None)]
        kind: Any = str if isinstance(kinds[0], str) else kinds[0]
        text = entry.metadata["help"]
        if entry.name == "method":
            kind = list[str]
        elif entry.default is not None:
            text += f" [default: {str(entry.default).lower() if kind is bool else entry.default}]"
        option = typer.Option(help=escape(text), show_default=False, rich_help_panel=entry.metadata["group"])
        annotation = Annotated[kind | None, option]
        parameters.append(
            inspect.Parameter(entry.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return parameters


def _command_from_config() -> Any:
    """`run_command` with a signature that spells out every field of Config, for typer to read."""
    fixed = {
        "out_dir": Annotated[
            Path | None, typer.Option("--out", help="Run folder. [default: runs/DATA-N]", show_default=False)
        ],
        "resume": Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")],
        "overwrite": Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")],
        "quiet": Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no closing table.")],
        "table": Annotated[Format, typer.Option("--table", help="Form of the closing table.")],
    }
    defaults = {
        "out_dir": None,
        "resume": False,
        "overwrite": False,
        "quiet": False,
        "table": Format.terminal,
    }

    def command(**given: Any) -> None:
        run_command(**given)

    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=annotation)
        for name, annotation in fixed.items()
    ]
    parameters = [*_options_of_config(), *own]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = run_command.__doc__
    return command


app.command("run")(_command_from_config())
commands = cli_files.calibrate, cli_files.apply, cli_evaluate.evaluate, cli_federate.federate
for command in commands:
    app.command()(command)


def _next_folder(config: Config) -> Path:
    number = 1
    while (folder := Path("runs") / f"{config.data}-{number}").exists():
        number += 1
    return folder


def _print_table(results: dict[str, Any], table: Format, quiet: bool) -> None:
    from fedcal import report

    if table is Format.markdown:
        print(report.markdown(results))
    elif table is Format.latex:
        print(report.latex(results))
    elif not quiet:
        out.print(report.terminal(results))
        for number, sentence in enumerate(report.headline(results)):
            out.print(safe(sentence), style=None if number else "bold", highlight=False)


# --- the other commands ----------------------------------------------------------------------------------------------


@app.command()
def methods(
    spec: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this method's options.", show_default=False)
    ] = None,
) -> None:
    """List the calibration methods: what each does, and what leaves a client. With a NAME: that method's options."""
    from fedcal.errors import counted
    from fedcal.methods import METHODS, get_method

    if spec is not None:
        _print_options(METHODS[get_method(spec).name])
        return
    table = Table("method", "what it is", "what leaves a client", "when")
    for name, method in METHODS.items():
        turns = "rounds until done" if method.additive else counted(method.rounds, "round")
        when = "in every training round" if method.schedule == "interleaved" else f"{turns} on the final model"
        table.add_row(name, method.summary, method.leaves, "–" if name == "uncal" else when)
    out.print(table)
    out.print("Options of a method: fedcal methods NAME")


def _print_options(method: Method) -> None:
    """A registered method's options, one row each."""
    from fedcal.methods.spec import options_offered, value_as_text

    print(f"{method.name}: {method.summary}\nWhat leaves a client: {method.leaves}")
    if not (offered := options_offered(method)):
        print("It has no options.")
        return
    table = Table("option", "values", "default", "what it does")
    for option in offered.values():
        default = value_as_text(getattr(method, option.name))
        table.add_row(option.name, option.expected, default, escape(option.help))
    out.print(table)
    print(f"Give them as --method {method.name}:OPTION=VALUE,OPTION=VALUE")


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    table: Annotated[Format, typer.Option("--format", "-f", help="Form of the table.")] = Format.terminal,
    figures: Annotated[Path | None, typer.Option(help="Also save every figure into this folder.")] = None,
    kind: Annotated[FigureFormat, typer.Option("--figure-format", help="Form of the figures.")] = FigureFormat.png,
) -> None:
    """Print a run's table, and write its report.html again."""
    from fedcal import report as reporting

    results = reporting.load(run_dir).results
    page = reporting.write(run_dir)
    _print_table(results, table, quiet=False)
    if figures is not None:
        for path in reporting.save_all(run_dir, figures, kind):
            out.print(safe(path), soft_wrap=True)
    if table is Format.terminal:
        out.print(f"\nReport: [bold]{safe(page)}[/bold]", soft_wrap=True)


DataDir = Annotated[
    str | None, typer.Option(help="Folder of the data files [env: FEDCAL_DATA; else the user's cache].")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A data set (see `fedcal data list`).")]


@data_app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """What data sets there are, and whether their files are here."""
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
    """Download a data set's files; what is here and whole is not fetched again."""
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
    out.print(f"{name}: all is well")


@app.callback(invoke_without_command=True)
def version_option(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"fedcal {__version__}")
        raise typer.Exit


KEPT = {  # what is kept where the user stops a command, and how to go on; `run` and `federate` say it themselves
    "server": "a round is taken whole or not at all: `fedcal server status DIR` says where it stands",
    "client": "the same command gives the same file",
    "data": "files that are whole are kept, and the same command fetches the rest",
}


def main(arguments: list[str] | None = None) -> None:
    """The entry point: bad input ends in one line on stderr and exit 2, never in a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    start(app, "fedcal", arguments, kept=KEPT.get(words[0] if words else "", "nothing was written"))
