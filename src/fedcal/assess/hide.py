"""Replaces results that may not be shown by None: those of few samples, and those that would give them away."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
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

N_BINS = 15  # of confidence
RATES = ("sensitivity", "specificity", "ppv", "npv", "net_benefit")  # of decisions at a threshold

Json = dict[str, Any]


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
    if len(numbers.predicted) == len(found):  # otherwise each class has results of all sites only
        add_rest(numbers.predicted, variables)
        layout = Layout.of(numbers.predicted, _known(families(sites, groups, ()), numbers.predicted))
        hide_decisions(shown, numbers, layout, hidden, thresholds, min_count)
    add_rest(numbers.bins, variables)
    bins = [str(b) for b in range(N_BINS)]
    layout = Layout.of(numbers.bins, _known(families(sites, groups, bins), numbers.bins))
    hide_bins(shown, numbers, layout, hidden, min_count)


def _known(some: Iterable[Family], cells: Container[Cell]) -> list[Family]:
    """The families of these cells, less the cells that there are not."""
    found = [Family(total, [cell for cell in parts if cell in cells]) for total, parts in some if total in cells]
    return [family for family in found if family.parts]


def hide_decisions(
    found: Mapping[tuple[str, str], Json],
    numbers: Numbers,
    layout: Layout,
    hidden: Container[Cell],
    thresholds: Sequence[float],
    min_count: int,
) -> None:
    """Hide decisions: at each threshold, for each class, those of few samples above or below it, and what gives them away.

    A mean over classes leaves out the classes with few decisions. If another class in it is hidden, so is the mean: it
    would give the class away.
    """
    at = all_thresholds(thresholds)
    first = int(np.searchsorted(at, thresholds[0]))
    n = np.array([numbers.counts[cell][0] for cell in layout.cells])[:, None]
    for row, label in enumerate(numbers.labels or ("",)):
        above = np.stack([numbers.predicted[cell][row] for cell in layout.cells])
        sides = np.stack([above, n - above])
        already = [[cell in hidden or cell._replace(label=label) in hidden] for cell in layout.cells]
        masks, few = hide_columns(sides, layout, min_count, np.array(already)), is_small(sides[..., first], min_count)
        for (site, group, _), mask, left_out in zip(layout.cells, masks, few, strict=True):
            one = found.get((site, group))
            if one and mask.any():
                part = one["classes"][label] if label else one
                if not part.get("hidden"):
                    blank_decisions(part, at, mask)
                if mask[first] and not left_out:
                    one.update({name: dict(NOTHING) for name in RATES})


def blank_decisions(one: Json, thresholds: np.ndarray, hidden: np.ndarray) -> None:
    """Remove what tells of decisions at the hidden thresholds."""
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
    layout: Layout,
    hidden: Container[Cell],
    min_count: int,
) -> None:
    """Hide bins of confidence of few samples, and those that would give them away."""
    counts = np.array([numbers.bins[cell] for cell in layout.cells]).T[..., None]
    already = np.array([[cell._replace(label="") in hidden] for cell in layout.cells])
    for cell, mask in zip(layout.cells, hide_columns(counts, layout, min_count, already)[:, 0], strict=True):
        one = found.get((cell.site, cell.group))
        if one and mask and cell.label:
            for key in ("count", "confidence", "accuracy"):
                one["bins"][key][int(cell.label)] = None
