"""Samples with a known calibration curve, for the tests of evaluations."""

from __future__ import annotations

import numpy as np
from scipy.special import expit

from fedcal.assess.sums import ScoreSums


def draw(n, seed=0, a=0.2, b=0.8, spread=1.5):
    """Log-odds x, and outcomes that follow σ(a + b x)."""
    rng = np.random.default_rng(seed)
    x = spread * rng.standard_normal(n) - 0.5
    return x, (rng.random(n) < expit(a + b * x)).astype(np.int64)


def classes(n, k, seed=0, scale=1.3):
    """Logits that are too large by `scale`, and labels."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k))
    return scale * z, (z + rng.gumbel(size=z.shape)).argmax(1)


def sums(x, y):
    """The sums of scores of class 1, or of logits."""
    logits = np.asarray(x, float)
    logits = np.stack([np.zeros_like(logits), logits], 1) if logits.ndim == 1 else logits
    return ScoreSums.of(logits, np.asarray(y))
