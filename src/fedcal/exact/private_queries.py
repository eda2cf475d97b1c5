"""The queries of a private fit and of its measurement (`private_query.py` says what they have in common)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from fedcal.base.arrays import Array, logsumexp, softmax
from fedcal.exact.linear import apply_linear, n_parameters
from fedcal.exact.private_query import FEATURE, LARGEST, PrivateQuery, bounded, features, residual, square, triangle

NORMS = 2.0 ** np.arange(-10, 20.5, 0.5)  # edges of a histogram of the logits' norms
ODDS = np.linspace(-3, 12, 31)  # edges of a histogram of the top label's log-odds
BEYOND = np.array([3.0, 9.0, 27.0, 81.0])  # nats that a sample loses
CURVATURE = 0.5  # ‖diag p − p pᵀ‖ is at most this, for every p (reached at two classes of one half)


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
        return values[:d], square(curvature) if self.full else np.diag(curvature)


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
        return gradient, square(classes / self.of_classes), square(inputs / self.of_inputs)


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


def _losses(u: Array, y: Array) -> Array:
    return logsumexp(u, 1) - u[np.arange(len(y)), y]
