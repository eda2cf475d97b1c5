"""Options that several commands share, and how their values are read. No command's help may wait for PyTorch.

So modules of the command line import at their top only what help needs; a command imports the rest when it runs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedcal.errors import FedCalError
from fedcal.simulate.config import ADVANCED

Kind = Annotated[
    bool | None,
    typer.Option(
        "--probs/--logits", help="What the scores are, if their names do not say so. (default: from the names)"
    ),
]
Spec = Annotated[
    str,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Calibration method, optionally with options: NAME:OPTION=VALUE,... such as fedcal-plus:accuracy=keep "
        "(see `fedcal methods`).",
    ),
]
Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE...", help="One .npz, .csv or .parquet per site, or files with a column `site`."),
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes",
        metavar="A,B,...",
        help="The label of each column, in order, if labels are not 0, 1, 2 and so on. (default: strings in sorted order)",
    ),
]
Seed = Annotated[
    int, typer.Option(help="Random seed; the same seed gives the same results bit for bit.", rich_help_panel=ADVANCED)
]
MaxBytes = Annotated[
    int,
    typer.Option(
        "--max-bytes",
        envvar="FEDCAL_MAX_BYTES",
        metavar="BYTES",
        min=1,
        help="Refuse a file that would take more memory than this. (default: 2 GiB)",
        show_default=False,
        show_envvar=False,
        rich_help_panel=ADVANCED,
    ),
]
Alpha = Annotated[
    float | None,
    typer.Option(
        "--alpha",
        help="Also make conformal sets, which miss the true label for at most this share of samples, such as 0.1.",
        show_default=False,
    ),
]
Coverage = Annotated[
    str | None,
    typer.Option(
        "--coverage",
        metavar="WHICH",
        help="Where the coverage of 1 - alpha holds: `marginal` (all samples together), in each `class`, or at each `site`. "
        "(default: marginal)",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")]


def parse_classes(text: str | None) -> list[Any] | None:
    """`a,b,c` as a list; numbers, where all are."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    return [int(name) for name in names] if all(re.fullmatch(r"-?\d+", name) for name in names) else names


def agreed_classes(text: str | None, known: Sequence[Any]) -> list[Any] | None:
    """The label of each column: what --classes says, else the classes of a scaler or a federation.

    Other words for them are fine. In another order, they would be other columns than those of the scaler or of other sites.
    """
    given, names = parse_classes(text), [str(name) for name in known]
    if given is None or (words := [str(name) for name in given]) == names:
        return list(known) or None
    if sorted(words) == sorted(names):
        order = ",".join(names)
        raise FedCalError(
            f"--classes {text}: the order is {order}: write the file's columns in this one, without --classes"
        )
    return given


def sets_options(alpha: float | None, coverage: str | None) -> dict[str, Any]:
    """What --alpha and --coverage say, as options of a method; either of them asks for sets."""
    return {name: value for name, value in (("alpha", alpha), ("coverage", coverage)) if value is not None}


def kind_of(probs: bool | None) -> Literal["probs", "logits"] | None:
    """What --probs and --logits say."""
    return None if probs is None else "probs" if probs else "logits"
