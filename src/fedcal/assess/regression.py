"""Logistic regression on weighted points: intercept and slope of the log-odds, and a smooth calibration curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit
from scipy.stats import chi2

from fedcal.assess.intervals import UNKNOWN, Estimate, Z, wald
from fedcal.assess.sums import Points

KNOTS = (0.05, 0.35, 0.65, 0.95)  # quantiles of the log-odds (Harrell 2015)
FEW = 100  # samples, below which the curve is a straight line in log-odds
STEPS = 50
STEEPEST = 1e4  # a coefficient beyond this: the samples are separable, and there is none


@dataclass(frozen=True)
class Fit:
    """Coefficients of a logistic regression and their covariance: the model's, and one that holds if the model is wrong."""

    beta: np.ndarray
    covariance: np.ndarray
    robust: np.ndarray  # Huber's and White's sandwich

    def estimate(self, i: int) -> Estimate:
        """A coefficient with Wald's interval.

        By the robust covariance: the intercept's model has slope 1, and of a model that is far too confident its own
        covariance gives intervals that hold the truth in 86 % of draws.
        """
        return wald(float(self.beta[i]), math.sqrt(self.robust[i, i]))


def logistic(design: np.ndarray, y: np.ndarray, w: np.ndarray, offset: np.ndarray | float = 0.0) -> Fit | None:
    """Fit by Newton steps that are halved until the likelihood rises; None where it has no maximum."""
    beta, best = np.zeros(design.shape[1]), -math.inf
    step = np.zeros_like(beta)
    for _ in range(STEPS):
        eta = offset + design @ beta
        likelihood = float(w @ (y * eta - np.logaddexp(0, eta)))
        if likelihood < best - 1e-12 * abs(best):
            step /= 2
            beta = beta - step
            continue
        best, p = likelihood, expit(eta)
        hessian = (design * (w * p * (1 - p))[:, None]).T @ design
        try:
            step = np.linalg.solve(hessian, design.T @ (w * (y - p)))
        except np.linalg.LinAlgError:
            return None
        if not np.isfinite(step).all() or np.abs(beta + step).max() > STEEPEST:
            return None
        beta = beta + step
        if np.abs(step).max() <= 1e-12 * (1 + np.abs(beta).max()):
            covariance = np.linalg.inv(hessian)
            half = covariance @ (design * (np.sqrt(w) * (y - p))[:, None]).T
            return Fit(beta, covariance, half @ half.T) if (covariance.diagonal() > 0).all() else None
    return None


def has_both(points: Points) -> bool:
    """Whether there are samples of the class, and others."""
    return bool(points.w[points.y == 1].sum() and points.w[points.y == 0].sum())


def intercept(points: Points) -> Estimate:
    """Calibration in the large: the shift of all log-odds that makes the mean prediction right; 0 is calibrated."""
    fit = logistic(np.ones((len(points.x), 1)), points.y, points.w, points.x) if has_both(points) else None
    return fit.estimate(0) if fit else UNKNOWN


def slope(points: Points) -> Estimate:
    """The calibration slope: below 1 predictions are too extreme, above 1 too timid."""
    if not has_both(points) or np.ptp(points.x) < 1e-9:
        return UNKNOWN
    fit = logistic(np.stack([np.ones_like(points.x), points.x], axis=1), points.y, points.w)
    return fit.estimate(1) if fit else UNKNOWN


def with_slope(points: Points, value: float) -> np.ndarray:
    """The probabilities with this slope, at the level that belongs to it."""
    # A steep slope away from 0 gives probabilities of 0 or 1, from which Newton's steps do not start: hence centred.
    eta = value * (points.x - np.average(points.x, weights=points.w))
    level = logistic(np.ones((len(eta), 1)), points.y, points.w, eta)
    return expit(eta + (level.beta[0] if level else 0.0))


def quantiles(x: np.ndarray, w: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Weighted quantiles: the value at which the sum of weights first reaches each share."""
    order = np.argsort(x, kind="stable")
    reached = np.cumsum(w[order])
    at = np.searchsorted(reached, shares * reached[-1] - 1e-9, side="left")
    return x[order][np.minimum(at, len(x) - 1)]


def choose_knots(points: Points) -> np.ndarray:
    """The spline's knots: quantiles of the log-odds, or a single one, for a straight line, where there are few samples.

    Of as few different scores as there are knots, each is one: the curve then goes through the rate at every score (of scores
    with one outcome only, through that of half a sample more of each: `with_both_outcomes`).
    """
    scores = np.unique(points.x[points.w > 0])
    knots = scores if len(scores) <= len(KNOTS) else np.unique(quantiles(points.x, points.w, np.array(KNOTS)))
    straight = len(knots) < 3 or points.w.sum() < FEW or (np.diff(knots) < 1e-6).any()
    return knots[:1] if straight else knots


def with_both_outcomes(points: Points) -> Points:
    """Add half a sample of each outcome at scores that have one outcome only: a curve through such a rate has no maximum."""
    yes, no = (set(points.x[(points.y == one) & (points.w > 0)].tolist()) for one in (1, 0))
    x = np.array(sorted(yes ^ no))
    if not len(x):
        return points
    added = np.concatenate([points.x, x, x]), np.concatenate([points.y, 0 * x, 0 * x + 1])
    return Points(*added, np.concatenate([points.w, np.full(2 * len(x), 0.5)]))


@dataclass(frozen=True)
class Curve:
    """A smooth calibration curve: a restricted cubic spline of the log-odds, fitted by logistic regression."""

    knots: np.ndarray
    fit: Fit

    @classmethod
    def of(cls, points: Points) -> Curve | None:
        """The curve of these points; None where they are of one class, or separable."""
        if not has_both(points):
            return None
        knots = choose_knots(points)
        if len(knots) == len(np.unique(points.x[points.w > 0])):
            points = with_both_outcomes(points)
        for some in (knots, knots[:1]):
            design = basis(points.x, some)
            if np.ptp(points.x) < 1e-9:
                design = design[:, :1]
            if fit := logistic(design, points.y, points.w):
                return cls(some, fit)
        return None

    def design(self, x: np.ndarray) -> np.ndarray:
        return basis(x, self.knots)[:, : len(self.fit.beta)]

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The curve at log-odds x and its 95 % band, as probabilities."""
        design = self.design(x)
        eta = design @ self.fit.beta
        variance = np.einsum("ij,jk,ik->i", design, self.fit.covariance, design)
        error = Z * np.sqrt(np.maximum(variance, 0.0))  # by rounding it may be below 0
        return expit(eta), expit(eta - error), expit(eta + error)

    def excess(self, points: Points) -> float:
        """By how much the variance of the curve over its own points is too large: by its degrees of freedom."""
        n, right = points.w.sum(), self.at(points.x)[0]
        return (len(self.fit.beta) - 1) * float(points.w @ (right * (1 - right))) / n / n


def basis(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """1, x, and for each knot but the last two a cubic that is linear beyond the outer knots."""
    columns = [np.ones_like(x), x]
    if len(knots) >= 3:
        last, before, scale = knots[-1], knots[-2], (knots[-1] - knots[0]) ** 2

        def cube(knot: float) -> np.ndarray:
            return np.maximum(x - knot, 0.0) ** 3

        for knot in knots[:-2]:
            bent = cube(before) * (last - knot) / (last - before) - cube(last) * (before - knot) / (last - before)
            columns.append((cube(knot) - bent) / scale)
    return np.stack(columns, axis=1)


def outcome_variance(x: np.ndarray) -> np.ndarray:
    """p(1 − p) at log-odds x: more than 0 also where p rounds to 1."""
    return expit(x) * expit(-x)


def score_test(points: Points) -> tuple[float, int, float]:
    """Rao's score test that the probabilities are right, against the spline's alternatives: χ², degrees of freedom, and p.

    Where an outcome is rare, or the model sure, the statistic varies more than χ² does: a single surprise can make it large.
    So p is that of a scaled χ² with the statistic's exact mean and variance (of probabilities that are right). If hardly any
    surprise is expected, that one is nearly always close to 0, which the statistic is not: p is at least the usual one.
    """
    design, p, spread = basis(points.x, choose_knots(points)), expit(points.x), outcome_variance(points.x)
    scale = np.sqrt(np.maximum((design**2 * points.w[:, None]).sum(0), 1e-300))
    design = design / scale
    score = design.T @ (points.w * (points.y - p))
    information = (design * (points.w * spread)[:, None]).T @ design
    values, vectors = np.linalg.eigh(information)
    kept = values > 1e-10 * values.max()
    statistic, freedom = float(((vectors.T @ score)[kept] ** 2 / values[kept]).sum()), int(kept.sum())
    leverage = ((design @ vectors[:, kept]) ** 2 / values[kept]).sum(1)
    # Its variance is 2 · freedom, as χ² has, and the outcomes' fourth cumulants by their leverages.
    extra = float(points.w * spread * (1 - 6 * spread) @ leverage**2)
    stretch = max(1 + extra / (2 * freedom), 1.0)
    usual, scaled = chi2.sf([statistic, statistic / stretch], [freedom, freedom / stretch])
    return statistic, freedom, float(max(usual, scaled))


def spiegelhalter(points: Points) -> float:
    """Spiegelhalter's (1986) z: whether the Brier score is what right probabilities would give."""
    p = expit(points.x)
    variance = points.w @ ((1 - 2 * p) ** 2 * outcome_variance(points.x))
    return float(points.w @ ((points.y - p) * (1 - 2 * p)) / math.sqrt(variance)) if variance > 0 else math.nan
