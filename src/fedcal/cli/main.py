"""The table of commands. Errors are one line and exit 2; nothing here decides anything.

Modules of commands import little at their top, so that help needs no PyTorch (tests/cli/test_help.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer

from fedcal import __version__
from fedcal.cli.data import data_app
from fedcal.cli.evaluate_files import evaluate
from fedcal.cli.evaluate_sums import client_app, server_app
from fedcal.cli.federate import federate
from fedcal.cli.logits import apply, calibrate
from fedcal.cli.methods import methods
from fedcal.cli.monitor import monitor_app
from fedcal.cli.report import report
from fedcal.cli.run import command_of_config
from fedcal.cli.start import start

FILES, SITES, SIMULATE = "Your own files", "Federations", "Simulations"
NOTHING = "nothing was written"
WHOLE = "files are written only at the end: run the same command again"


class Command(NamedTuple):
    """A command, the panel of `fedcal --help` that shows it, and what is kept where the user stops it."""

    name: str
    does: Callable[..., None] | typer.Typer
    panel: str
    kept: str = NOTHING


COMMANDS = (
    Command("methods", methods, FILES),
    Command("calibrate", calibrate, FILES, WHOLE),
    Command("apply", apply, FILES, WHOLE),
    Command("evaluate", evaluate, FILES, WHOLE),
    Command(
        "server",
        server_app,
        SITES,
        "a round is processed completely or not at all: `fedcal server status DIR` shows the state",
    ),
    Command("client", client_app, SITES, "the same command gives the same file"),
    Command("monitor", monitor_app, SITES, "batches are added all at once or not at all: run the same command again"),
    Command("federate", federate, SITES),  # says itself what is kept
    Command("run", command_of_config(), SIMULATE),  # so does this
    Command("report", report, SIMULATE, WHOLE),
    Command("data", data_app, SIMULATE, "complete files are kept; run the same command to fetch the rest"),
)

app = typer.Typer(
    help="Calibrate the probabilities of federated models, for the whole federation and for each client.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    if isinstance(command.does, typer.Typer):
        app.add_typer(command.does, name=command.name, rich_help_panel=command.panel)
    else:
        app.command(command.name, rich_help_panel=command.panel)(command.does)


@app.callback(invoke_without_command=True)
def version_option(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"fedcal {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """The entry point: bad input ends in one line on stderr and exit 2, never in a traceback."""
    words = sys.argv[1:] if arguments is None else arguments
    kept = {command.name: command.kept for command in COMMANDS}
    start(app, "fedcal", arguments, kept.get(words[0] if words else "", NOTHING))
