"""`fedcal run`: the simulator. Its options are the fields of Config."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape

from fedcal.cli.report import Format, print_results
from fedcal.cli.start import safe, when_stopped
from fedcal.errors import FedCalError
from fedcal.simulate.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator

out = Console()


def run_command(out_dir: Path | None, resume: bool, overwrite: bool, quiet: bool, table: Format, **given: Any) -> None:
    """Train a federation, calibrate it with each given method, measure, and write a run folder.

    [bold]fedcal run --data digits --beta 0.1[/bold] is enough. With your own data file and model:
    [bold]fedcal run --data my.npz --model mymodels:build[/bold] (docs/own-data.md).

    The folder holds config.json, results.json, rounds.jsonl, model.safetensors, one scaler file per method, and report.html.
    """
    from fedcal import report
    from fedcal.base.store import read_json
    from fedcal.cli.own_model import import_model
    from fedcal.cli.progress import RunProgress
    from fedcal.data.own_files import names_a_file
    from fedcal.simulate.runs import run

    if resume and out_dir is None:
        raise FedCalError("--resume needs --out RUN, the folder of the run to continue")
    if resume and out_dir and not out_dir.exists():
        raise FedCalError(f"--resume: there is no folder {out_dir}; check its name, or start the run without --resume")
    options: dict[str, Any] = {name: tuple(v) if name == "method" else v for name, v in given.items() if v is not None}
    data = Path(options.pop("data")) if names_a_file(options.get("data", "")) else None
    model = import_model(options["model"]) if ":" in options.get("model", "") else None
    stored = out_dir / "config.json" if out_dir else None
    if resume and stored and stored.exists():  # what is not said again is as it was
        config = replace(Config.from_dict(read_json(stored), str(stored)), **options)
    else:
        config = Config(**options)
    folder = out_dir or _next_folder(data.stem if data else config.data)
    with (
        when_stopped(lambda: _kept(folder, data, config.model if model else None)),
        RunProgress(out, quiet) as progress,
    ):
        results = run(
            config,
            folder,
            data=data,
            model=model,
            resume=resume,
            overwrite=overwrite,
            on_start=progress.start,
            on_round=progress.round,
            on_stage=progress.stage,
        )
    print_results(report.load(folder).results if not quiet or table != Format.terminal else results, table, quiet)
    if not quiet:
        out.print(f"\nReport: [bold]{safe(folder / 'report.html')}[/bold]", soft_wrap=True)


def _kept(folder: Path, data: Path | None, model: str | None) -> str:
    """What is kept of a run that the user stops, and how to go on: own data and model must be given again."""
    if not (folder / "checkpoint.safetensors").exists():
        return "no round is kept yet: start again with the same command"
    words = ["fedcal", "run", "--resume", "--out", str(folder)]
    words += ["--data", str(data)] if data else []
    words += ["--model", model] if model else []
    return f"finished rounds are kept in {folder}: continue with `{shlex.join(words)}`"


def command_of_config() -> Callable[..., None]:
    """`run_command` with a signature that spells out every field of Config, for typer to read."""

    def command(**given: Any) -> None:
        run_command(**given)

    parameters = [*_options_of_run(), *_options_of_config()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__doc__ = run_command.__doc__
    return command


def _options_of_config() -> Iterator[inspect.Parameter]:
    """One option for each field of Config. The default is None, so that options which the user gave can be recognised."""
    hints = get_type_hints(Config)
    for entry in fields(Config):
        kinds = [k for k in get_args(hints[entry.name]) or (hints[entry.name],) if k is not type(None)]
        kind: Any = str if isinstance(kinds[0], str) else kinds[0]
        text = entry.metadata["help"]
        if entry.name == "method":
            kind = list[str]
        elif entry.default is not None:
            text += f" [default: {str(entry.default).lower() if kind is bool else entry.default}]"
        option = typer.Option(help=escape(text), show_default=False, rich_help_panel=entry.metadata["group"])
        yield _parameter(entry.name, Annotated[kind | None, option], None)


def _options_of_run() -> Iterator[inspect.Parameter]:
    """The options that say where results go, and how they are shown."""
    folder = typer.Option("--out", help=escape("Run folder. [default: runs/DATA-N]"), show_default=False)
    yield _parameter("out_dir", Annotated[Path | None, folder], None)
    flags = {
        "resume": ("--resume", "Continue from the last checkpoint in --out."),
        "overwrite": ("--overwrite", "Replace the run in --out."),
        "quiet": ("--quiet", "Print no progress and no final table."),
    }
    for name, (flag, text) in flags.items():
        words = (flag, "-q") if name == "quiet" else (flag,)
        yield _parameter(name, Annotated[bool, typer.Option(*words, help=text)], False)
    table = typer.Option("--table", help="Format of the final table.")
    yield _parameter("table", Annotated[Format, table], Format.terminal)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _next_folder(data: str) -> Path:
    number = 1
    while (folder := Path("runs") / f"{data}-{number}").exists():
        number += 1
    return folder
