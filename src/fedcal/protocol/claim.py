"""A client's reply as a claim about its samples, and the rounding that its sums may have: for plausible.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.checks import SPREAD
from fedcal.base.query import Query, leaves, magnitude
from fedcal.errors import FedCalError

RELATIVE = 1e-9  # rounding of a sum, relative to its terms
TINY = 1e-150  # the least unit that Hessians are measured in: its square is still a number


@dataclass(frozen=True)
class Claim:
    """A reply's content, and what is known of the client that sent it."""

    client: str
    query: Query
    content: Params
    n: int  # samples that the client declares
    n_classes: int
    squares: float | None = None  # the sum of the client's squared logits, once it has declared it
    clients: int = 1  # whose sums these are: more than one where they come added up
    trained: float = 0.0  # training samples beside the n, where a method takes them
    features: float | None = None  # the sum of squares of the features of all its samples, once it has declared it

    @property
    def size(self) -> float:
        """The largest parameter that the query is about, at least 1: logits are multiplied by it."""
        return max([1.0, *(magnitude(leaf) for _, leaf in leaves(self.query))])

    @property
    def norm(self) -> float:
        """The root of the client's summed squared logits, or the most that it can be."""
        most = self.n * self.n_classes * SPREAD**2
        return math.sqrt(most if self.squares is None else self.squares)

    def require(self, holds: Any, name: str, why: str) -> None:
        """Raise `FedCalError` that names the client and the field, unless the condition holds."""
        if not bool(holds):
            raise FedCalError(f"{self.client}'s reply: {name!r} {why}")


def has_root(matrices: Array) -> bool:
    """Whether each matrix has a Cholesky factor: it is positive definite."""
    try:
        return bool(np.isfinite(np.linalg.cholesky(matrices)).all())
    except np.linalg.LinAlgError:
        return False
