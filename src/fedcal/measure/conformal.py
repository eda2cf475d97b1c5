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

    n: int
    covered: int
    size: int  # of all sets together

    @classmethod
    def of(cls, sets: Any, labels: Any) -> SetTally:
        """Tally prediction sets.

        Args:
            sets: (N, K) booleans.
            labels: (N,) column numbers.
        """
        sets = as_array(sets)
        labels = check_labels(labels, *sets.shape)
        return cls(len(labels), int(sets[np.arange(len(labels)), labels].sum()), int(sets.sum()))

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
