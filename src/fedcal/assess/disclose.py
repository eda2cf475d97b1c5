"""Which results may be shown: none of few samples, and none that follow from others by subtraction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.linalg import lsqr

Counts = tuple[int, ...]  # of a cell: numbers of samples of which none may be small


class Cell(NamedTuple):
    """Samples with results of their own. An empty name stands for all sites, all groups, or all classes."""

    site: str = ""
    group: str = ""
    label: str = ""


class Family(NamedTuple):
    """A cell, and the cells that add up to it."""

    total: Cell
    parts: list[Cell]


def hidden_cells(counts: Mapping[Cell, Counts], families: Sequence[Family], min_count: int) -> set[Cell]:
    """The cells to hide, so that nobody learns a result of few samples.

    A total less the parts that are shown is the sum of the hidden parts. So the hidden parts of a total must be several, and
    not few samples together; otherwise the smallest shown part is hidden too. A total with a single part is that part, and
    is hidden with it. If a total is hidden, all its parts are: with them, it could be computed from other sums.

    Args:
        counts: of each cell.
        families: cells that add up.
        min_count: counts below it, except 0, are small.
    """
    small = {cell for cell, some in counts.items() if is_small(some, min_count)}
    filled = [Family(total, [cell for cell in parts if any(counts[cell])]) for total, parts in families]
    hidden = close(small, counts, filled, min_count)
    while known := small & determined(hidden, filled):
        around = {part for _, parts in filled if known & {*parts} for part in parts} - hidden
        if not around:  # all that is shown is a total of enough samples
            break
        hidden = close(hidden | {min(around, key=lambda cell: (counts[cell], cell))}, counts, filled, min_count)
    return hidden


def close(hidden: set[Cell], counts: Mapping[Cell, Counts], filled: Sequence[Family], min_count: int) -> set[Cell]:
    """Hide what each family, taken alone, needs to be hidden too."""
    hidden, before = set(hidden), -1
    while len(hidden) > before:
        before = len(hidden)
        for total, parts in filled:
            if total in hidden:
                hidden.update(parts)
                continue
            shown = sorted((cell for cell in parts if cell not in hidden), key=lambda cell: (counts[cell], cell))
            gap = [cell for cell in parts if cell in hidden]
            while gap and shown and is_narrow([counts[cell] for cell in gap], min_count):
                gap.append(shown.pop(0))
            hidden.update(gap)
            if gap and len(parts) == 1:
                hidden.add(total)
    return hidden


def determined(hidden: Iterable[Cell], filled: Sequence[Family]) -> set[Cell]:
    """The hidden cells whose values follow from several families together, by sums and differences of what is shown.

    Values of hidden cells that fit what is shown differ by changes that leave all sums as they are. A cell is known if none
    of these changes moves it, which a random one of them shows.
    """
    cells = sorted(hidden)
    at = {cell: i for i, cell in enumerate(cells)}
    entries = [
        (row, at[cell], sign)
        for row, (total, parts) in enumerate(filled)
        for cell, sign in ((total, -1.0), *((part, 1.0) for part in parts))
        if cell in at
    ]
    if not entries:
        return set()
    rows, columns, signs = zip(*entries, strict=True)
    sums = coo_array((signs, (columns, rows)), shape=(len(cells), len(filled))).tocsr()
    moved = np.random.default_rng(0).normal(size=len(cells))
    moved -= sums @ lsqr(sums, moved, atol=1e-13, btol=1e-13, iter_lim=4 * (len(cells) + len(filled)))[0]
    return {cell for cell, change in zip(cells, moved, strict=True) if abs(change) < 1e-6}


def is_small(counts: Counts, min_count: int) -> bool:
    """Whether one of the counts is of few samples."""
    return any(0 < count < min_count for count in counts)


def is_narrow(gap: Sequence[Counts], min_count: int) -> bool:
    """Whether hidden cells with these counts would be known: a single one, or few samples together."""
    return len(gap) == 1 or is_small(tuple(map(sum, zip(*gap, strict=True))), min_count)


def families(sites: Sequence[str], variables: Mapping[str, Sequence[str]], labels: Sequence[str]) -> Iterator[Family]:
    """Cells that add up: all sites; the groups of a variable, overall and at each site; a group at all sites; all classes."""
    for label in ("", *labels):
        yield Family(Cell(label=label), [Cell(site, "", label) for site in sites])
        for groups in variables.values():
            for site in ("", *sites):
                yield Family(Cell(site, "", label), [Cell(site, group, label) for group in groups])
            for group in groups:
                yield Family(Cell("", group, label), [Cell(site, group, label) for site in sites])
    for site in ("", *sites):
        for group in ("", *(group for groups in variables.values() for group in groups)):
            yield Family(Cell(site, group), [Cell(site, group, label) for label in labels])


def add_rest(counts: dict[Cell, Counts], variables: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Count the samples that no group of a variable holds: of sites without the variable, or that did not send a group.

    They have no results of their own, but these are a total's less those of its groups.

    Args:
        counts: of all cells; those of the rest are added.
        variables: the groups of each.

    Returns:
        The groups of each variable, with the rest as one more.
    """
    found, rest = {}, dict[Cell, Counts]()
    for variable, groups in variables.items():
        name = f"\0{variable}"
        found[variable] = [*groups, name]
        for cell, whole in counts.items():
            if not cell.group:
                parts = [counts[part] for group in groups if (part := cell._replace(group=group)) in counts]
                rest[cell._replace(group=name)] = tuple(n - sum(some) for n, *some in zip(whole, *parts, strict=True))
    counts |= rest
    return found


def blank(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Measures of the same names without their values."""
    found: dict[str, Any] = {"hidden": True}
    for name, value in measures.items():
        is_estimate = isinstance(value, dict) and set(value) == {"value", "low", "high"}
        found[name] = {"value": None, "low": None, "high": None} if is_estimate else None
    return found
