"""`fedcal methods`: what methods there are, which one to take, and a method's options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from fedcal.methods import Method

out = Console()


def methods(
    spec: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this method's options.", show_default=False)
    ] = None,
) -> None:
    """List the calibration methods: what each does, and what leaves a client. With a NAME: that method's options."""
    from rich.table import Table

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
    from rich.table import Table

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
