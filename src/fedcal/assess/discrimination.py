"""How well scores tell the classes apart: AUROC and average precision from binned scores, and decisions at thresholds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, psi

from fedcal.assess.disclose import is_small
from fedcal.assess.intervals import UNKNOWN, Estimate, Z, difference, laplace, on_logit, wilson
from fedcal.assess.sums import TIED, ScoreSums

NEAR = 8  # bins on either side of a peak
MANY, FEW = 20, 0.05  # samples of a peak at least, and the share of them that may have another score


@dataclass(frozen=True)
class Ranked:
    """The filled bins of a row, lowest score first: how many of the class, how many not, and how these two lie in the bin."""

    yes: np.ndarray
    no: np.ndarray
    ahead: np.ndarray  # the chance that of one of each in the same bin, the one of the class has the higher score
    tied: np.ndarray  # bins of a single score
    alike: np.ndarray  # these, and bins in which nearly all samples seem to have one score

    @classmethod
    def of(cls, sums: ScoreSums, row: int) -> Ranked:
        filled = sums.moments[row, :, :, 0].any(axis=0)
        (count, one, two) = np.moveaxis(sums.moments[row][:, filled], -1, 0)
        mean = one / np.maximum(count, 1)
        variance = np.maximum(two / np.maximum(count, 1) - mean * mean, 0.0)
        no, yes = 0, 1
        apart, spread = mean[yes] - mean[no], np.sqrt(variance.sum(0) + TIED**2)
        both = (count > 0).all(axis=0)
        # A normal approximation within the bin: exact for one sample of each, and for ties.
        ahead = np.where(both, ndtr(apart / spread), 0.5)
        one_score = np.where(both, np.abs(apart), 0.0) + np.sqrt(variance.sum(0)) < 10 * TIED
        # The bins at the ends hold all scores beyond them as one: they tie only if all are probabilities of exactly 0 or 1.
        at_end = np.isin(np.flatnonzero(filled), (0, sums.moments.shape[2] - 1))
        one_score &= ~at_end | (np.abs(one) == count / 2).all(axis=0)
        peak = _peaks(sums.moments[row].sum(axis=0))[filled]
        return cls(count[yes], count[no], np.where(peak, 0.5, ahead), one_score, one_score | peak)


def _peaks(moments: np.ndarray) -> np.ndarray:
    """The bins that look like a single frequent score, such as that of all patients without a value, and a few others.

    A normal distribution with the mean and the variance of such a bin says little about the order of its pairs. The others
    must be about as many as in the bins around it: scores that all lie close together, or two frequent ones, are no peak.
    """
    count, one, two = moments.T
    mean = one / np.maximum(count, 1)
    others = (two - count * mean**2) / (1 / 12 + mean**2)  # as many spread evenly over the bin give this variance
    around = (np.convolve(count, np.ones(2 * NEAR + 1), "same") - count) / (2 * NEAR)
    return (count >= MANY) & (others < FEW * count) & (around > 0) & (others < 3 * (around + 1))


def auroc(sums: ScoreSums, row: int) -> tuple[Estimate, float]:
    """The area under the ROC curve with DeLong's interval on the log-odds scale, and a bound of the binning's error."""
    bins = Ranked.of(sums, row)
    positives, negatives = bins.yes.sum(), bins.no.sum()
    if not positives or not negatives:
        return UNKNOWN, math.nan
    below = np.cumsum(bins.no) - bins.no
    # One of the class in this bin beats this share of the others; one of the others loses to that share of the class.
    beaten = (below + bins.no * bins.ahead) / negatives
    value = float(bins.yes @ beaten / positives)
    above = positives - np.cumsum(bins.yes)
    lost = (above + bins.yes * bins.ahead) / positives
    variance = _variance(bins.yes, beaten, value) / positives + _variance(bins.no, lost, value) / negatives
    pairs = bins.yes * bins.no / positives / negatives
    error = float(pairs @ np.where(bins.tied, 0.0, np.maximum(bins.ahead, 1 - bins.ahead)))
    if variance <= 0 or not 0 < value < 1:
        return newcombe(value, positives, negatives), error
    return on_logit(value, math.sqrt(variance)), error


def decisive(sums: ScoreSums, row: int) -> float:
    """How many samples are in the wrong order, of the class or not, whichever are fewer: few if nearly all pairs are right.

    The effective number (Σv)² / Σv², of each sample's share v of pairs in the wrong order.
    """
    bins = Ranked.of(sums, row)
    above, below = bins.yes.sum() - np.cumsum(bins.yes), np.cumsum(bins.no) - bins.no
    of_yes = bins.no.sum() - below - bins.no * bins.ahead
    of_no = bins.yes.sum() - above - bins.yes * bins.ahead
    return min(
        float((count @ wrong) ** 2 / max(count @ wrong**2, 1e-300))
        for count, wrong in ((bins.yes, of_yes), (bins.no, of_no))
    )


def _variance(count: np.ndarray, values: np.ndarray, mean: float) -> float:
    return float(count @ (values - mean) ** 2) / max(count.sum() - 1, 1)


def newcombe(value: float, positives: float, negatives: float) -> Estimate:
    """An AUROC with Newcombe's (2006) score-like interval, which does not need the samples' own variance."""
    theta = np.linspace(0, 1, 2001)
    extra = (positives + negatives) / 2 - 1
    variance = theta * (1 - theta) * (1 + extra * ((1 - theta) / (2 - theta) + theta / (1 + theta)))
    inside = theta[np.abs(theta - value) <= Z * np.sqrt(variance / (positives * negatives)) + 1e-12]
    return Estimate(value, float(min(inside.min(initial=value), value)), float(max(inside.max(initial=value), value)))


def auprc(sums: ScoreSums, row: int) -> tuple[Estimate, float]:
    """Average precision, as scikit-learn defines it, with a jackknife interval and a bound of the binning's error."""
    bins = Ranked.of(sums, row)
    positives = bins.yes.sum()
    if not positives or not bins.no.sum():
        return UNKNOWN, math.nan
    above_yes, above_no = positives - np.cumsum(bins.yes), bins.no.sum() - np.cumsum(bins.no)

    reached = above_yes + np.where(bins.alike, bins.yes, (bins.yes + 1) / 2)
    passed = above_no + bins.no * np.where(bins.alike, 1.0, 1 - bins.ahead)
    total = np.maximum(reached + passed, 1e-300)

    def one_by_one(passed: np.ndarray) -> np.ndarray:
        """The mean precision of a bin's positives if their scores differ, after so many others."""
        before = above_yes + passed
        return 1 - passed * (psi(before + bins.yes + 1) - psi(before + 1)) / np.maximum(bins.yes, 1)

    precise = np.where(bins.alike | (bins.no > 0), reached / total, one_by_one(above_no))
    # A bin's positives may at best have one score, before all its others; at worst they come one by one, after them.
    last = above_yes + bins.yes
    may_tie = (bins.yes > 2) | (bins.no > 0)
    best = np.where(may_tie, last / np.maximum(last + above_no, 1e-300), precise)
    best, worst = (np.where(bins.tied, precise, end) for end in (best, one_by_one(above_no + bins.no)))
    value, most, least = (float(bins.yes @ one / positives) for one in (precise, best, worst))
    error = max(most - value, value - least)
    # Derivatives by the weight of one more sample in a bin (infinitesimal jackknife). Their weighted sum is zero.
    of_yes = (reached / total + np.cumsum(bins.yes * passed / total**2) - value) / positives
    of_no = -np.cumsum(bins.yes * reached / total**2) / positives
    n = positives + bins.no.sum()
    moved = (bins.yes @ of_yes + bins.no @ of_no) / n
    variance = bins.yes @ (of_yes - moved) ** 2 + bins.no @ (of_no - moved) ** 2
    if variance <= 0 or not 0 < value < 1:
        return Estimate(value, wilson(value * positives, positives).low, 1.0), error
    return on_logit(value, math.sqrt(variance)), error


@dataclass(frozen=True)
class Decisions:
    """What deciding at a threshold, or at each of several, does: samples at or above it count as positive."""

    threshold: Any
    true_positives: Any
    false_positives: Any
    positives: int
    negatives: int

    @classmethod
    def at(cls, sums: ScoreSums, row: int, threshold: float | np.ndarray) -> Decisions:
        """The counts of a row at one or several of the thresholds that were counted."""
        negatives, positives = sums.counts(row)
        false, true = sums.above[row][:, np.searchsorted(sums.thresholds, threshold)]
        return cls(threshold, true, false, positives, negatives)

    @property
    def odds(self) -> Any:
        """What a false positive weighs against a true one."""
        return self.threshold / (1 - self.threshold)

    def net_benefit(self) -> Estimate:
        """True positives less false ones at the threshold's odds, per sample (Vickers and Elkin 2006)."""
        n = self.positives + self.negatives
        return difference(wilson(self.true_positives, n), wilson(self.false_positives, n), self.odds)

    def treat_all(self) -> Any:
        """The net benefit of treating everybody; of treating nobody it is 0."""
        return (self.positives - self.odds * self.negatives) / ((self.positives + self.negatives) or math.nan)

    def measures(self, min_count: int = 0) -> dict[str, Estimate]:
        """Sensitivity, specificity, predictive values and net benefit; unknown where they tell of fewer samples."""
        predicted = self.true_positives + self.false_positives
        correctly_below = self.negatives - self.false_positives
        n = self.positives + self.negatives
        found = {
            "sensitivity": wilson(self.true_positives, self.positives),
            "specificity": wilson(correctly_below, self.negatives),
            "ppv": wilson(self.true_positives, predicted),
            "npv": wilson(correctly_below, n - predicted),
            "net_benefit": self.net_benefit(),
        }
        shown: Any = np.where(is_small(np.stack([predicted, n - predicted]), min_count), math.nan, 1.0)
        return {name: Estimate(*(shown * part for part in one)) for name, one in found.items()}

    def rates(self) -> dict[str, Estimate]:
        """Sensitivity, specificity and predictive values with intervals for a mean over classes."""
        below = self.negatives - self.false_positives
        predicted = self.true_positives + self.false_positives
        return {
            "sensitivity": laplace(self.true_positives, self.positives),
            "specificity": laplace(below, self.negatives),
            "ppv": laplace(self.true_positives, predicted),
            "npv": laplace(below, self.positives + self.negatives - predicted),
        }
