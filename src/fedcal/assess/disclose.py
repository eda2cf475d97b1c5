"""Which results may be shown: none of few samples, and none that follow from others by subtraction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Cell = tuple[str, str]  # (site, group); "" stands for all of them


def hidden_cells(counts: Mapping[Cell, int], small: Iterable[Cell], families: Sequence[Sequence[Cell]]) -> set[Cell]:
    """The cells to hide.

    Args:
        counts: the number of samples in each cell.
        small: cells with too few.
        families: cells that add up to a total which may be shown. Where one cell of a family is hidden, its value would be
            the total less the others: the next smallest one is hidden too.
    """
    hidden, before = set(small), -1
    while len(hidden) > before:
        before = len(hidden)
        for family in families:
            filled = [cell for cell in family if counts[cell]]
            shown = [cell for cell in filled if cell not in hidden]
            if len(filled) - len(shown) == 1 and shown:
                hidden.add(min(shown, key=lambda cell: (counts[cell], cell)))
    return hidden


def families(sites: Sequence[str], variables: Mapping[str, Sequence[str]]) -> list[list[Cell]]:
    """Cells that add up: all sites; the groups of a variable, overall and at each site; a group at all sites."""
    found = [[(site, "") for site in sites]]
    for groups in variables.values():
        found.append([("", group) for group in groups])
        found += [[(site, group) for group in groups] for site in sites]
        found += [[(site, group) for site in sites] for group in groups]
    return found


def blank(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Measures of the same names without their values."""
    found: dict[str, Any] = {"hidden": True}
    for name, value in measures.items():
        is_estimate = isinstance(value, dict) and set(value) == {"value", "low", "high"}
        found[name] = {"value": None, "low": None, "high": None} if is_estimate else None
    return found
