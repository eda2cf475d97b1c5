"""What a site sends of its samples: sums of constant size that add with `+`, and from which every measure is read.

For each class (of two classes: for class 1 alone) the samples fall into bins by the log-odds of the class's probability,
those of the class apart from the others. A bin keeps its number of samples and the first two moments of their log-odds. So a
bin of one sample is exact, and a bin of many is replaced by two points with the same mean and variance: sums of smooth
functions over the points differ from those over the samples by the third power of a bin's width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedcal.assess.joint import (
    ROWS,
    add_products,
    check_products,
    chosen_rows,
    has_joint,
    n_functions,
    n_products,
    triangle,
)
from fedcal.assess.score_bins import grid, locate, log_odds, n_bins, n_rows
from fedcal.base.arrays import Array, Params, log_softmax
from fedcal.errors import FedCalError
from fedcal.measure.metrics import rank_of_label, squared_error
from fedcal.measure.possible import HIGHEST, SLACK, odd_bins
from fedcal.measure.possible import MOST as MOST_SAMPLES
from fedcal.measure.reliability import Reliability, blocks, equal_width

TIED = 1e-6  # of a bin's width: scores that differ by less are one score
ROUNDED = 1e-6  # log-odds below a threshold that still reach it: 0.9, as its logarithm and back, is a little less
TABLE = np.linspace(0.1, 0.9, 9).round(2)  # thresholds of the table
CURVE = np.linspace(0.01, 0.99, 99).round(2)  # thresholds of the decision curve
MOST_THRESHOLDS = 100  # that may be asked for
PARTS = ("samples", "cells", "moments", "above", "bins", "joint")  # of the sums as arrays; the last of some only


@dataclass(frozen=True)
class Points:
    """Weighted samples of one class: log-odds x, whether of the class y, and the weight w."""

    x: np.ndarray
    y: np.ndarray
    w: np.ndarray


@dataclass(frozen=True, eq=False)
class ScoreSums:
    """Sums over samples. `a + b` holds the samples of both."""

    n_classes: int
    thresholds: np.ndarray  # (T,) sorted: those of the curve and those that the user asks for
    samples: np.ndarray  # n, predicted right, then Σv, Σv², Σv³ of the NLL and of the Brier score
    moments: np.ndarray  # (rows, 2, bins, 3): number, Σδ, Σδ²; δ is the distance to the bin's middle in its widths
    above: np.ndarray  # (rows, 2, T): samples with a probability of at least each threshold
    bins: Reliability  # of the top class
    first: float  # the threshold that `joint` knows
    joint: np.ndarray  # how classes go together: the upper triangle of the matrix of `joint.py`; empty of two classes

    @classmethod
    def of(cls, logits: Array, labels: Array, thresholds: np.ndarray = CURVE, first: float = 0.5) -> ScoreSums:
        """The sums of calibrated logits (N, K) and labels (N,), block by block to save memory."""
        k = logits.shape[1]
        total = cls.empty(k, thresholds, first)
        bins, start = total.bins, 0
        kept, products = chosen_rows(len(labels)), np.zeros((n_functions(k),) * 2)
        for z, y in blocks(logits, labels):
            if len(y):
                here = kept[np.searchsorted(kept, start) : np.searchsorted(kept, start + len(y))] - start
                bins += total._add_block(z.astype(float, "C", copy=False), y, products, here)
                start += len(y)
        return replace(total, bins=bins, joint=triangle(products) * (start / max(len(kept), 1)))

    @classmethod
    def empty(cls, n_classes: int, thresholds: np.ndarray = CURVE, first: float = 0.5) -> ScoreSums:
        """No samples: the neutral element of `+`."""
        rows, bins = n_rows(n_classes), n_bins(n_classes)
        return cls(
            n_classes,
            thresholds,
            np.zeros(8),
            np.zeros((rows, 2, bins, 3)),
            np.zeros((rows, 2, len(thresholds)), np.int64),
            Reliability.empty(),
            float(first),
            np.zeros(n_products(n_classes)),
        )

    def _add_block(self, z: Array, labels: Array, products: Array, kept: Array) -> Reliability:
        """Add samples to the arrays, and those that are `kept` to the matrix of products; returns their reliability."""
        if not np.isfinite(z).all():
            raise FedCalError("logits are not finite: check the model, or the scaler")
        log_p = log_softmax(z, 1)
        p, right = np.exp(log_p), rank_of_label(z, labels) == 0
        nll = -log_p[np.arange(len(labels)), labels]
        brier = squared_error(p, labels) / (2 if self.n_classes == 2 else 1)
        powers = [float((v**power).sum()) for v in (nll, brier) for power in (1, 2, 3)]
        self.samples[:] += [len(labels), float(right.sum()), *powers]
        odds, of_class = log_odds(z), labels[:, None] == np.arange(self.n_classes)
        if self.n_classes == 2:
            x, y = odds[:, 1:], of_class[:, 1:]
        else:  # the top class is the last row
            x = np.concatenate([odds, odds.max(1, keepdims=True)], 1)
            y = np.concatenate([of_class, right[:, None]], 1)
        bins, rows = n_bins(self.n_classes), x.shape[1]
        first = 2 * np.arange(rows)
        bin_of, offset = locate(x, self.n_classes)
        offset, cell = offset.ravel(), ((first + y) * bins + bin_of).ravel()
        size = rows * 2 * bins
        for power in (0, 1, 2):
            found = np.bincount(cell, offset**power if power else None, size)
            self.moments[..., power] += found.reshape(rows, 2, bins)
        # The number of thresholds that a probability reaches, counted, gives the samples above each of them.
        width = len(self.thresholds) + 1
        reached = np.searchsorted(reach(self.thresholds), x, side="right")
        counts = np.bincount(((first + y) * width + reached).ravel(), None, rows * 2 * width).reshape(rows, 2, width)
        self.above[:] += counts[..., ::-1].cumsum(-1)[..., ::-1][..., 1:]
        if has_joint(self.n_classes):
            add_products(products, odds[kept], odds[kept] >= reach(self.first), labels[kept])
        return Reliability.of_top(p.max(1), right, equal_width(15))

    def __add__(self, other: ScoreSums) -> ScoreSums:
        same = self.first == other.first and np.array_equal(self.thresholds, other.thresholds)
        if self.n_classes != other.n_classes or not same:
            raise FedCalError("sums of other classes or other thresholds do not add: use the same at every site")
        return ScoreSums(
            self.n_classes,
            self.thresholds,
            self.samples + other.samples,
            self.moments + other.moments,
            self.above + other.above,
            self.bins + other.bins,
            self.first,
            self.joint + other.joint,
        )

    @staticmethod
    def n_bytes(n_classes: int, n_thresholds: int) -> int:
        """What the sums of so many classes take in memory."""
        return 8 * (n_rows(n_classes) * 2 * (3 * n_bins(n_classes) + n_thresholds) + n_products(n_classes))

    @property
    def n(self) -> int:
        """The number of samples."""
        return int(self.samples[0])

    def counts(self, row: int) -> tuple[int, int]:
        """The samples that are not of the row's class, and those that are."""
        no, yes = self.moments[row, :, :, 0].sum(1)
        return int(no), int(yes)

    def points(self, row: int) -> Points:
        """A row's samples as weighted points, at most two for each bin and outcome."""
        at = grid(self.n_classes)
        outcome, bins = self.moments[row, :, :, 0].nonzero()
        count, one, two = self.moments[row, outcome, bins].T
        mean, spread = _mean_and_spread(count, one, two)
        several = spread > TIED
        # A score that both outcomes have is one number: their means differ by rounding, and with how samples were added.
        at_all, apart = _mean_and_spread(*self.moments[row].sum(axis=0)[bins].T)
        mean = np.where(apart > TIED, mean, at_all)
        offset = np.concatenate([np.where(several, mean - spread, mean), (mean + spread)[several]])
        weight = np.concatenate([np.where(several, count / 2, count), count[several] / 2])
        where = np.concatenate([bins, bins[several]])
        y = np.concatenate([outcome, outcome[several]])
        return Points(at.middle[where] + offset * at.width[where], y.astype(np.float64), weight)

    # --- on the wire ----------------------------------------------------------------------------------------------------

    def to_arrays(self) -> Params:
        """A flat dict of arrays, with the bins that are not empty. `from_arrays` makes exactly these sums of it."""
        cells = np.flatnonzero(self.moments[..., 0])
        return {
            "samples": self.samples.copy(),
            "cells": cells,
            "moments": self.moments.reshape(-1, 3)[cells],
            "above": self.above.copy(),
            "bins": self.bins.sums(),
            **({"joint": self.joint.copy()} if has_joint(self.n_classes) else {}),
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Array], n_classes: int, thresholds: np.ndarray = CURVE, first: float = 0.5
    ) -> ScoreSums:
        """Read what `to_arrays` gave; it may come from a stranger.

        Raises:
            FedCalError: shapes, types or counts are not those of such sums.
        """
        found = cls.empty(n_classes, thresholds, first)
        whole, names = {"cells", "above", "bins"}, parts_of(n_classes)
        wrong = [
            name for name in names
            if name not in arrays or arrays[name].dtype != (np.int64 if name in whole else np.float64)
        ]  # fmt: skip
        if wrong:
            raise FedCalError(f"not the sums of an evaluation: {wrong[0]!r} is missing or of another type")
        samples, cells, moments, above, bins = (arrays[name] for name in PARTS[:5])
        size = found.moments[..., 0].size
        rows = len(cells) if cells.ndim else 0
        shapes = ((8,), cells.shape[:1], (rows, 3), found.above.shape, (4, 15), found.joint.shape)
        for name, shape in zip(names, shapes, strict=False):
            if arrays[name].shape != shape:
                raise FedCalError(
                    f"not the sums of an evaluation: {name!r} has shape {arrays[name].shape}, not {shape}"
                )
        if len(np.unique(cells)) < len(cells) or (len(cells) and not 0 <= cells.min() <= cells.max() < size):
            raise FedCalError("not the sums of an evaluation: its bins are doubled or beyond the last")
        joint = arrays["joint"] if has_joint(n_classes) else found.joint
        if not all(np.isfinite(part).all() for part in (samples, moments, joint)):
            raise FedCalError("not the sums of an evaluation: a number is not finite")
        found.moments.reshape(-1, 3)[cells] = moments
        found.samples[:], found.above[:], found.joint[:] = samples, above, joint
        found = replace(found, bins=Reliability(equal_width(15), *bins))
        found._check_counts()
        return found

    def _check_counts(self) -> None:
        """Refuse sums that no samples can give."""
        n, right = self.samples[:2]
        if not 0 <= right <= n <= MOST_SAMPLES or n % 1 or right % 1:
            raise FedCalError(f"not the sums of an evaluation: {right:g} of {n:g} samples are predicted right")
        count, one, two = np.moveaxis(self.moments, -1, 0)
        slack = 1e-9 * (1 + count)
        inside = (
            (count >= 0).all()
            and (count % 1 == 0).all()
            and (np.abs(one) <= count / 2 + slack).all()
            and (two <= count / 4 + slack).all()
        )
        spread = (two * count >= one * one - slack * (1 + count)).all()
        no, yes = count.sum(2).T
        adds_up = (no + yes == n).all() and (self.n_classes == 2 or (yes[:-1].sum() == n and yes[-1] == right))
        bins = not odd_bins(self.bins.edges, self.bins.sums()[None], int(n)) and self.bins.correct.sum() == right
        if not (inside and spread and adds_up and bins and self._losses_fit() and self._thresholds_fit(count)):
            raise FedCalError("not the sums of an evaluation: they contradict each other")
        if has_joint(self.n_classes):
            at = np.flatnonzero(self.thresholds == self.first)
            above = self.above[:-1, :, at[0]] if len(at) else None
            check_products(self.joint, self.n_classes, count[:-1].sum(2), above)

    def _losses_fit(self) -> bool:
        """Whether the sums of powers may be those of n losses: (Σv)² ≤ n Σv² and (Σv²)² ≤ Σv Σv³, none beyond the highest."""
        n, slack = self.samples[0], 1 + SLACK
        for highest, (one, two, three) in zip((HIGHEST, 2.0), self.samples[2:].reshape(2, 3), strict=True):
            if min(one, two, three) < 0:
                return False
            if any(more > highest * less * slack + SLACK for less, more in ((n, one), (one, two), (two, three))):
                return False
            if one * one > n * two * slack + SLACK or two * two > one * three * slack + SLACK:
                return False
        return True

    def _thresholds_fit(self, count: np.ndarray) -> bool:
        """Whether the samples above each threshold are those of the bins above it, but for the bins around it."""
        edges, bins = grid(self.n_classes).edges, count.shape[-1]
        above = np.zeros((*count.shape[:2], bins + 1))
        above[..., :-1] = count[..., ::-1].cumsum(-1)[..., ::-1]  # samples in this bin or in a higher one
        at = np.searchsorted(edges, np.log(self.thresholds / (1 - self.thresholds)))
        low, high = above[..., np.clip(at + 1, 0, bins)], above[..., np.clip(at - 2, 0, bins)]
        return bool((low <= self.above).all() and (self.above <= high).all() and (np.diff(self.above) <= 0).all())

    def within(self, whole: ScoreSums) -> bool:
        """Whether these may be the sums of some of the samples of `whole`."""
        pairs = (
            (self.samples, whole.samples * (1 + SLACK) + SLACK),
            (self.moments[..., 0], whole.moments[..., 0]),
            (self.above, whole.above),
            (self.bins.sums()[:2], whole.bins.sums()[:2]),
        )
        exact = whole.n <= ROWS  # otherwise the matrices are of some samples only
        return all((part <= of).all() for part, of in pairs) and (
            not exact or bool((self.joint <= whole.joint * (1 + SLACK) + SLACK).all())
        )


def _mean_and_spread(count: np.ndarray, one: np.ndarray, two: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation from sums."""
    mean = one / count
    return mean, np.sqrt(np.maximum(two / count - mean * mean, 0.0))


def parts_of(n_classes: int) -> tuple[str, ...]:
    """The names of the arrays of sums of that many classes."""
    return PARTS if has_joint(n_classes) else PARTS[:-1]


def reach(threshold: Any) -> Any:
    """The log-odds from which on a probability reaches a threshold."""
    return np.log(threshold / (1 - threshold)) - ROUNDED


def all_thresholds(asked: Sequence[float] | Any) -> np.ndarray:
    """The thresholds to count at: those of the curve and the user's.

    Raises:
        FedCalError: one is not between 0 and 1.
    """
    try:
        asked = np.atleast_1d(np.asarray(asked, np.float64))
    except (TypeError, ValueError):
        raise FedCalError(f"thresholds must be numbers between 0 and 1, not {asked!r}") from None
    if asked.ndim != 1 or not len(asked):
        raise FedCalError("no threshold: give at least one, such as 0.5")
    if len(asked) > MOST_THRESHOLDS:
        raise FedCalError(f"{len(asked)} thresholds: give at most {MOST_THRESHOLDS}")
    if not ((asked > 0) & (asked < 1)).all():
        worst = asked[~((asked > 0) & (asked < 1))][0]
        raise FedCalError(f"a threshold must lie between 0 and 1, not {worst:g}: 0.2 decides at 20 %")
    return np.unique(np.concatenate([CURVE, asked]))
