"""Coverage and size of conformal sets, as sums that add over clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import as_array
from fedcal.base.checks import check_labels


@dataclass(frozen=True)
class SetTally:
    """Sums that add with `+`: coverage and mean size of the sets of any number of clients."""

    n: float  # samples, or the sum of their weights
    covered: float
    size: float

    @classmethod
    def of(cls, sets: Any, labels: Any, weights: Any = None) -> SetTally:
        """Tally prediction sets.

        Args:
            sets: (N, K) booleans.
            labels: (N,) column numbers.
            weights: (N,) weights of the samples; 1 each if not given.
        """
        sets = as_array(sets)
        labels = check_labels(labels, *sets.shape)
        w = np.ones(len(labels)) if weights is None else as_array(weights).astype(float)
        covered = sets[np.arange(len(labels)), labels]
        return cls(float(w.sum()), float(w @ covered), float(w @ sets.sum(1)))

    def __add__(self, other: SetTally) -> SetTally:
        return SetTally(self.n + other.n, self.covered + other.covered, self.size + other.size)

    @property
    def coverage(self) -> float:
        """The share of samples whose label is in the set."""
        return self.covered / self.n if self.n else float("nan")

    @property
    def mean_size(self) -> float:
        """The mean number of classes in a set."""
        return self.size / self.n if self.n else float("nan")
