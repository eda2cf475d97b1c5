"""The bins of an evaluation: of the log-odds of each class's probability, the same at every site."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from fedcal.base.arrays import Array, put
from fedcal.base.checks import SMALLEST

LIMIT = 40.0  # log-odds beyond are not told apart
CERTAIN = -float(np.log(SMALLEST))  # minus the log-odds of a probability of 0
SAME = 1e-6  # log-odds that differ by less from those of a probability of 0 or 1 are taken for these
FINE = 4096  # bins of up to 16 classes
MOST = 1 << 16  # bins of all classes together; at least 128 of each


@dataclass(frozen=True)
class Grid:
    """The bins of the log-odds x: evenly spaced in 2 asinh(x/2), that is narrow around 0 and wider in the tails."""

    edges: np.ndarray  # (bins + 1,)

    @property
    def middle(self) -> np.ndarray:
        return (self.edges[1:] + self.edges[:-1]) / 2

    @property
    def width(self) -> np.ndarray:
        return np.diff(self.edges)

    def find(self, x: np.ndarray) -> np.ndarray:
        """The bin of each log-odds within the limit."""
        bins = len(self.edges) - 1
        reach = 2 * np.arcsinh(LIMIT / 2)
        at = ((2 * np.arcsinh(x / 2) / reach + 1) * (bins / 2)).astype(np.int64)
        return np.minimum(at, bins - 1)


@cache
def grid(n_classes: int) -> Grid:
    """The bins for that many classes."""
    reach = 2 * np.arcsinh(LIMIT / 2)
    return Grid(2 * np.sinh(np.linspace(-reach, reach, n_bins(n_classes) + 1) / 2))


def locate(x: np.ndarray, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The bin of each log-odds, and the distance to the bin's middle in its widths.

    Log-odds beyond the limit count as the middle of the bin at that end. Those of probabilities of exactly 0 or 1 count as
    the limit itself, the bin's outer edge, so that sums tell whether all its scores are equal.
    """
    at = grid(n_classes)
    within = np.where(np.abs(x) > LIMIT, np.where(x > 0, at.middle[-1], at.middle[0]), x)
    bins = at.find(within)
    offset = (within - at.middle[bins]) / at.width[bins]
    offset[np.abs(x + CERTAIN) < SAME] = -0.5
    offset[np.abs(x - CERTAIN + np.log(n_classes - 1)) < SAME] = 0.5  # all others are 0
    return bins, offset


def n_bins(n_classes: int) -> int:
    """How many bins each row has."""
    rows = n_rows(n_classes)
    return FINE if rows <= MOST // FINE + 1 else 1 << max(7, int(np.log2(MOST / rows)))


def n_rows(n_classes: int) -> int:
    """One row for each class and one for the top class; of two classes, class 1 alone."""
    return 1 if n_classes == 2 else n_classes + 1


def log_odds(z: Array) -> Array:
    """log p/(1 − p) of every class, without loss of digits where p is close to 1."""
    if z.shape[1] == 2:
        odds = z[:, 1] - z[:, 0]
        return np.stack([-odds, odds], 1)
    shifted = z - z.max(1, keepdims=True)
    parts = np.exp(shifted)
    top = parts.argmax(1)[:, None]
    others = parts.sum(1, keepdims=True) - parts  # of the top class this loses digits: its own sum follows
    rest = put(parts, top, 0.0).sum(1, keepdims=True)
    return shifted - np.log(np.maximum(put(others, top, rest), 1e-300))
