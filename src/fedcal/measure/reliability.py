"""Reliability: what a client may tell about its calibration, in constant size, adding up with `+`.

A client sends one row of sums a bin: how many samples, how many right, and their summed confidence. The server
adds the rows. Because confidences are summed in fixed point (two integer limbs, 2⁻⁵² apart), addition is exact:
the sum over any split of the samples *equals* the pooled one, bit for bit. Averaging clients' ECEs would not do:
twenty perfectly calibrated clients of 50 samples average to an ECE of 11 %; pooled they measure 2 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor

from fedcal.base.bins import equal_mass
from fedcal.base.checks import check_measured, check_whole
from fedcal.errors import FedCalError
from fedcal.measure.interval import ece_interval, mean_deviation

LIMB = 26  # confidence ≈ (high · 2²⁶ + low) / 2⁵², both limbs integers
ENTRIES = 1 << 18  # of a block of logits or probabilities
BLOCK = 1 << 15  # samples binned at once: they stay in cache, and float64 adds up 2²⁶ limbs of 26 bits exactly


def equal_width(n_bins: int) -> np.ndarray:
    """The edges of n equal bins on [0, 1]; bin m holds lo < confidence ≤ hi (Definition 3.2), 0 joins the first."""
    return np.linspace(0.0, 1.0, check_whole(n_bins, "n_bins") + 1)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Sums over samples in confidence bins. `a + b` is the reliability of both sample sets together."""

    edges: np.ndarray  # (B + 1,) float64
    count: np.ndarray  # (B,) samples
    correct: np.ndarray  # (B,) of them, predicted right
    high: np.ndarray  # (B,) confidence sums, upper limbs
    low: np.ndarray  # (B,) confidence sums, lower limbs

    # --- making and adding -------------------------------------------------------------------------------------

    @classmethod
    def of(cls, probs: Any, labels: Any, n_bins: int = 15, *, classes: Any = None) -> Reliability:
        """The top-label reliability of (N, K) probabilities, or (N,) of class 1, and (N,) labels (see metrics.py)."""
        return cls.of_top(*top_label(*check_measured(probs, labels, classes)), edges=equal_width(n_bins))

    @classmethod
    def of_top(cls, confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> Reliability:
        """From each sample's confidence in [0, 1] and whether it came true."""
        n_bins = len(edges) - 1
        sums = np.zeros((4, n_bins), np.int64)
        for start in range(0, len(confidence), BLOCK):
            part = np.clip(np.asarray(confidence[start : start + BLOCK], np.float64), 0.0, 1.0)
            bins = find_bins(part, edges)
            for row, weight in enumerate((None, correct[start : start + BLOCK], *_limbs(part))):
                sums[row] += np.bincount(bins, weight, n_bins).astype(np.int64)
        return cls(edges, *sums)

    @classmethod
    def empty(cls, n_bins: int = 15) -> Reliability:
        """No samples yet: the neutral element of `+`."""
        return cls.of_top(np.empty(0), np.empty(0), equal_width(n_bins))

    def __add__(self, other: Reliability) -> Reliability:
        if not np.array_equal(self.edges, other.edges):
            raise FedCalError(
                f"reliabilities of {len(self.count)} and {len(other.count)} bins do not add: use the same edges"
            )
        return Reliability(self.edges, *(a + b for a, b in zip(self._sums(), other._sums(), strict=True)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reliability) and all(
            np.array_equal(a, b)
            for a, b in zip((self.edges, *self._sums()), (other.edges, *other._sums()), strict=True)
        )

    def _sums(self) -> tuple[np.ndarray, ...]:
        return self.count, self.correct, self.high, self.low

    # --- reading -----------------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """How many samples are in it."""
        return int(self.count.sum())

    @property
    def confidence_sum(self) -> np.ndarray:
        """Each bin's summed confidence."""
        return self.high * 2.0**-LIMB + self.low * 2.0 ** (-2 * LIMB)

    def gaps(self) -> np.ndarray:
        """|conf − acc| of each bin, weighted by its share of the samples: they add up to the ECE."""
        return np.abs(self.confidence_sum - self.correct) / max(self.n, 1)

    def ece(self) -> float:
        """Expected calibration error (Definition 3.2); NaN without samples."""
        return float(self.gaps().sum()) if self.n else float("nan")

    def mce(self) -> float:
        """The largest |conf − acc| of any bin."""
        filled = self.count > 0
        return float((self.gaps()[filled] * self.n / self.count[filled]).max()) if self.n else float("nan")

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean confidence and accuracy of each bin, NaN where it is empty."""
        count = np.where(self.count > 0, self.count, np.nan)
        return self.confidence_sum / count, self.correct / count

    def floor(self) -> float:
        """The ECE that a perfectly calibrated model with these confidences would measure, on average.

        A bin's hits are then Binomial(n, conf), whose mean absolute deviation has a closed form.
        """
        if not self.n:
            return float("nan")
        p = np.clip(self._filled_confidence(), 0.0, 1.0)
        return float(mean_deviation(self.count, p).sum() / self.n)

    def band(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Between which accuracies a perfectly calibrated model's bins would lie; NaN where empty."""
        tail, n = _tail(level), np.where(self.count > 0, self.count, np.nan)
        p = np.clip(self._filled_confidence(), 0.0, 1.0)
        return binom.ppf(tail, self.count, p) / n, binom.ppf(1 - tail, self.count, p) / n

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Between which values the population's ECE (in the same bins) lies, from the sums alone; holds `ece()` always.

        See `measure/interval.py`: it covers for calibrated models too, whose measured ECE is all noise.
        """
        _tail(level)  # checks it
        if not self.n:
            return float("nan"), float("nan")
        low, high = ece_interval(self.count, self.correct, self.confidence_sum, self.edges, level)
        here = self.ece()
        return min(low, here), max(high, here)

    def debiased_l2(self) -> float:
        """Root mean squared gap less the sampling noise (Kumar et al. 2019): 0 where noise explains it all."""
        return root(self.debiased_square())

    def debiased_square(self) -> float:
        """Its square, negative as often as noise makes it so: averages of many are to be taken of this."""
        seen = self.count > 1
        n, hits, conf = self.count[seen], self.correct[seen], self.confidence_sum[seen]
        if not n.size:
            return float("nan")
        squared = ((conf - hits) / n) ** 2 - (hits / n) * (1 - hits / n) / (n - 1)
        return float((n * squared).sum() / n.sum())

    def merge_to(self, n_bins: int) -> Reliability:
        """Neighbouring bins joined until each holds about 1/n of the samples: equal-mass bins from a fine histogram."""
        return self._joined(equal_mass(self.count, check_whole(n_bins, "n_bins")))

    def disclosed(self, min_count: int) -> Reliability:
        """Fit to be shown: neighbouring bins joined until each holds at least `min_count` samples; none if all hold fewer.

        Joined rather than left out, so that every sample still counts; the ECE of the joined bins is at most that of the
        fine ones. Made for sums over clients, when they are published: reliabilities joined differently no longer add.
        """
        min_count, starts, held = check_whole(min_count, "min_count", low=0), [0], 0
        if self.n < min_count:
            return Reliability.of_top(np.empty(0), np.empty(0), self.edges[[0, -1]])
        for b, count in enumerate(self.count):
            if b > starts[-1] and held >= min_count:
                starts, held = [*starts, b], 0
            held += int(count)
        return self._joined(np.array(starts if held >= min_count or len(starts) == 1 else starts[:-1]))

    def _joined(self, starts: np.ndarray) -> Reliability:
        """Bins from each start up to the next one added up."""
        sums = (np.add.reduceat(s, starts) for s in self._sums())
        return Reliability(np.append(self.edges[starts], self.edges[-1]), *sums)

    def sums(self) -> np.ndarray:
        """All of it but the edges: (4, bins) whole numbers."""
        return np.stack(self._sums())

    def _filled_confidence(self) -> np.ndarray:
        return self.confidence_sum / np.maximum(self.count, 1)


def blocks(rows: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Consecutive samples, few enough that work on them stays in a few MB; one empty block where there are none."""
    size = max(1, ENTRIES // max(1, rows.shape[1]))
    for start in range(0, max(1, len(labels)), size):
        yield rows[start : start + size], labels[start : start + size]


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise FedCalError(f"level must lie between 0 and 1, not {level}: try 0.95")
    return (1 - level) / 2


def root(square: float) -> float:
    """The root of an estimated square, 0 where noise made it negative; NaN stays."""
    return float(np.sqrt(np.maximum(square, 0.0)))


def class_sums(probs: np.ndarray, labels: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Each class's reliability sums, (K, 4, bins): its probability on every sample, against whether it is the label."""
    n, k = probs.shape
    n_bins = len(edges) - 1
    flat = np.clip(probs.ravel(), 0.0, 1.0)
    cells = (find_bins(flat, edges).reshape(n, k) + n_bins * np.arange(k)).ravel()
    own = cells[np.arange(n) * k + labels]
    rows = [np.bincount(cells, weight, k * n_bins).astype(np.int64) for weight in (None, *_limbs(flat))]
    rows.insert(1, np.bincount(own, None, k * n_bins))
    return np.stack([row.reshape(k, n_bins) for row in rows], axis=1)


def _limbs(confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Confidences in fixed point: the upper and the lower 26 bits, as whole numbers in float64."""
    scaled = confidence * 2.0**LIMB
    high = np.floor(scaled)
    return high, np.rint((scaled - high) * 2.0**LIMB)


def find_bins(confidence: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bin of each confidence: edges[b] < confidence ≤ edges[b + 1], and 0 in the first."""
    last = len(edges) - 2
    if not np.array_equal(edges, equal_width(last + 1)):
        return np.searchsorted(edges[1:-1], confidence, side="left")
    # Equal widths: a product just too small finds the bin, or the one below, which a look at its upper edge puts right.
    bins = (confidence * ((last + 1) * (1 - 2.0**-50))).astype(np.int64)
    bins += confidence > edges[1:][bins]
    return bins


def top_label(probs: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Each sample's confidence (in float64) and whether its top class, the first on a tie, is the label."""
    confidence = probs.amax(dim=1)
    correct = probs.gather(1, labels[:, None])[:, 0] == confidence
    low = (correct & (confidence <= 0.51)).nonzero()[:, 0]  # above one half no two classes can tie
    rows, tops = probs[low], confidence[low, None]
    if torch.count_nonzero(rows == tops) > len(low):  # an argmax is slow, and few sets have ties
        correct[low] = rows.argmax(dim=1) == labels[low]
    return confidence.double().numpy(), correct.numpy()
