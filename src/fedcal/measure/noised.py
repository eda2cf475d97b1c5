"""Tallies from noised sums: what differential privacy lets through of a measurement."""

from __future__ import annotations

import math

import numpy as np

from fedcal.base.arrays import Array
from fedcal.measure.reliability import Reliability, equal_width, limbs
from fedcal.measure.tally import FINE, Tally

SHARE = 0.5  # nats per sample: with more noise than that, a NLL says nothing


def noised_tally(losses: Array, table: Array, k: int, noise: float = 0.0) -> Tally:
    """Make a tally of noised sums.

    Counts are rounded, and brought within what counts can be. Metrics that need more than these sums (by class, or in bins of
    equal mass) are NaN in its `summary`; so is the NLL, where noise alone is worth more than SHARE of a nat per sample.

    Args:
        losses: summed NLL, Brier score, and samples whose label is in the top three.
        table: (3, bins) samples, hits and summed confidence in bins of equal width.
        k: classes.
        noise: the standard deviation of the noise on the summed NLL.
    """
    count = np.rint(np.maximum(table[0], 0)).astype(np.int64)
    hits = np.rint(np.clip(table[1], 0, count)).astype(np.int64)
    edges = equal_width(len(count))
    confidence = np.clip(table[2], count * edges[:-1], count * edges[1:])
    n, correct = int(count.sum()), int(hits.sum())
    nll, brier, third = losses.tolist()
    none = np.zeros(len(FINE) - 1, np.int64)
    return Tally(
        n=n,
        correct=correct,
        top3=min(max(round(third), correct), n),
        # By the sum with its noise: bins that are raised to 0 would make samples of noise alone.
        nll=max(nll, 0.0) if noise <= SHARE * max(float(table[0].sum()), 0.0) else math.nan,
        brier=min(max(brier, 0.0), 2.0 * n),
        confidence=float(confidence.sum()),
        reliability=Reliability(edges, count, hits, *(part.astype(np.int64) for part in limbs(confidence))),
        fine=Reliability(FINE, none, none, none, none),
        classes=np.zeros((k, 4, len(count)), np.int64),
    )
