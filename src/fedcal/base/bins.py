"""Bins of equal mass, from a histogram."""

from __future__ import annotations

import numpy as np


def equal_mass(count: np.ndarray, n_bins: int) -> np.ndarray:
    """Join neighbouring bins until each holds about 1/n of the samples.

    Args:
        count: the samples in each fine bin.
        n_bins: the number of bins wanted. Where a fine bin holds several shares, there are fewer.

    Returns:
        The first fine bin of each joined bin; the first is 0.
    """
    share = np.cumsum(count) / max(count.sum(), 1)
    cuts = np.unique(np.searchsorted(share, np.arange(1, n_bins) / n_bins - 1e-12) + 1)
    return np.concatenate([[0], cuts[cuts < len(count)]])
