"""Means over classes with their intervals: the classes' own intervals, and the correlation of their errors.

The correlations come from the matrix of `joint.py`: every influence function is written as a combination of its functions, by
least squares over the class's points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedcal.assess.intervals import UNKNOWN, Estimate, Z
from fedcal.assess.joint import has_joint, knots, square, values
from fedcal.assess.sums import Points, ScoreSums

RIDGE = 1e-9  # functions without samples get no part
ASSUMED = 1.0  # of classes without the matrix: this over their number is the correlation, which doubles the variance


def mean_over(found: Sequence[Estimate], correlation: np.ndarray, bias: Sequence[float] = ()) -> Estimate:
    """The mean of classes' values.

    Half the lengths of the classes' intervals combine as standard errors do. An interval that reaches further up than down
    allows for skewness: of a mean that is less, as third moments add up.

    Args:
        found: the classes' estimates; those without a value are left out.
        correlation: (classes, classes) of their errors.
        bias: by how much each class's value is too high on average. It does not become smaller in a mean.
    """
    kept = [i for i, one in enumerate(found) if math.isfinite(one.value)]
    if not kept:
        return UNKNOWN
    value, low, high = np.array([found[i] for i in kept]).T
    excess = np.array([bias[i] for i in kept]) if len(bias) else np.zeros(len(kept))
    centre, half = float(value.mean()), (high - low) / 2
    apart, joint = float(half @ half), max(float(half @ correlation[np.ix_(kept, kept)] @ half), 0.0)
    length = math.sqrt(joint) / len(kept)
    skew = float(((low + high) / 2 - value + excess) @ half**2) / max(apart, 1e-300) / len(kept)
    skew *= min(joint / max(apart, 1e-300), 1.0)  # errors that cancel leave little of it
    middle = centre - float(excess.mean()) + skew
    return Estimate(centre, min(middle - length, centre), max(middle + length, centre))


def mean_uncertainty(cases: np.ndarray) -> Estimate:
    """The mean over K classes of p (1 − p): (1 − Simpson's index Σ p²) / K.

    If classes are about equally frequent, most of its variance is the term with 1 / n² (Simpson 1949).

    Args:
        cases: how many samples each class has.
    """
    n, k = float(cases.sum()), len(cases)
    if n < 2:
        return UNKNOWN
    square, cube = (float(((cases / n) ** power).sum()) for power in (2, 3))
    variance = 4 * max(cube - square**2, 0.0) / n + 2 * (square + square**2 - 2 * cube) / n**2
    value, half = (1 - square) / k, Z * math.sqrt(variance) / k
    middle = value * n / (n - 1)
    return Estimate(value, max(min(middle - half, value), 0.0), max(min(middle + half, (1 - 1 / k) / k), value))


class Together:
    """How the errors of the classes' measures go together."""

    def __init__(self, sums: ScoreSums) -> None:
        self.n_classes, self.n, self.known = sums.n_classes, max(sums.n, 1), has_joint(sums.n_classes)
        self._odds = math.log(sums.first / (1 - sums.first))
        if self.known:
            self._at = knots(sums.n_classes)
            matrix = square(sums.joint, sums.n_classes)
            blocks = matrix.reshape(self.n_classes, -1, self.n_classes, 2 * (len(self._at) + 1))
            each = blocks.reshape(self.n_classes, -1, self.n_classes, 2, len(self._at) + 1)
            totals = each[:, :, 0, :, :-1].sum((-1, -2))  # the sum of each function: class 0's hats add up to 1
            self._second, self._first = blocks / self.n, totals / self.n

    def coefficients(self, points: Points, moved: np.ndarray) -> np.ndarray:
        """Influence functions (points, several) as combinations of the functions of a class: (functions, several)."""
        at = values(points.x, points.x >= self._odds, self._at)
        found = np.zeros((2, at.shape[1], moved.shape[1]))
        for outcome in (0, 1):
            here = points.y == outcome
            design = at[here]
            weighted = design * points.w[here, None]
            ridge = RIDGE * max(float(points.w[here].sum()), 1.0) * np.eye(at.shape[1])
            found[outcome] = np.linalg.solve(weighted.T @ design + ridge, weighted.T @ moved[here])
        return found.reshape(-1, moved.shape[1])

    def correlations(
        self, classes: Sequence[tuple[Points, Mapping[str, np.ndarray]]], names: Sequence[str]
    ) -> np.ndarray:
        """The correlations (names, classes, classes) of measures' errors, of each class's points and influence functions."""
        if not self.known:
            rest = np.full((self.n_classes, self.n_classes), ASSUMED / self.n_classes)
            np.fill_diagonal(rest, 1.0)
            return np.broadcast_to(rest, (len(names), *rest.shape))
        found = [
            self.coefficients(points, np.stack([moved.get(name, np.zeros_like(points.x)) for name in names], 1))
            for points, moved in classes
        ]
        return correlation(self.covariance(np.stack(found)))

    def covariance(self, coefficients: np.ndarray) -> np.ndarray:
        """The covariances of classes' functions, (several, classes, classes), of their (classes, functions, several)."""
        products = np.einsum("jfkg,kgq->jkfq", self._second, coefficients, optimize=True)
        means = np.einsum("jf,jfq->jq", self._first, coefficients)
        return np.einsum("jkfq,jfq->qjk", products, coefficients) - np.einsum("jq,kq->qjk", means, means)

    def cross_covariance(self, coefficients: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
        """The covariances of all functions of some classes, (classes, several, classes, several)."""
        second, first = self._second[chosen][:, :, chosen], self._first[chosen]
        products = np.einsum("jfkg,kgq->jkfq", second, coefficients, optimize=True)
        means = np.einsum("jf,jfq->jq", first, coefficients)
        return np.einsum("jkfq,jfr->jrkq", products, coefficients, optimize=True) - np.multiply.outer(means, means)


def correlation(covariance: np.ndarray) -> np.ndarray:
    """Correlations (…, classes, classes); of an error that never varies, none with others."""
    spread = np.sqrt(np.maximum(np.diagonal(covariance, axis1=-2, axis2=-1), 0.0))
    most = spread.max(-1, keepdims=True, initial=0.0)
    scale = np.where(spread > 1e-9 * most, 1 / np.maximum(spread, 1e-300), 0.0)
    found = covariance * scale[..., None] * scale[..., None, :]
    here = np.arange(covariance.shape[-1])
    found[..., here, here] = 1.0
    return found
