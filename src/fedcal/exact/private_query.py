"""Sums for differential privacy: a query whose summands are bounded, and the pieces that bound them.

A reply is one flat vector: the sum over samples of summands with a norm of at most `bound`. The bounds are built in: logits
are first clipped to a norm of `clip`, probabilities are bounded anyway, and losses are cut off. So no request of a server
reveals more about a sample than the noise for `bound` allows. Whether a client replies depends on the query's shapes and
never on the samples (`fits`), because a refusal would reveal something about them. A symmetric matrix is sent as its upper
triangle; off-diagonal entries are multiplied by √2, so that the vector has the norm of the matrix.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.logits import BLOCK
from fedcal.exact.linear import pack_symmetric, unpack_symmetric
from fedcal.exact.prepared import Prepared
from fedcal.exact.queries import SumQuery

VALUES = "values"  # the name of the only array of a reply
FEATURE = 1.5  # largest norm of clipped logits as features; a constant 1 is added to them
LARGEST = 1e6  # parameters are cut off here, so that nothing overflows
SHORTEST = 1e-100  # least `clip`: the norms of smaller logits would underflow


@dataclass(frozen=True)
class PrivateQuery(SumQuery):
    """A query whose reply may be noised."""

    measures: ClassVar[bool] = False  # whether it uses the budget for measuring, not the one for fitting

    k: int  # classes
    budget: float  # the share of the budget for fitting (or for measuring) that it takes
    per_client: bool = field(default=False, kw_only=True)  # each client's mean counts: it weighs as one sample

    @property
    @abstractmethod
    def bound(self) -> float:
        """The largest norm of a summand."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many numbers the reply has."""

    @property
    def fits(self) -> bool:
        """Whether its parameters have the right shapes for its number of classes."""
        return self.k >= 2

    @property
    def families(self) -> tuple[str, ...]:
        """The family of each map of logits that it holds."""
        return ()

    @abstractmethod
    def summed(self, z: Array, y: Array, weight: Array) -> Array:
        """The weighted sum of the summands of samples with row-centred logits z (N, K)."""

    @property
    def width(self) -> int:
        """How many logits a sample has."""
        return self.k

    def reply(self, samples: Prepared) -> Params:
        if not self.fits or samples.logits.shape[1] != self.width:
            raise ValueError(f"its parameters are not those of {samples.logits.shape[1]} logits per sample")
        total, counts = np.zeros(self.size), np.array(samples.counts, float)
        rows = max(1, BLOCK // self.k)
        for first in range(0, len(samples.labels), rows):
            here = slice(first, first + rows)
            z, y = samples.logits[here].astype(float), samples.labels[here]
            weight = 1 / counts[samples.client[here]] if self.per_client else np.ones(len(y))
            total += self.summed(z - z.mean(1, keepdims=True), y, weight)
        return {VALUES: total}


def features(z: Array, clip: float) -> Array:
    """Logits clipped to norm `clip`, in units of clip / FEATURE."""
    norm, clip = np.linalg.norm(z, axis=1, keepdims=True), max(clip, SHORTEST)
    return np.nan_to_num(np.where(norm <= clip, z / clip, z / np.maximum(norm, 1e-300))) * FEATURE


def bounded(t: Array) -> Array:
    """Parameters from an untrusted server, cut off."""
    return np.clip(np.nan_to_num(t.astype(float)), -LARGEST, LARGEST)


def residual(p: Array, y: Array) -> Array:
    """p minus the label's indicator: of norm √2 at most."""
    return p - (y[:, None] == np.arange(p.shape[1]))


def triangle(matrix: Array) -> Array:
    """The upper triangle of a symmetric matrix, as a vector with the same norm."""
    return pack_symmetric(np.where(np.eye(len(matrix)), matrix, math.sqrt(2) * matrix))


def square(values: Array) -> Array:
    """The symmetric matrix of a triangle."""
    matrix = unpack_symmetric(values)
    return np.where(np.eye(len(matrix)), matrix, matrix / math.sqrt(2))
