"""A confidence interval of the ECE, from bin sums. It covers whether the bins' gaps are clear or nothing but noise.

Let S_b be the sum of (confidence − correct) over the samples in bin b and n·g_b its expectation. The measured ECE is
T = Σ|S_b| / n, the population's is θ = Σ|g_b|. Because |·| is convex, T exceeds θ on average: by nothing where a gap is
many standard errors σ_b wide, by 0.8 σ_b where it is zero. A plain bootstrap resamples that bias on top of itself.
Here each end is the furthest θ that a one-sided test does not reject:

low   the bias of T is as large as it plausibly is: every bin's gap is one standard error smaller than measured.
high  the bias of T is as small as it can be for this θ: by convexity, when the gaps are proportional to σ_b.

The tests use the variances that the tested θ implies, as Wilson's interval for a proportion does, not those of the
measured accuracies, which are zero where no error was seen. `paper/studies/ece_interval.py` measures the coverage.
"""

from __future__ import annotations

import numpy as np

STEPS = np.linspace(0.0, 1.0, 65)  # of a search for an end; between two of them it is interpolated
SHRINK = 1.0  # standard errors by which a gap may be smaller than measured
TINY = 1e-300  # instead of 0 in a denominator


def ece_interval(
    count: np.ndarray, correct: np.ndarray, confidence_sum: np.ndarray, edges: np.ndarray, level: float
) -> tuple[float, float]:
    """A confidence interval of the ECE, Σ|confidence_sum − correct| / n, of at least one sample.

    Args:
        count: the number of samples in each bin.
        correct: how many of them are predicted right.
        confidence_sum: their summed confidence.
        edges: the bins' edges, one more than bins.
        level: how often the interval contains the population's ECE, at least.

    Returns:
        The lower and the upper end.
    """
    seen = count > 0
    n, hits = count[seen].astype(np.float64), correct[seen]
    confidence = np.clip(confidence_sum[seen] / n, 0.0, 1.0)
    below, above = edges[:-1][seen], edges[1:][seen]
    # Confidences vary within a bin, but sums do not tell how much: as if uniform where the mean is the bin's middle.
    within = np.maximum((confidence - below) * (above - confidence), 0.0) / 3
    gap = confidence - hits / n
    z = critical(level)
    return _low(n, confidence, gap, within, z), _high(n, confidence, gap, within, z)


def critical(level: float) -> float:
    """The distance of an end of the interval, in standard errors. It uses only 60 % of the misses that `level` allows.

    The rest makes up for what the formulas here leave out: without it, the coverage would be around the level, not above.
    """
    from scipy.special import ndtri  # imported late: SciPy takes its time, and a node that replies needs none of it

    return float(ndtri(1 - 0.3 * (1 - level)))


def excess(x: np.ndarray) -> np.ndarray:
    """E|N(x, 1)| − x for x ≥ 0, without loss of digits where x is large."""
    from scipy.special import ndtr

    x = np.minimum(x, 40.0)  # beyond, it is zero
    return 2 * (np.exp(-x * x / 2) / np.sqrt(2 * np.pi) - x * ndtr(-x))


def largest_bias(x: np.ndarray) -> np.ndarray:
    """By how much E|N(g, 1)| may exceed |g| when x was measured: as much as at the smallest plausible |g|."""
    return excess(np.maximum(np.abs(x) - SHRINK, 0.0))


def mean_deviation(n: np.ndarray, p: np.ndarray) -> np.ndarray:
    """E|X − np| of a binomial X, by De Moivre: 2 ν (1 − p) b(ν; n, p) with ν = ⌊np⌋ + 1."""
    from scipy.stats import binom

    v = np.floor(n * p) + 1
    return 2 * v * (1 - p) * binom.pmf(v, n, p)


def _low(n: np.ndarray, confidence: np.ndarray, gap: np.ndarray, within: np.ndarray, z: float) -> float:
    """The smallest share of the measured gaps under which sampling could have given an ECE as large as the measured."""
    total, measured = n.sum(), n @ np.abs(gap)
    share = STEPS[:, None]
    accuracy = confidence - share * gap
    given_count = n * (accuracy * (1 - accuracy) + within)
    of_bin = given_count + n * (share * gap) ** 2  # counts are random as well
    deviation = np.sqrt(np.maximum(of_bin, TINY))
    spread = np.sqrt(np.maximum(of_bin.sum(1) - (STEPS * measured) ** 2 / total, 0.0))
    # Few expected errors make a skewed (Poisson) sum: Cornish and Fisher's term, and half a count for its steps.
    skewness = (np.sign(gap) * given_count * (2 * accuracy - 1)).sum(1) / np.maximum(given_count.sum(1), TINY)
    skewed = np.maximum(skewness, 0.0) * (z * z - 1) / 6 + 0.5
    noise = (deviation * largest_bias(n * gap / deviation)).sum(1) + z * spread + skewed
    over = measured - noise - STEPS * measured  # positive: this share is rejected
    first = int(np.argmax(over <= 0))  # all of the gaps never are
    return float(_zero(over, first) * measured / total)


def _high(n: np.ndarray, confidence: np.ndarray, gap: np.ndarray, within: np.ndarray, z: float) -> float:
    """The largest ECE under which sampling could have given one as small as the measured."""
    total, measured, accuracy = n.sum(), n @ np.abs(gap), confidence - gap
    # Every accuracy a little nearer to one half: the variance grows by at most `slope` times that.
    fixed = n @ (accuracy * (1 - accuracy) + within + gap**2) - measured**2 / total
    slope = n @ np.abs(2 * accuracy - 1) / total
    most = (z * z * slope + z * np.sqrt((z * slope) ** 2 + 4 * max(fixed, 0.0))) / 2  # Wilson's, without any bias
    extra = STEPS * most
    variance = fixed + slope * extra
    # The bias that even gaps proportional to σ_b leave. σ_b comes from the mean deviation: in a sparse bin it is less
    # than the binomial's standard deviation, and so is the bias.
    deviation = np.sqrt(np.pi / 2) * mean_deviation(n, confidence)
    x = (measured + extra) / max(deviation.sum(), TINY)
    mean = measured + extra + deviation.sum() * excess(x)
    rest = excess(x)
    variance = variance - deviation @ deviation * rest * (rest + 2 * np.minimum(x, 40.0))  # of |N(x, 1)| it is under 1
    room = measured - mean + z * np.sqrt(np.maximum(variance, 0.0))  # negative: this ECE is rejected
    last = int(np.flatnonzero(room > 0)[-1]) if (room > 0).any() else -1
    return float(min(1.0, (measured + _zero(room, last + 1) * most) / total))


def _zero(values: np.ndarray, i: int) -> float:
    """Where, between the steps i − 1 and i, `values` changes its sign; the first or last step where there is none."""
    if not 0 < i < len(STEPS):
        return float(STEPS[min(i, len(STEPS) - 1)])
    before, here = abs(values[i - 1]), abs(values[i])
    return float(STEPS[i - 1] + (STEPS[i] - STEPS[i - 1]) * before / max(before + here, TINY))
