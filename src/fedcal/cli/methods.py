"""`fedcal methods`: which method to take, what methods there are, and a method's options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedcal.methods import DEFAULT

if TYPE_CHECKING:
    from fedcal.methods import Method
    from fedcal.methods.sets import Sets
    from fedcal.methods.spec import Option

out = Console()

CHOICES = (  # what you have or may do, and the method for it; docs/choose.md has the same with more words
    ("clients may send sums over their samples (also masked or with noise)", DEFAULT),
    ("they may, but the model's decisions must not change", f"{DEFAULT}:accuracy=keep"),
    ("clients may send only two sums per round", "fed-ts"),
    ("there is only one round, and clients may send one number", "avg-t"),
    ("you want the paper's method", "fedcal"),
)


def methods(
    spec: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show this method's options.", show_default=False)
    ] = None,
) -> None:
    """Recommend a calibration method, and list all of them: what each does and what clients send. With NAME: its options."""
    from rich.table import Table

    from fedcal.methods import METHODS, get_method

    if spec is not None:
        _print_options(METHODS[get_method(spec).name])
        return
    out.print(f"If in doubt, use [bold]{DEFAULT}[/bold]: it is the default everywhere.\n")
    choices = Table.grid("take", "when", padding=(0, 2), pad_edge=True)
    for when, method in CHOICES:
        choices.add_row(method, f"if {when}")
    out.print(choices)
    out.print()
    known = list(METHODS.values())
    references = [method for method in known if method.needs_pooled_data or method.name == "uncal"]
    sums = [method for method in known if method.additive and method not in references]
    sums.sort(key=lambda method: method.name != DEFAULT)
    _print_table("Exact, from sums over clients", sums)
    _print_table("Averages of clients' scalers", [one for one in known if one not in (*sums, *references)])
    _print_table("To compare with", references)
    out.print("Options of a method: fedcal methods NAME")


def _print_table(title: str, some: Iterable[Method]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        "method", "what it is", "what a client sends", "rounds", title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.title_justify = "left"
    for method in some:
        rounds = (
            "until done"
            if method.additive
            else "in training"
            if method.schedule == "interleaved"
            else str(method.rounds)
        )
        table.add_row(method.name, method.summary, method.leaves, "0" if method.name == "uncal" else rounds)
    out.print(table)


def _print_options(method: Method) -> None:
    """A registered method's options: its own first, then those of every method of its kind."""
    from fedcal.methods import Method
    from fedcal.methods.sets import Sets
    from fedcal.methods.spec import options_offered, sets_offered

    print(f"{method.name}: {method.summary}\nWhat a client sends: {method.leaves}")
    if not (offered := options_offered(method)):
        print("It has no options.")
        return
    shared = Method.__dataclass_fields__
    own = [option for option in offered.values() if option.name not in shared or option.name == "rounds"]
    _print_option_table(method, own)
    if others := [option for option in offered.values() if option not in own]:
        print("In simulations (`fedcal run`), which train a model, also:")
        _print_option_table(method, others)
    if of_sets := sets_offered(method):
        print("Options of conformal sets; giving any of them makes sets (see docs/conformal.md):")
        _print_option_table(Sets(), of_sets.values())
    print(f"Give them as --method {method.name}:OPTION=VALUE,OPTION=VALUE")


def _print_option_table(method: Method | Sets, options: Iterable[Option]) -> None:
    from rich.table import Table

    from fedcal.methods.spec import value_as_text

    table = Table("option", "values", "default", "what it does")
    for option in options:
        default = value_as_text(getattr(method, option.name))
        table.add_row(option.name, option.expected, default, escape(option.help))
    out.print(table)
