"""Means over classes of the distances to the calibration curves: ICI, E50, E90 and the Brier score's calibration part.

Each class's error is above 0 by chance alone, and a mean over classes does not make that smaller. So the ends are found as
those of one class are (`calibration.py`), for all classes at once: curves between perfect calibration and the fitted ones,
and beyond, are taken as the truth, and samples of all classes are drawn from them, with the classes' errors correlated as
they were measured. The ends are the errors of the first and the last truth under which the measured mean is not too large
or too small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

from fedcal.assess.calibration import ERRORS, HARD, LEAST, curve_shift, error_values
from fedcal.assess.influence import curve_influences
from fedcal.assess.intervals import UNKNOWN, Estimate, Z, crossing
from fedcal.assess.means import Together
from fedcal.assess.regression import Curve, quantiles
from fedcal.assess.sums import Points

DRAWS = 1600  # the ends are quantiles of these; by those of 400, intervals over 4 classes held in 92.6 %
PLACES = 40  # points of equal mass at which a class's curve is looked at: E50 and E90 lie between two of them
STEPS = 7  # truths on either side of the fitted one, between which an end is interpolated
REACH = 3.0  # how far they go, in units of the noise
TAIL = 0.025
MOST_EXCLUDED = 0.0005  # share of samples with an outcome of probability 0; beyond, intervals hold too seldom
QUANTILES = np.array([name in ("e50", "e90") for name in ERRORS])

Class = tuple[int, Points, Curve]  # a class's number, its points and its curve


class Place:
    """A class's curve at a few points, and the noise with which it is measured."""

    def __init__(self, points: Points, curve: Curve, draws: np.ndarray) -> None:
        self.x = quantiles(points.x, points.w, (np.arange(PLACES) + 0.5) / PLACES)
        self.p, self.draws = expit(self.x), draws
        self._design, self._mass = curve.design(self.x), points.w.sum() / PLACES
        self.fitted = self._design @ curve.fit.beta - self.x
        self.shift = curve_shift(self.x, self.fitted)
        self.measured = statistics(np.abs(expit(self.x + self.fitted) - self.p))
        self.values, self.variance = error_values(points, curve)
        self.null = self.sample(self.x)  # if the class were calibrated
        self.is_off = bool((self.null[:, 0] >= self.measured[0]).mean() < TAIL)

    def sample(self, truth: np.ndarray) -> np.ndarray:
        """Errors that would be measured if these log-odds were the truth: (draws, measures).

        The noise is that of probabilities: of a rare class, normal noise of the log-odds would be far too skew.
        """
        right = expit(truth)
        spread = right * (1 - right)
        hessian = (self._design * (self._mass * spread)[:, None]).T @ self._design
        noise = spread * (self.draws @ (self._design @ root(hessian, -0.5)).T)
        return statistics(np.abs(self.p - np.clip(right + noise, 0.0, 1.0)))


def statistics(gaps: np.ndarray) -> np.ndarray:
    """The measures of gaps at points of equal mass, in the order of `ERRORS`."""
    ordered = np.sort(gaps, axis=-1)
    half, most = (ordered[..., at - 1 : at + 1].mean(-1) for at in (PLACES // 2, PLACES * 9 // 10))
    return np.stack([gaps.mean(-1), half, most, (gaps**2).mean(-1)], axis=-1)


def root(matrix: np.ndarray, power: float) -> np.ndarray:
    """A power of a symmetric matrix; directions without weight get none."""
    values, vectors = np.linalg.eigh(matrix)
    kept = values > 1e-9 * values[-1]
    return (vectors * np.where(kept, np.maximum(values, 1e-300) ** power, 0.0)) @ vectors.T


def mean_errors(classes: Sequence[Class], together: Together) -> dict[str, Estimate]:
    """The means over the classes that have a curve, with their intervals.

    The lower end takes classes whose error may be chance (2.5 %) as calibrated: if all had a part of what was measured, the
    mean would be taken for larger than it is where few classes are off. The upper end is that of the fitted curves, or of
    shifts of the log-odds as large, whichever is higher. Both allow for the samples at which the curves are looked at.
    """
    if not classes:
        return dict.fromkeys(ERRORS, UNKNOWN)
    if any(excluded(points) > MOST_EXCLUDED for _, points, _ in classes):
        return dict(zip(ERRORS, map(Estimate, _values(classes)), strict=True))
    drawn = correlated_draws(classes, together)
    places = [Place(points, curve, z) for (_, points, curve), z in zip(classes, drawn, strict=True)]
    measured, value = (np.mean([getattr(one, name) for one in places], axis=0) for name in ("measured", "values"))
    null = np.mean([one.null for one in places], axis=0)
    seen = np.maximum(measured, np.median(null, axis=0))  # for the upper ends, as of one class
    noise = float(null[:, 0].mean() / max(measured[0], LEAST))
    less, more = np.linspace(max(0.0, 1 - REACH * noise), 1, STEPS), np.linspace(1, 1 + REACH * noise, STEPS)

    exact, samples = _family(places, [one.fitted * one.is_off for one in places], less)
    low = _cross(exact, np.quantile(samples, 1 - TAIL, axis=1), measured, last=False)
    exact, samples = _family(places, [one.shift for one in places], np.concatenate([less[:-1], more]))
    small = np.quantile(samples, TAIL, axis=1)
    shifted = np.where((small <= seen).any(axis=0), _cross(exact, -small, -seen, last=True), 0.0)
    exact, samples = _family(places, [one.fitted for one in places], more)
    high = np.maximum(_cross(exact, -np.quantile(samples, TAIL, axis=1), -seen, last=True), shifted)
    # How much higher a quantile is by chance the draws tell too roughly to take it off.
    spread = samples[0].mean(0) - np.quantile(samples[0], TAIL, axis=0)
    high = np.where(QUANTILES, np.maximum(high, measured + spread), high)

    scale = value / np.maximum(measured, 1e-300)  # the points are few
    wobble = Z**2 * np.sum([one.variance for one in places], axis=0) / len(places) ** 2
    below, above = np.maximum(value - low * scale, 0.0), np.maximum(high * scale - value, 0.0)
    low, high = value - np.sqrt(below**2 + wobble), value + np.sqrt(above**2 + wobble)
    return {
        name: Estimate(*map(float, one)) for name, *one in zip(ERRORS, value, np.maximum(low, 0.0), high, strict=True)
    }


def excluded(points: Points) -> float:
    """The share of samples whose outcome has a probability of 0."""
    wrong = (np.abs(points.x) > HARD) & (points.y != (points.x > 0))
    return float(points.w[wrong].sum() / max(points.w.sum(), 1e-300))


def _values(classes: Sequence[Class]) -> list[float]:
    """The means over classes alone, in the order of `ERRORS`."""
    return np.mean([error_values(points, curve)[0] for _, points, curve in classes], axis=0).tolist()


def _family(
    places: Sequence[Place], directions: Sequence[np.ndarray], shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The true means under shares of the classes' directions, (shares, measures), and means that would be measured."""
    exact, drawn = np.zeros((len(shares), len(ERRORS))), np.zeros((len(shares), DRAWS, len(ERRORS)))
    for one, direction in zip(places, directions, strict=True):
        truths = one.x + shares[:, None] * direction
        exact += statistics(np.abs(one.p - expit(truths)))
        drawn += np.stack([one.sample(truth) for truth in truths]) if direction.any() else one.null
    return exact / len(places), drawn / len(places)


def _cross(exact: np.ndarray, ends: np.ndarray, measured: np.ndarray, last: bool) -> np.ndarray:
    """The true means at the first (or last) truth whose end reaches the measured mean."""
    return np.array([crossing(e, q, float(m), last) for e, q, m in zip(exact.T, ends.T, measured, strict=True)])


def correlated_draws(classes: Sequence[Class], together: Together) -> list[np.ndarray]:
    """For each class (draws, coefficients) normal numbers, correlated over classes as the curves' coefficients are."""
    sizes = [len(curve.fit.beta) for _, _, curve in classes]
    most, count = max(sizes), len(classes)
    draws = np.random.default_rng(count).standard_normal((DRAWS, count * most))
    if together.known:
        moved = [np.zeros((len(points.x), most)) for _, points, _ in classes]
        for one, size, (_, points, curve) in zip(moved, sizes, classes, strict=True):
            one[:, :size] = curve_influences(points, curve)
        parts = [together.coefficients(points, one) for one, (_, points, _) in zip(moved, classes, strict=True)]
        covariance = together.cross_covariance(np.stack(parts), [number for number, _, _ in classes])
        whiten = np.zeros((count, most, most))
        for j, size in enumerate(sizes):
            whiten[j, :size, :size] = root(covariance[j, :size, j, :size], -0.5)
        standard = np.einsum("jab,jbkc,kcd->jakd", whiten, covariance, whiten, optimize=True)
        draws = draws @ root(standard.reshape(count * most, -1), 0.5)
    split = draws.reshape(DRAWS, count, most)
    return [split[:, j, :size] for j, size in enumerate(sizes)]
