"""A client's reply as a claim about its samples, and the rounding that its sums may have: for plausible.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.checks import SPREAD
from fedcal.base.query import Query, leaves, magnitude
from fedcal.errors import FedCalError
from fedcal.exact.linear import unpack_symmetric
from fedcal.protocol.messages import Reply

RELATIVE = 1e-9  # rounding of a sum, relative to its terms
TINY = 1e-150  # the least unit that Hessians are measured in: its square is still a number


@dataclass(frozen=True)
class Known:
    """What a client has declared in earlier rounds of a fit."""

    n: int | None = None  # its samples
    squares: float | None = None  # the sum of its squared logits
    probs: bool = False  # whether its scores are probabilities
    trained: float = 0.0  # its training samples, where a method takes them
    features: float | None = None  # the sum of squares of its features

    def after(self, reply: Reply) -> Known:
        """Return what is known after one more reply."""
        known, content = replace(self, n=reply.n, probs=reply.probs), reply.content
        if reply.privacy:
            return known
        if "squares" in content:
            known = replace(known, squares=float(content["squares"]))
        if "trained" in content and "moment" in content:
            features = float(unpack_symmetric(content["moment"]).diagonal().sum())
            known = replace(known, trained=float(content["trained"].sum()), features=features)
        return known


@dataclass(frozen=True)
class Claim:
    """A reply's content, and what is known of the client that sent it."""

    client: str
    query: Query
    content: Params
    n: int  # samples that the client declares
    n_classes: int
    known: Known
    clients: int = 1  # whose sums these are: more than one where they come added up

    @property
    def size(self) -> float:
        """The largest parameter that the query is about, at least 1: logits are multiplied by it."""
        return max([1.0, *(magnitude(leaf) for _, leaf in leaves(self.query))])

    @property
    def norm(self) -> float:
        """The root of the client's summed squared logits, or the most that it can be."""
        most = self.n * self.n_classes * SPREAD**2
        return math.sqrt(most if self.known.squares is None else self.known.squares)

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
