"""Which results may be shown: none of few samples, and none that follow from others by subtraction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.linalg import lsqr

Counts = Sequence[int] | np.ndarray  # of a cell: numbers of samples of which none may be small
NOTHING = {"value": None, "low": None, "high": None}  # a measure that is hidden
Indexed = Sequence[tuple[int, np.ndarray]]  # families: the place of a total, and those of its parts


class Cell(NamedTuple):
    """Samples with results of their own. An empty name stands for all sites, all groups, or all classes."""

    site: str = ""
    group: str = ""
    label: str = ""


class Family(NamedTuple):
    """A cell, and the cells that add up to it."""

    total: Cell
    parts: list[Cell]


@dataclass(frozen=True)
class Layout:
    """Cells in order, and the places of those that add up."""

    cells: list[Cell]
    families: list[tuple[int, np.ndarray]]  # a total, and its parts

    @classmethod
    def of(cls, cells: Iterable[Cell], families: Sequence[Family]) -> Layout:
        ordered = sorted(cells)
        at = {cell: i for i, cell in enumerate(ordered)}
        return cls(
            ordered, [(at[total], np.array([at[cell] for cell in parts], np.int64)) for total, parts in families]
        )


def hidden_cells(counts: Mapping[Cell, Counts], families: Sequence[Family], min_count: int) -> set[Cell]:
    """The cells to hide, so that nobody learns a result of few samples.

    Args:
        counts: of each cell.
        families: cells that add up.
        min_count: counts below it, except 0, are small.
    """
    layout = Layout.of(counts, families)
    numbers = np.array([counts[cell] for cell in layout.cells], np.int64).T[..., None]
    hidden = hide_columns(numbers, layout, min_count)[:, 0]
    return {cell for cell, one in zip(layout.cells, hidden, strict=True) if one}


def hide_columns(numbers: np.ndarray, layout: Layout, min_count: int, hidden: np.ndarray | bool = False) -> np.ndarray:
    """Which cells to hide in each column; a column holds one result of every cell, such as decisions at one threshold.

    A total less the parts that are shown is the sum of the hidden parts. So the hidden parts of a total must be several, and
    not few samples together; otherwise the smallest shown part is hidden too. A total with a single part is that part, and
    is hidden with it. If a total is hidden, all its parts are: with them, it could be computed from other sums.

    Args:
        numbers: (counts, cells, columns) samples. A cell is empty in all columns or in none.
        layout: the cells.
        min_count: counts below it, except 0, are small.
        hidden: (cells, 1 or columns), True for cells that are hidden already, with all that would give them away.

    Returns:
        (cells, columns), True where the cell is hidden.
    """
    small = is_small(numbers, min_count)
    found = small | hidden
    columns = np.flatnonzero(small.any(0))  # counts that are not small do not add up to small ones
    filled = np.asarray(numbers.any(axis=(0, 2)))
    families = [(total, parts[filled[parts]]) for total, parts in layout.families]
    families = [(total, parts) for total, parts in families if len(parts)]
    if len(columns) and families:
        found[:, columns] = _hide(numbers[..., columns], small[:, columns], found[:, columns], families, min_count)
    return found


def _hide(numbers: np.ndarray, small: np.ndarray, hidden: np.ndarray, families: Indexed, min_count: int) -> np.ndarray:
    """Hide more, until no small cell follows from what is shown."""
    order = np.lexsort(numbers[::-1], axis=0)  # by counts, then by name
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(order))[:, None], 0)
    hidden = close(hidden, numbers, rank, families, min_count)
    belongs, sums = _matrices(families, len(numbers[0]))
    links = abs(sums)
    for at in range(numbers.shape[-1]):
        one = slice(at, at + 1)
        while (known := small[:, at] & determined(hidden[:, at], sums)).any():
            near = [shown_around(cell, hidden[:, at], belongs, links) for cell in np.flatnonzero(known).tolist()]
            smallest = [cells[rank[cells, at].argmin()] for cells in near if len(cells)]
            if not smallest:  # all that is shown is a total of enough samples
                break
            hidden[smallest, at] = True
            hidden[:, one] = close(hidden[:, one], numbers[..., one], rank[:, one], families, min_count)
    return hidden


def shown_around(cell: int, hidden: np.ndarray, belongs: csr_array, links: csr_array) -> np.ndarray:
    """The shown parts of a cell's families; if there are none, of the families next to them, through hidden cells."""
    reached, size = np.arange(len(hidden)) == cell, 0
    while (now := int(reached.sum())) > size:
        size, touched = now, (links.T @ reached.astype(float) > 0).astype(float)
        if (around := (belongs @ touched > 0) & ~hidden).any():
            return np.flatnonzero(around)
        reached = (links @ touched > 0) & hidden
    return np.zeros(0, np.int64)


def close(hidden: np.ndarray, numbers: np.ndarray, rank: np.ndarray, families: Indexed, min_count: int) -> np.ndarray:
    """Hide what each family, taken alone, needs to be hidden too."""
    hidden, seen, before = hidden.copy(), [0] * len(families), -1
    while (now := int(hidden.sum())) > before:
        before = now
        for i, (total, parts) in enumerate(families):
            gap = hidden[parts] | hidden[total]
            if gap.sum() == seen[i]:
                continue
            here = numbers[:, parts]
            while (narrow := is_narrow(here, gap, min_count)).any():
                smallest = np.where(gap, len(rank), rank[parts]).argmin(0)
                gap[smallest[narrow], np.flatnonzero(narrow)] = True
            hidden[parts], seen[i] = gap, int(gap.sum())
            if len(parts) == 1:
                hidden[total] |= gap[0]
    return hidden


def _matrices(families: Indexed, n_cells: int) -> tuple[csr_array, csr_array]:
    """(cells, families): 1 for each part; and the same with −1 for each total, whose product with values is 0."""
    size = (n_cells, len(families))
    rows = np.concatenate([parts for _, parts in families])
    columns = np.repeat(np.arange(len(families)), [len(parts) for _, parts in families])
    belongs = csr_array((np.ones(len(rows)), (rows, columns)), shape=size)
    totals = csr_array((np.ones(len(families)), ([t for t, _ in families], np.arange(len(families)))), shape=size)
    return belongs, csr_array(belongs - totals)


def determined(hidden: np.ndarray, sums: csr_array) -> np.ndarray:
    """The hidden cells whose values follow from several families together, by sums and differences of what is shown.

    Values of hidden cells that fit what is shown differ by changes that leave all sums as they are. A cell is known if none
    of these changes moves it, which a random one of them shows.
    """
    cells, known = np.flatnonzero(hidden), np.zeros(len(hidden), bool)
    some = sums[cells]
    if some.nnz:
        moved = np.random.default_rng(0).normal(size=len(cells))
        moved -= some @ lsqr(some, moved, atol=1e-13, btol=1e-13, iter_lim=4 * sum(some.shape))[0]
        known[cells] = np.abs(moved) < 1e-6
    return known


def is_small(numbers: np.ndarray, min_count: int) -> np.ndarray:
    """Whether one of the counts (the first axis) is of few samples."""
    return np.asarray(((numbers > 0) & (numbers < min_count)).any(0))


def is_narrow(numbers: np.ndarray, gap: np.ndarray, min_count: int) -> np.ndarray:
    """In which columns hidden parts would be known, a single one or few samples together, while others are shown."""
    size = gap.sum(0)
    return (size > 0) & (size < len(gap)) & ((size == 1) | is_small((numbers * gap).sum(1), min_count))


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
                rest[cell._replace(group=name)] = np.asarray(whole) - sum(np.asarray(some) for some in parts)
    counts |= rest
    return found


def blank(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Measures of the same names without their values."""
    found: dict[str, Any] = {"hidden": True}
    for name, value in measures.items():
        is_estimate = isinstance(value, dict) and set(value) == set(NOTHING)
        found[name] = dict(NOTHING) if is_estimate else None
    return found
