"""Queries for differential privacy: sums whose summands are bounded, whatever the samples and the parameters are.

A reply is one flat vector: the sum over samples of summands with a norm of at most `bound`. The bounds are built in: logits
are first clipped to a norm of `clip`, probabilities are bounded anyway, and losses are cut off. So no request of a server
reveals more about a sample than the noise for `bound` allows. Whether a client replies depends on the query's shapes and
never on the samples (`fits`), because a refusal would reveal something about them. A symmetric matrix is sent as its upper
triangle; off-diagonal entries are multiplied by √2, so that the vector has the norm of the matrix.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, ClassVar, Literal

import numpy as np

from fedcal.base.arrays import Array, Params, logsumexp, softmax
from fedcal.base.logits import BLOCK
from fedcal.exact.linear import apply_linear, n_parameters
from fedcal.exact.prepared import Prepared
from fedcal.exact.queries import SumQuery

VALUES = "values"  # the name of the only array of a reply
NORMS = 2.0 ** np.arange(-10, 20.5, 0.5)  # edges of a histogram of the logits' norms
ODDS = np.linspace(-3, 12, 31)  # edges of a histogram of the top label's log-odds
BEYOND = np.array([3.0, 9.0, 27.0, 81.0])  # nats that a sample loses
FEATURE = 1.5  # largest norm of clipped logits as features; a constant 1 is added to them
CURVATURE = 0.5  # ‖diag p − p pᵀ‖ is at most this, for every p (reached at two classes of one half)
LARGEST = 1e6  # parameters are cut off here, so that nothing overflows
SHORTEST = 1e-100  # least `clip`: the norms of smaller logits would underflow
NUMBER = (int, float)
KINDS: dict[str, tuple[type, ...]] = {  # of what a query's fields hold
    "k": (int,), "budget": NUMBER, "per_client": (bool,), "labels": (bool,), "norms": (bool,), "clip": NUMBER,
    "t": (np.ndarray,), "full": (bool,), "w": (np.ndarray,), "family": (str,), "maps": (tuple,), "scale": NUMBER,
    "views": (int,), "bins": (int,),
}  # fmt: skip


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
    def is_typed(self) -> bool:
        """Whether each field holds what it should: a stranger's query may hold anything."""
        return all(_is_of(getattr(self, entry.name), KINDS[entry.name]) for entry in fields(self))

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


@dataclass(frozen=True)
class Scales(PrivateQuery):
    """Label counts (or only the number of samples) and, unless the norm is given, a histogram of the logits' norms."""

    norms: bool = True
    labels: bool = True

    @property
    def bound(self) -> float:
        return math.sqrt(1 + self.norms)

    @property
    def counts(self) -> int:
        """How many numbers of the reply come before the histogram."""
        return self.k if self.labels else 1

    @property
    def size(self) -> int:
        return self.counts + self.norms * (len(NORMS) + 1)

    def summed(self, z: Array, y: Array, weight: Array) -> Array:
        labels = np.bincount(y if self.labels else np.zeros_like(y), weight, self.counts)
        if not self.norms:
            return labels
        norms = np.searchsorted(NORMS, np.linalg.norm(z, axis=1))
        return np.concatenate([labels, np.bincount(norms, weight, len(NORMS) + 1)])


@dataclass(frozen=True)
class ScaleSums(PrivateQuery):
    """Gradient and Hessian of the temperature (t has one number) or of temperature and bias (1 + K numbers).

    If not `full`, only the diagonal of the Hessian by the bias. Scales refer to features: logits clipped to norm `clip`, then
    multiplied by FEATURE / clip.
    """

    clip: float
    t: Array
    full: bool = True
    weight: ClassVar[float] = 2.0  # of the Hessian relative to the gradient: a larger weight means less noise on it

    @property
    def fits(self) -> bool:
        return super().fits and self.t.shape in ((1,), (1 + self.k,))

    @property
    def families(self) -> tuple[str, ...]:
        return ("temperature" if self.t.shape == (1,) else "bias",)

    @property
    def bound(self) -> float:
        r, bias = FEATURE, float(len(self.t) > 1)
        return math.hypot(math.sqrt(2 * (bias + r * r)), self.weight * CURVATURE * (bias + r * r))

    @property
    def size(self) -> int:
        d = len(self.t)
        return d + (d * (d + 1) // 2 if self.full else d)

    def summed(self, z: Array, y: Array, weight: Array) -> Array:
        f, t = features(z, self.clip), bounded(self.t)
        p = softmax((t[0] * f + t[1:]) if len(t) > 1 else t[0] * f, 1)
        off, mean = residual(p, y), (p * f).sum(1, keepdims=True)
        across = p * (f - mean)
        slope, variance = (off * f).sum(1), (across * (f - mean)).sum(1)
        if len(t) == 1:
            return np.array([weight @ slope, self.weight * (weight @ variance)])
        gradient = np.append(weight @ slope, weight @ off)
        if not self.full:
            return np.concatenate([gradient, self.weight * np.append(weight @ variance, weight @ (p - p * p))])
        hessian = np.empty((len(t), len(t)))
        hessian[0, 0] = weight @ variance
        hessian[0, 1:] = hessian[1:, 0] = weight @ across
        hessian[1:, 1:] = np.diag(weight @ p) - (weight[:, None] * p).T @ p
        return np.concatenate([gradient, self.weight * triangle(hessian)])

    def read(self, values: Array) -> tuple[Array, Array]:
        """Gradient and Hessian from a reply's total."""
        d = len(self.t)
        curvature = values[d:] / self.weight
        return values[:d], square(curvature, d) if self.full else np.diag(curvature)


@dataclass(frozen=True)
class MatrixSums(PrivateQuery):
    """Gradient of a matrix (or, with `family` vector, of its diagonal and the bias), and two factors of its Hessian.

    The Hessian of the matrix is Σ (diag p − p pᵀ) ⊗ x xᵀ, with x the features and a 1. The factors are Σ (diag p − p pᵀ)
    and Σ (1 − ‖p‖²) x xᵀ: their product, divided by the sum of weights, is near it, and they have few numbers.
    """

    clip: float
    w: Array  # (K, K + 1)
    family: Literal["vector", "matrix"] = "matrix"
    of_classes: ClassVar[float] = 1.0  # weights of the factors, relative to the gradient
    of_inputs: ClassVar[float] = 0.5

    @property
    def fits(self) -> bool:
        return super().fits and self.w.shape == (self.k, self.k + 1) and self.family in ("vector", "matrix")

    @property
    def families(self) -> tuple[str, ...]:
        return (self.family,)

    @property
    def bound(self) -> float:
        r2 = 1 + FEATURE**2
        return math.hypot(math.sqrt(2 * r2), self.of_classes * CURVATURE, self.of_inputs * (1 - 1 / self.k) * r2)

    @property
    def size(self) -> int:
        k = self.k
        return self._gradient + k * (k + 1) // 2 + (k + 1) * (k + 2) // 2

    @property
    def _gradient(self) -> int:
        return self.k * (self.k + 1) if self.family == "matrix" else 2 * self.k

    def summed(self, z: Array, y: Array, weight: Array) -> Array:
        x = np.concatenate([features(z, self.clip), np.ones((len(z), 1))], 1)
        p = softmax(x @ bounded(self.w).T, 1)
        off = weight[:, None] * residual(p, y)
        if self.family == "matrix":
            gradient = (off.T @ x).ravel()
        else:
            gradient = np.concatenate([(off * x[:, :-1]).sum(0), off.sum(0)])
        classes = np.diag(weight @ p) - (weight[:, None] * p).T @ p
        inputs = x.T @ ((weight * np.maximum(1 - (p * p).sum(1), 0))[:, None] * x)
        return np.concatenate([gradient, self.of_classes * triangle(classes), self.of_inputs * triangle(inputs)])

    def read(self, values: Array) -> tuple[Array, Array, Array]:
        """The gradient, flat, and the factors by classes and by inputs, from a reply's total."""
        k = self.k
        gradient, classes, inputs = np.split(values, np.cumsum([self._gradient, k * (k + 1) // 2]))
        return gradient, square(classes / self.of_classes, k), square(inputs / self.of_inputs, k + 1)


@dataclass(frozen=True)
class Gains(PrivateQuery):
    """By how much each map lowers the loss of the one before it (the first: of the identity); each sample's gain is cut off.

    Also, for each map, how many samples lose far more than that compared with the identity, in the bins of BEYOND.
    """

    maps: tuple[dict[str, Array], ...]  # each with one linear map under its family's name
    most: ClassVar[float] = 3.0  # nats

    @property
    def fits(self) -> bool:
        sizes = [(n_parameters(family, self.k), t.shape) for one in self.maps for family, t in one.items()]
        return super().fits and 0 < len(self.maps) == len(sizes) and all((n,) == shape for n, shape in sizes)

    @property
    def families(self) -> tuple[str, ...]:
        return tuple(family for one in self.maps for family in one)

    @property
    def is_typed(self) -> bool:
        return super().is_typed and all(
            isinstance(one, dict) and all(_is_of(t, (np.ndarray,)) for t in one.values()) for one in self.maps
        )

    @property
    def bound(self) -> float:
        return math.hypot(self.most, 1) * math.sqrt(len(self.maps))

    @property
    def size(self) -> int:
        return len(self.maps) * (1 + len(BEYOND))

    def summed(self, z: Array, y: Array, weight: Array) -> Array:
        losses = [_losses(z, y)]
        for one in self.maps:
            ((family, t),) = one.items()
            losses.append(_losses(apply_linear(family, bounded(t), z), y))
        gains = np.stack([before - after for before, after in pairwise(losses)])
        gained = np.clip(np.nan_to_num(gains), -self.most, self.most) @ weight
        bins = [np.searchsorted(BEYOND, np.nan_to_num(after - losses[0])) for after in losses[1:]]
        return np.append(gained, [np.bincount(one, weight, 1 + len(BEYOND))[1:] for one in bins])

    def read(self, values: Array) -> tuple[Array, Array]:
        """The gains, and how many samples lose more than each of BEYOND by each map, from a reply's total."""
        gains, lost = np.split(values, [len(self.maps)])
        return gains, lost.reshape(len(self.maps), -1)[:, ::-1].cumsum(1)[:, ::-1]


@dataclass(frozen=True)
class Confidences(PrivateQuery):
    """Samples and hits by the log-odds of the top label under a scale: (2, bins), flat."""

    scale: float

    @property
    def families(self) -> tuple[str, ...]:
        return ("temperature",)

    @property
    def bound(self) -> float:
        return math.sqrt(2)

    @property
    def size(self) -> int:
        return 2 * (len(ODDS) + 1)

    def summed(self, z: Array, y: Array, weight: Array) -> Array:
        p = np.nan_to_num(softmax(min(max(self.scale, -LARGEST), LARGEST) * z, 1))
        top, label = p.max(1), p.argmax(1)
        with np.errstate(divide="ignore"):  # of a probability of 1
            bins = np.searchsorted(ODDS, np.nan_to_num(np.log(top) - np.log1p(-top)))
        rows = weight, weight * (label == y)
        return np.concatenate([np.bincount(bins, row, len(ODDS) + 1) for row in rows])


@dataclass(frozen=True)
class Measure(PrivateQuery):
    """Sums that measure several views of the same samples: for each, cut-off losses and a reliability table.

    The samples' logits are those of all views side by side, (N, views · K). For each view: NLL and Brier score, divided by
    their largest values; how often the label is in the top three; and for each confidence bin the number of samples, the
    number of correct ones, and their summed confidence.
    """

    measures: ClassVar[bool] = True
    most: ClassVar[float] = 10.0  # nats of one sample that count

    views: int
    bins: int

    @property
    def fits(self) -> bool:
        return super().fits and self.views > 0 and self.bins > 0

    @property
    def width(self) -> int:
        return self.views * self.k

    @property
    def bound(self) -> float:
        return math.sqrt(6 * self.views)

    @property
    def size(self) -> int:
        return self.views * (3 + 3 * self.bins)

    def summed(self, z: Array, y: Array, weight: Array) -> Array:
        views = z.reshape(len(y), self.views, self.k)
        return np.concatenate([self._of_view(views[:, view], y, weight) for view in range(self.views)])

    def _of_view(self, u: Array, y: Array, weight: Array) -> Array:
        p = np.nan_to_num(softmax(u, 1))
        top, label = p.max(1), p.argmax(1)
        losses = np.clip(np.nan_to_num(_losses(u, y), nan=self.most), 0, self.most) / self.most
        brier = (residual(p, y) ** 2).sum(1) / 2
        third = ((u > u[np.arange(len(y)), y][:, None]).sum(1) < 3).astype(float)
        bins = np.searchsorted(np.linspace(0, 1, self.bins + 1)[1:-1], top)
        rows = weight, weight * (label == y), weight * top
        table = [np.bincount(bins, row, self.bins) for row in rows]
        return np.concatenate([[weight @ losses, weight @ brier, weight @ third], *table])

    def read(self, values: Array) -> list[tuple[Array, Array]]:
        """For each view the summed NLL, Brier score and top three, and the table (3, bins), from a reply's total."""
        rows, units = values.reshape(self.views, -1), np.array([self.most, 2.0, 1.0])
        return [(row[:3] * units, row[3:].reshape(3, self.bins)) for row in rows]


# What a server may ask. `Measure` is not among them: a client makes it itself, for its own number of classes. A server's
# `Measure` of fewer classes and more views would have as many logits, and fail at the first label of another class.
PRIVATE_QUERIES: tuple[type[PrivateQuery], ...] = (Scales, ScaleSums, MatrixSums, Gains, Confidences)


# --- pieces --------------------------------------------------------------------------------------------------------------


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
    i, j = np.triu_indices(len(matrix))
    return np.where(i == j, 1.0, math.sqrt(2)) * matrix[i, j]


def square(values: Array, d: int) -> Array:
    """The symmetric (d, d) matrix of a triangle."""
    i, j = np.triu_indices(d)
    matrix = np.zeros((d, d))
    matrix[i, j] = matrix[j, i] = np.where(i == j, values, values / math.sqrt(2))
    return matrix


def _is_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of these types; True and False are no numbers."""
    return isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))


def _losses(u: Array, y: Array) -> Array:
    return logsumexp(u, 1) - u[np.arange(len(y)), y]
