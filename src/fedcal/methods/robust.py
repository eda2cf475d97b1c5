"""Averages that a few wrong scalers cannot move far, for methods whose clients send scalers: coordinate by coordinate."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fedcal.base.arrays import Params

Robust = Literal["median", "trimmed"]
TRIM = 0.2  # the share of clients left out at either end


def robust_mean(scalers: list[Params], how: Robust) -> Params:
    """The median of the clients' values, or the mean without the lowest and the highest fifth (at least one each)."""
    out: Params = {}
    for name, first in scalers[0].items():
        values = np.sort(np.stack([params[name] for params in scalers], dtype=float), axis=0)
        n = len(values)
        cut = (n - 1) // 2 if how == "median" else min(max(1, round(TRIM * n)), (n - 1) // 2)
        out[name] = values[cut : n - cut].mean(0).astype(first.dtype)
    return out
