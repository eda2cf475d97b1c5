"""What no samples can give: the conditions that a tally from a stranger satisfies.

counts          whole numbers, not negative, that add up to n; correct ≤ top3 ≤ n
confidences     in every bin between its edges; in all n / K … n; a sample's probabilities add up to 1
sums            a squared error of at most 2 per sample; a loss that is not negative, and finite
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedcal.measure.reliability import Reliability

SLACK = 1e-6  # rounding of a sum, per sample
MOST = 10**12  # samples
HIGHEST = 4e15  # of a sample's loss: logits may lie so far apart


def contradiction(tally: Any) -> str:
    """Return why no samples give a tally.

    Args:
        tally: a `Tally`, whose module imports this one.

    Returns:
        The reason in words; empty where the tally may be of samples.
    """
    n, k = tally.n, len(tally.classes)
    if k < 2:
        return f"{k} of at least two classes"
    slack = SLACK * (n + 1)
    counts = tally.classes[:, :2]
    if not 0 <= n <= MOST or (counts < 0).any() or (counts > MOST).any():
        return "a count is negative, or more than there can be"
    if not all(map(math.isfinite, (tally.nll, tally.brier, tally.confidence))):
        return "a sum is not finite"
    if not 0 <= tally.correct <= tally.top3 <= n:
        return f"{tally.correct} correct and {tally.top3} among the first three, of {n} samples"
    if tally.classes[:, 1].sum() != n:
        return "its labels do not add up to its samples"
    for name, part in {"reliability": tally.reliability, "fine": tally.fine}.items():
        if why := odd_bins(part.edges, part.sums()[None], n):
            return f"{name!r} {why}"
        if part.correct.sum() != tally.correct:
            return f"{name!r} has another number of correct samples"
        if abs(float(part.confidence_sum.sum()) - tally.confidence) > slack:
            return f"{name!r} has another sum of confidences"
    if why := odd_bins(tally.reliability.edges, tally.classes, n):
        return f"'classwise' {why}"
    if abs(sum(float(part.confidence_sum.sum()) for part in tally.classwise) - n) > slack * k:
        return "the classes' probabilities do not add up to 1"
    if not n / k - slack <= tally.confidence <= n + slack:
        return f"a summed confidence of {tally.confidence:g}, of {n} samples and {k} classes"
    if not -slack <= tally.brier <= 2 * n + slack or not -slack <= tally.nll <= HIGHEST * n:
        return "a loss that is negative, or more than samples can have"
    return ""


def odd_bins(edges: np.ndarray, sums: np.ndarray, n: int) -> str:
    """Why no n samples give these bins' sums, (…, 4, bins)."""
    count, correct, high, low = np.moveaxis(sums, 1, 0)
    if (sums < 0).any() or (count > n).any() or (high > n << 26).any() or (low > n << 26).any():
        return "has a sum that is negative, or more than there can be"
    if (count.sum(axis=-1) != n).any() or (correct > count).any():
        return "has counts that do not add up to its samples, or more hits than samples"
    confidence = Reliability(edges, count, correct, high, low).confidence_sum
    low_end, high_end = edges[:-1] * count - SLACK * count, edges[1:] * count + SLACK * count
    return "" if ((confidence >= low_end) & (confidence <= high_end)).all() else "has confidences outside of its bins"
