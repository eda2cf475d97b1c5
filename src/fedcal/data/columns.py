"""Which columns of a table, or arrays of a .npz, hold scores, labels and sites: that follows from their names alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from fedcal.errors import FedCalError, check_known

Kind = Literal["logits", "probs"]
# A table of a model's inputs: every column is one, but for the label, the site and those that are asked for besides.
FEATURES: Literal["features"] = "features"
What = Literal["logits", "probs", "features"]
LABELS = ("labels", "label")
SITES = ("site", "sites", "client", "clients")
NOT_SCORES = (*LABELS, *SITES, "predictions", "prediction")
UNNAMED = "columns"  # all columns, of other names, if the user says what they are
EITHER = "score"  # a score may be a probability, if the user says so
KINDS: dict[str, Kind] = {"logits": "logits", "logit": "logits", EITHER: "logits"}
KINDS |= dict.fromkeys(("probs", "prob", "p", "probabilities", "probability"), "probs")
COLUMN = re.compile(rf"({'|'.join(KINDS)})_([0-9]+)")


def choose_scores(names: Iterable[str], kind: Kind | None, others: Sequence[str] = ()) -> str:
    """Return the name of the array that holds the scores.

    Args:
        names: of the file's arrays.
        kind: what the user says that it holds.
        others: arrays that are no scores, whatever their names.

    Raises:
        FedCalError: where it is none of them, or could be several.
    """
    names = [name for name in names if name not in (*NOT_SCORES, *others)]
    known = [name for name in names if name in KINDS]
    fitting = names if kind and not known else [n for n in known if kind in (None, KINDS[n]) or n == EITHER]
    if len(fitting) == 1:
        return fitting[0]
    found = ", ".join(names) or "nothing else"
    if len(fitting) > 1:
        raise FedCalError(
            f"which of {found} is meant? Keep one of them, or name the scores logits or probs, and the labels labels"
        )
    if known:
        raise FedCalError(f"--{kind} is given, but the file has {found}: rename that, or leave the option out")
    raise FedCalError(f"neither logits nor probs, but {found}: rename that, or pass --logits or --probs")


def one_of(names: Sequence[str], found: Iterable[str]) -> str | None:
    """Return the one of several names for the same thing that a file uses; None where it uses none."""
    held = [name for name in found if name in names]
    if len(held) > 1:
        raise FedCalError(f"{' and '.join(held)} mean the same: keep one of them")
    return held[0] if held else None


def check_held(others: Sequence[str], found: Sequence[str]) -> None:
    """Refuse a file that lacks a column which is asked for."""
    for name in others:
        check_known("column", name, found)


class Plan(NamedTuple):
    """Which columns of a table to take."""

    name: str
    scores: list[int]  # in the order of classes
    label: int | None
    site: int | None
    others: dict[str, int]

    @property
    def besides(self) -> list[int]:
        """The columns that hold no scores."""
        return [i for i in dict.fromkeys((self.label, self.site, *self.others.values())) if i is not None]


def plan_of(header: list[str], kind: What | None, others: Sequence[str]) -> Plan:
    """Return which columns of a table to take.

    Args:
        header: the names of its columns.
        kind: what columns of other names are; FEATURES: a table of features.
        others: further columns to take.

    Raises:
        FedCalError: where a column is missing or doubled, or the names do not say what is meant.
    """
    at: dict[str, dict[int, int]] = {}
    free = [i for i, name in enumerate(header) if name not in (*NOT_SCORES, *others)]
    if len(set(header)) < len(header):
        raise FedCalError("two columns have the same name: rename one")
    if kind == FEATURES:
        return _features_plan(header, [name for name in others if name in header])
    if not any(header):
        raise FedCalError("it is empty: its first line must name the columns")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise FedCalError("its cells are not separated by commas: save it as CSV with commas")
    check_held(others, header)
    for i in free:
        if match := COLUMN.fullmatch(header[i]):
            if len(match[2]) > 9:
                raise FedCalError(f"column {header[i][:40]}…: classes are numbered from 0")
            numbered = at.setdefault(match[1], {})
            if (other := numbered.setdefault(int(match[2]), i)) != i:
                raise FedCalError(f"columns {header[other]} and {header[i]} are of one class: keep one of them")
    if not at:  # a single column of two classes
        at = {header[i]: {0: i} for i in free if header[i] in KINDS}
    if not at and kind is None:
        raise FedCalError(
            f"columns {', '.join(header)}: name the scores logit_0 … or p_0 … (two classes: p), or pass --logits or "
            "--probs; name the labels label"
        )
    name = choose_scores(at or [UNNAMED], kind)
    columns = at.get(name, dict(enumerate(free)))
    if missing := [k for k in range(len(columns)) if k not in columns]:
        raise FedCalError(f"column {name}_{missing[0]} is missing: classes are numbered from 0")
    scores = [columns[k] for k in range(len(columns))]
    return Plan(name, scores, *_label_and_site(header), {one: header.index(one) for one in others})


def _features_plan(header: list[str], others: Sequence[str]) -> Plan:
    label, site = _label_and_site(header)
    free = [i for i, name in enumerate(header) if i not in (label, site) and name not in others]
    if not free:
        raise FedCalError(f"columns {', '.join(header) or 'none'}: there is no feature among them")
    return Plan(FEATURES, free, label, site, {one: header.index(one) for one in others})


def _label_and_site(header: list[str]) -> tuple[int | None, int | None]:
    label, site = (one_of(names, header) for names in (LABELS, SITES))
    return None if label is None else header.index(label), None if site is None else header.index(site)
