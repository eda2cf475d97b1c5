"""Reliability: the calibration of a set of samples as sums of constant size that add with `+`.

A client sends a few sums per bin: how many samples, how many of them predicted right, and their summed confidence. The
server adds them up. Confidences are summed in fixed point (two integers, the upper and the lower 26 bits), so that addition
is exact: the sum over any split of the samples *equals* the pooled one, bit for bit. Averaging the clients' ECEs instead
would be wrong: twenty perfectly calibrated clients of 50 samples average to an ECE of 11 %; pooled they measure 2 %.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, as_array
from fedcal.base.bins import equal_mass
from fedcal.base.checks import check_measured, check_whole
from fedcal.errors import FedCalError
from fedcal.measure.interval import ece_interval, mean_deviation

LIMB = 26  # bits: confidence ≈ (high · 2²⁶ + low) / 2⁵², both integers
ENTRIES = 1 << 18  # numbers in a block of logits or probabilities
BLOCK = 1 << 15  # samples binned at once: they stay in cache, and float64 adds up 2²⁶ limbs of 26 bits exactly


def equal_width(n_bins: int) -> np.ndarray:
    """The edges of n bins of equal width on [0, 1]. A bin holds lo < confidence ≤ hi (Definition 3.2); 0 is in the first."""
    return np.linspace(0.0, 1.0, check_whole(n_bins, "n_bins") + 1)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Sums over the samples in each confidence bin. `a + b` is the reliability of both sets of samples together.

    Examples:
        Two clients send sums of constant size; the server adds them up.

        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> probs = rng.dirichlet(np.full(4, 0.3), size=1000)
        >>> labels = (rng.random((1000, 1)) > probs.cumsum(1)).sum(1)  # drawn from the probabilities: calibrated
        >>> a, b = (fedcal.Reliability.of(probs[part], labels[part]) for part in (slice(300), slice(300, None)))
        >>> a + b == fedcal.Reliability.of(probs, labels)
        True
        >>> print(f"ECE {(a + b).ece():.3f}, noise floor {(a + b).floor():.3f}")
        ECE 0.031, noise floor 0.033
        >>> low, high = (a + b).interval()  # 95 % interval of the population's ECE
    """

    edges: np.ndarray  # (B + 1,) float64
    count: np.ndarray  # (B,) samples
    correct: np.ndarray  # (B,) of them, predicted right
    high: np.ndarray  # (B,) confidence sums, upper limbs
    low: np.ndarray  # (B,) confidence sums, lower limbs

    # --- making and adding -------------------------------------------------------------------------------------

    @classmethod
    def of(cls, probs: Any, labels: Any, n_bins: int = 15, *, classes: Any = None) -> Reliability:
        """Return the reliability of the top label.

        Args:
            probs: (N, K) probabilities, or (N,) of class 1.
            labels: (N,) labels.
            n_bins: the number of bins, of equal width.
            classes: the label of each column, if labels are not the column numbers.

        Raises:
            FedCalError: the arguments do not fit together.
        """
        return cls.of_top(*top_label(*check_measured(probs, labels, classes)), edges=equal_width(n_bins))

    @classmethod
    def of_top(cls, confidence: np.ndarray, correct: np.ndarray, edges: np.ndarray) -> Reliability:
        """Return the reliability of confidences.

        Args:
            confidence: each sample's, in [0, 1].
            correct: whether each sample's prediction is right.
            edges: the edges of the bins.
        """
        n_bins = len(edges) - 1
        sums = np.zeros((4, n_bins), np.int64)
        for start in range(0, len(confidence), BLOCK):
            part = np.clip(np.asarray(confidence[start : start + BLOCK], np.float64), 0.0, 1.0)
            bins = find_bins(part, edges)
            for row, weight in enumerate((None, correct[start : start + BLOCK], *limbs(part))):
                sums[row] += np.bincount(bins, weight, n_bins).astype(np.int64)
        return cls(edges, *sums)

    @classmethod
    def empty(cls, n_bins: int = 15) -> Reliability:
        """Return the reliability of no samples: the neutral element of `+`.

        Args:
            n_bins: the number of bins, of equal width.
        """
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
        """The number of samples."""
        return int(self.count.sum())

    @property
    def confidence_sum(self) -> np.ndarray:
        """Each bin's summed confidence."""
        return self.high * 2.0**-LIMB + self.low * 2.0 ** (-2 * LIMB)

    def gaps(self) -> np.ndarray:
        """Return |confidence − accuracy| of each bin, weighted by its share of the samples. Their sum is the ECE."""
        return np.abs(self.confidence_sum - self.correct) / max(self.n, 1)

    def ece(self) -> float:
        """Return the expected calibration error (Definition 3.2); NaN without samples."""
        return float(self.gaps().sum()) if self.n else float("nan")

    def mce(self) -> float:
        """Return the maximum calibration error: the largest |confidence − accuracy| of any bin; NaN without samples."""
        filled = self.count > 0
        return float((self.gaps()[filled] * self.n / self.count[filled]).max()) if self.n else float("nan")

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean confidence and the accuracy of each bin, NaN where it is empty."""
        count = np.where(self.count > 0, self.count, np.nan)
        return self.confidence_sum / count, self.correct / count

    def floor(self) -> float:
        """Return the noise floor: the mean ECE that a perfectly calibrated model with these confidences would measure.

        Its correct predictions in a bin are Binomial(n, confidence), whose mean absolute deviation has a closed form.
        """
        if not self.n:
            return float("nan")
        p = np.clip(self._filled_confidence(), 0.0, 1.0)
        return float(mean_deviation(self.count, p).sum() / self.n)

    def band(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The band of accuracies that sampling noise allows a perfectly calibrated model.

        Args:
            level: how often a bin's accuracy lies in the band.

        Returns:
            The lower and the upper end for each bin, NaN where it is empty.
        """
        from scipy.stats import binom

        tail, n = _tail(level), np.where(self.count > 0, self.count, np.nan)
        p = np.clip(self._filled_confidence(), 0.0, 1.0)
        return binom.ppf(tail, self.count, p) / n, binom.ppf(1 - tail, self.count, p) / n

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return a confidence interval of the population's ECE in the same bins. It always contains `ece()`.

        See `measure/interval.py`: it also covers calibrated models, whose measured ECE is nothing but noise.

        Args:
            level: how often the interval contains the population's ECE, at least.
        """
        _tail(level)  # checks it
        if not self.n:
            return float("nan"), float("nan")
        low, high = ece_interval(self.count, self.correct, self.confidence_sum, self.edges, level)
        here = self.ece()
        return min(low, here), max(high, here)

    def debiased_l2(self) -> float:
        """Return the root mean squared gap without sampling noise (Kumar et al. 2019): 0 where noise explains all."""
        return root(self.debiased_square())

    def debiased_square(self) -> float:
        """Return the square of `debiased_l2`, which noise can make negative. To average over clients, average this."""
        seen = self.count > 1
        n, hits, conf = self.count[seen], self.correct[seen], self.confidence_sum[seen]
        if not n.size:
            return float("nan")
        squared = ((conf - hits) / n) ** 2 - (hits / n) * (1 - hits / n) / (n - 1)
        return float((n * squared).sum() / n.sum())

    def merge_to(self, n_bins: int) -> Reliability:
        """Return bins of equal mass: neighbouring bins are joined until each holds about 1/n of the samples.

        Args:
            n_bins: the number of bins wanted; there may be fewer.
        """
        return self._joined(equal_mass(self.count, check_whole(n_bins, "n_bins")))

    def disclosed(self, min_count: int) -> Reliability:
        """Return a version to publish: neighbouring bins are joined until each holds at least `min_count` samples.

        With fewer samples in total it is empty. Bins are joined instead of left out, so that every sample still counts; the
        ECE of the joined bins is at most that of the fine ones. Use it on the sum over clients: reliabilities whose bins
        were joined differently do not add.

        Args:
            min_count: the fewest samples that a bin may show.
        """
        min_count, starts, held = check_whole(min_count, "min_count", low=0), [0], 0
        if self.n < min_count:
            return Reliability.of_top(np.empty(0), np.empty(0), self.edges[[0, -1]])
        for b, count in enumerate(self.count):
            if b > starts[-1] and held >= min_count:
                starts, held = [*starts, b], 0
            held += int(count)
        return self._joined(np.array(starts if held >= min_count or len(starts) == 1 else starts[:-1]))

    def groups(self, least: int = 15) -> Reliability:
        """Return bins to look at: neighbours joined until each holds enough samples, and no empty bins at the lower end.

        Args:
            least: samples that a bin has at least, if there are as many in all.
        """
        first = int(np.argmax(self.count > 0))
        filled = Reliability(self.edges[first:], *(sums[first:] for sums in self._sums()))
        return filled.disclosed(min(least, self.n))

    def _joined(self, starts: np.ndarray) -> Reliability:
        """Bins from each start up to the next one added up."""
        sums = (np.add.reduceat(s, starts) for s in self._sums())
        return Reliability(np.append(self.edges[starts], self.edges[-1]), *sums)

    def sums(self) -> np.ndarray:
        """Return all of it but the edges: (4, bins) whole numbers."""
        return np.stack(self._sums())

    def _filled_confidence(self) -> np.ndarray:
        return self.confidence_sum / np.maximum(self.count, 1)


def blocks(rows: Any, labels: Any) -> Iterator[tuple[Array, Array]]:
    """Blocks of consecutive samples (of arrays or tensors), each a few MB large. Without samples there is one empty block."""
    rows, labels = as_array(rows), as_array(labels)
    size = max(1, ENTRIES // max(1, rows.shape[1]))
    for start in range(0, max(1, len(labels)), size):
        yield rows[start : start + size], labels[start : start + size]


def _tail(level: float) -> float:
    if not 0 < level < 1:
        raise FedCalError(f"level must lie between 0 and 1, not {level}: try 0.95")
    return (1 - level) / 2


def root(square: float) -> float:
    """The square root of an estimate, 0 where noise made the estimate negative; NaN stays NaN."""
    return float(np.sqrt(np.maximum(square, 0.0)))


def class_sums(probs: np.ndarray, labels: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Each class's reliability sums, (K, 4, bins): its probability on every sample, and whether it is the label."""
    n, k = probs.shape
    n_bins = len(edges) - 1
    flat = np.clip(probs.ravel(), 0.0, 1.0)
    cells = (find_bins(flat, edges).reshape(n, k) + n_bins * np.arange(k)).ravel()
    own = cells[np.arange(n) * k + labels]
    rows = [np.bincount(cells, weight, k * n_bins).astype(np.int64) for weight in (None, *limbs(flat))]
    rows.insert(1, np.bincount(own, None, k * n_bins))
    return np.stack([row.reshape(k, n_bins) for row in rows], axis=1)


def limbs(confidence: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Confidences in fixed point: the upper and the lower 26 bits, as whole numbers in float64."""
    scaled = confidence * 2.0**LIMB
    high = np.floor(scaled)
    return high, np.rint((scaled - high) * 2.0**LIMB)


def find_bins(confidence: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The bin of each confidence: edges[b] < confidence ≤ edges[b + 1], and 0 in the first."""
    last = len(edges) - 2
    if not np.array_equal(edges, equal_width(last + 1)):
        return np.searchsorted(edges[1:-1], confidence, side="left")
    # Equal widths: a product that is slightly too small finds the bin or the one below; its upper edge tells which.
    bins = (confidence * ((last + 1) * (1 - 2.0**-50))).astype(np.int64)
    bins += confidence > edges[1:][bins]
    return bins


def top_label(probs: Array, labels: Array) -> tuple[np.ndarray, np.ndarray]:
    """Each sample's confidence (in float64) and whether its top class, the first on a tie, is the label."""
    confidence = probs.max(1, initial=0)
    correct = probs[np.arange(len(labels)), labels] == confidence
    low = np.flatnonzero(correct & (confidence <= 0.51))  # above one half no two classes can tie
    rows, tops = probs[low], confidence[low, None]
    if np.count_nonzero(rows == tops) > len(low):  # an argmax is slow, and few sets have ties
        correct[low] = rows.argmax(1) == labels[low]
    return confidence.astype(float), correct
