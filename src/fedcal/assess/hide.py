"""Replaces results that may not be shown by None: those of few samples, and those that would give them away."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcal.assess.disclose import (
    NOTHING,
    Cell,
    Counts,
    Family,
    Layout,
    add_rest,
    blank,
    families,
    hidden_cells,
    hide_columns,
    is_small,
)
from fedcal.assess.sums import CURVE, ScoreSums, all_thresholds
from fedcal.measure.reliability import equal_width

N_BINS = 15  # of confidence
RATES = ("sensitivity", "specificity", "ppv", "npv", "net_benefit")  # of decisions at a threshold

Json = dict[str, Any]
Masks = dict[Cell, np.ndarray]  # by cell and class, True for the thresholds whose decisions are hidden


@dataclass
class Numbers:
    """How many samples the results are of."""

    labels: Sequence[str]  # the classes with results of their own; none of two classes
    counts: dict[Cell, Counts] = field(default_factory=dict)
    predicted: dict[Cell, Counts] = field(default_factory=dict)  # (classes, thresholds): samples at or above each
    bins: dict[Cell, Counts] = field(default_factory=dict)  # of confidence, as cells with the bin's number as label

    def add(self, cell: Cell, sums: ScoreSums, detail: bool) -> None:
        """Count the samples of a cell: of two classes with those of each, of more with each class as a cell of its own.

        Args:
            cell: of all classes.
            sums: of its samples.
            detail: whether each class has results here.
        """
        self.bins[cell] = (sums.n,)
        self.bins |= {cell._replace(label=str(b)): (int(n),) for b, n in enumerate(sums.bins.count)}
        if sums.n_classes == 2:
            self.counts[cell] = (sums.n, *sums.counts(0))
        else:
            self.counts[cell] = (sums.n,)
        if detail:
            of_class = {cell._replace(label=name): (sums.counts(row)[1],) for row, name in enumerate(self.labels)}
            self.counts |= of_class
            self.predicted[cell] = sums.above[: max(len(self.labels), 1)].sum(1)

    def sides(self, cell: Cell, row: int) -> np.ndarray:
        """(2, thresholds) samples at or above each threshold of a class, and below it."""
        above = np.asarray(self.predicted[cell])[row]
        return np.stack([above, self.counts[cell][0] - above])


def hide(
    found: dict[tuple[str, str], Json],
    numbers: Numbers,
    sites: Sequence[str],
    variables: Mapping[str, Sequence[str]],
    thresholds: Sequence[float],
    min_count: int,
) -> None:
    """Replace the results of few samples, and those that would give them away, by None.

    Args:
        found: the results by site and group; changed.
        numbers: of their samples.
        sites: the names of the sites.
        variables: the groups of each variable.
        thresholds: those that the user asked for.
        min_count: see `evaluate`.
    """
    groups = add_rest(numbers.counts, variables)
    related = _known(families(sites, groups, numbers.labels), numbers.counts)
    hidden = hidden_cells(numbers.counts, related, min_count)
    for site, group, label in sorted(hidden):
        one = found.get((site, group))
        if one and not label:
            found[site, group] = blank(one)
        elif one and one["classes"]:
            one["classes"][label] = blank(one["classes"][label])
    shown = {key: one for key, one in found.items() if not one.get("hidden")}
    everywhere = len(numbers.predicted) == len(found)  # otherwise each class has results of all sites only
    if everywhere:
        add_rest(numbers.predicted, variables)
    add_rest(numbers.bins, variables)
    at, alike = all_thresholds(thresholds), list(families(sites, groups, ()))
    masks = hidden_decisions(numbers, _known(alike, numbers.predicted), hidden, min_count)
    of_bins = list(families(sites, groups, [str(b) for b in range(N_BINS)]))
    hide_bins(shown, numbers, alike, of_bins, hidden, masks, at, min_count)
    blank_decisions(shown, numbers, masks, at, float(thresholds[0]), min_count if everywhere else 0)


def _known(some: Iterable[Family], cells: Container[Cell]) -> list[Family]:
    """The families of these cells, less the cells that there are not."""
    found = [Family(total, [cell for cell in parts if cell in cells]) for total, parts in some if total in cells]
    return [family for family in found if family.parts]


def hidden_decisions(numbers: Numbers, related: Sequence[Family], hidden: Container[Cell], min_count: int) -> Masks:
    """The decisions to hide at each threshold, for each class: of few samples above or below it, and what gives them away.

    Args:
        numbers: of samples.
        related: the families of `numbers.predicted`.
        hidden: cells.
        min_count: see `evaluate`.
    """
    masks: Masks = {}
    layout = Layout.of(numbers.predicted, related)
    for row, label in enumerate(numbers.labels or ("",)):
        sides = np.stack([numbers.sides(cell, row) for cell in layout.cells], axis=1)
        already = [[cell in hidden or cell._replace(label=label) in hidden] for cell in layout.cells]
        found = hide_columns(sides, layout, min_count, np.array(already))
        masks |= {cell._replace(label=label): mask for cell, mask in zip(layout.cells, found, strict=True)}
    return masks


def blank_decisions(
    found: Mapping[tuple[str, str], Json],
    numbers: Numbers,
    masks: Masks,
    thresholds: np.ndarray,
    first: float,
    min_count: int,
) -> None:
    """Remove the hidden decisions, and the means over classes that give them away.

    A mean leaves out the classes with few decisions. If another class in it is hidden, so is the mean.

    Args:
        found: results by site and group; changed.
        numbers: of samples.
        masks: what is hidden.
        thresholds: all of them.
        first: the one that means are of.
        min_count: see `evaluate`; 0 if the means shall stay.
    """
    place = int(np.searchsorted(thresholds, first))
    for row, label in enumerate(numbers.labels or ("",)):
        for cell in numbers.predicted:
            one, mask = found.get((cell.site, cell.group)), masks[cell._replace(label=label)]
            if one and mask.any():
                part = one["classes"][label] if label else one
                if not part.get("hidden"):
                    _blank(part, thresholds, mask)
                if min_count and mask[place] and not is_small(numbers.sides(cell, row)[:, place], min_count):
                    one.update({name: dict(NOTHING) for name in RATES})


def _blank(one: Json, thresholds: np.ndarray, hidden: np.ndarray) -> None:
    """Remove what tells of a class's decisions at the hidden thresholds."""
    is_hidden = dict(zip(thresholds.tolist(), hidden.tolist(), strict=True))
    for row in (one, *one["thresholds"]):
        if is_hidden[row["threshold"]]:
            row.update({name: dict(NOTHING) for name in RATES})
    curve = one["decision_curve"]
    for key in NOTHING:
        curve[key] = [None if is_hidden[t] else value for t, value in zip(CURVE.tolist(), curve[key], strict=True)]


def hide_bins(
    found: Mapping[tuple[str, str], Json],
    numbers: Numbers,
    alike: Sequence[Family],
    of_bins: Sequence[Family],
    hidden: Container[Cell],
    masks: Masks,
    thresholds: np.ndarray,
    min_count: int,
) -> None:
    """Hide bins of confidence of few samples, and those that would give them, or hidden decisions, away.

    Bins and decisions add up: a confidence of at least 80 % is a probability of at least 80 % of one of the classes. So some
    decisions may have to be hidden, too.

    Args:
        found: results by site and group; changed.
        numbers: of samples.
        alike: the families of sites and groups.
        of_bins: those of bins, too.
        hidden: cells.
        masks: hidden decisions; changed.
        thresholds: all of them.
        min_count: see `evaluate`.
    """
    counts = {cell: np.repeat(some, 2) for cell, some in numbers.bins.items()}  # twice, as decisions have two sides
    related, decided = list(of_bins), dict[Cell, tuple[Cell, int]]()
    for bin_, sides in shared_edges(thresholds, numbers.labels):
        for cell in numbers.predicted:
            parts = []
            for i, (row, label, place, below) in enumerate(sides):
                parts.append(cell._replace(label=f"{bin_}:{i}"))
                counts[parts[-1]] = numbers.sides(cell, row)[:: -1 if below else 1, place]
                decided[parts[-1]] = cell._replace(label=label), place
            related.append(Family(cell, [*(cell._replace(label=str(b)) for b in range(bin_)), *parts]))
    for label in {cell.label for cell in decided}:
        related += [
            Family(total._replace(label=label), [cell._replace(label=label) for cell in parts])
            for total, parts in alike
        ]

    def is_hidden(cell: Cell) -> bool:
        if cell in decided:
            of_class, place = decided[cell]
            return bool(masks[of_class][place])
        return cell._replace(label="") in hidden

    layout = Layout.of(counts, _known(related, counts))
    numbers_of = np.array([counts[cell] for cell in layout.cells]).T[..., None]
    already = np.array([[is_hidden(cell)] for cell in layout.cells])
    for cell, mask in zip(layout.cells, hide_columns(numbers_of, layout, min_count, already)[:, 0], strict=True):
        one = found.get((cell.site, cell.group))
        if mask and cell in decided:
            of_class, place = decided[cell]
            masks[of_class][place] = True
        elif one and mask and cell.label:
            for key in ("count", "confidence", "accuracy"):
                one["bins"][key][int(cell.label)] = None


def shared_edges(
    thresholds: np.ndarray, labels: Sequence[str]
) -> Iterator[tuple[int, list[tuple[int, str, int, bool]]]]:
    """The bins of confidence that begin at thresholds, with the decisions that tell who reaches them.

    Above one half a sample reaches them with a single class, or with none.

    Yields:
        The bin's number, and for each class its row, its name, the threshold's place, and whether samples below it are meant.
    """
    for bin_, edge in enumerate(equal_width(N_BINS)[:-1]):
        wanted = (edge,) if labels else (edge, 1 - edge)
        places = [np.flatnonzero(np.isclose(thresholds, one)) for one in wanted]
        if edge > 0.5 and all(len(some) for some in places):
            at = [int(some[0]) for some in places]
            if labels:
                yield bin_, [(row, label, at[0], False) for row, label in enumerate(labels)]
            else:  # of class 1 the probability is at least the edge, or at most the rest
                yield bin_, [(0, "", at[0], False), (0, "", at[1], True)]
