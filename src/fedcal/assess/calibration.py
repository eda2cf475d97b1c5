"""How far probabilities are from the calibration curve: ICI, E50, E90, smooth ECE, and the parts of the Brier score.

These errors are absolute values: a calibrated model's are 0, but measured ones never are, so that a bootstrap would be too high.
Each end of an interval is found by inverting a test instead. Curves between perfect calibration (λ = 0) and the fitted one
(λ = 1), and beyond, are taken as the truth, samples are drawn from them, and the ends are the errors of the first and the last
curve under which the measured error is not too large or too small (2.5 % each). `paper/studies/evaluation.py` measures how often
the intervals cover.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.fft import dct, idct
from scipy.special import expit

from fedcal.assess.intervals import UNKNOWN, Estimate, crossing, on_log, wilson
from fedcal.assess.regression import Curve, quantiles
from fedcal.assess.sums import Points

DRAWS = 400
PLACES = 100  # points of equal mass at which a curve is looked at
CELLS = 512  # of equal width, for the smooth ECE
STEPS = 24  # curves between which an end is interpolated
REACH = 6.0  # how far they go, in units of the noise
TAIL = 0.025


@cache
def normal_draws(columns: int) -> np.ndarray:
    """The same standard normal numbers each time: the same samples give the same interval."""
    return np.random.default_rng(columns).standard_normal((DRAWS, columns))


def curve_errors(points: Points, curve: Curve | None) -> dict[str, Estimate]:
    """ICI, E50 and E90 (the mean, median and 90 % quantile of |p − curve|), and the mean square, each with its interval."""
    names = ("ici", "e50", "e90", "brier_calibration")
    if curve is None:
        return dict.fromkeys(names, UNKNOWN)
    gap = np.abs(expit(points.x) - curve.at(points.x)[0])
    share = points.w / points.w.sum()
    middle, high = quantiles(gap, points.w, np.array([0.5, 0.9]))
    values = {"ici": share @ gap, "e50": middle, "e90": high, "brier_calibration": share @ gap**2}

    # The rest looks at a few points of equal mass only.
    x = quantiles(points.x, points.w, (np.arange(PLACES) + 0.5) / PLACES)
    design, p, mass = curve.design(x), expit(x), points.w.sum() / PLACES
    away = design @ curve.fit.beta - x
    statistics: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "ici": lambda gap: gap.mean(-1),
        "e50": lambda gap: np.partition(gap, PLACES // 2, axis=-1)[..., PLACES // 2],
        "e90": lambda gap: np.partition(gap, PLACES * 9 // 10, axis=-1)[..., PLACES * 9 // 10],
        "brier_calibration": lambda gap: (gap**2).mean(-1),
    }
    draws = normal_draws(design.shape[1])

    def sample(share: float) -> np.ndarray:
        """Gaps that would be measured if this curve were the truth."""
        truth = x + share * away
        right = expit(truth)
        information = (design * (mass * right * (1 - right))[:, None]).T @ design
        root = np.linalg.cholesky(np.linalg.pinv(information, hermitian=True) + 1e-12 * np.eye(len(information)))
        return np.abs(p - expit(truth + draws @ root.T @ design.T))

    noise = sample(0.0)
    here = np.abs(p - expit(x + away))
    shares = _around(float(noise.mean() / max(here.mean(), 1e-12)))
    truths = np.abs(p - expit(x + shares[:, None] * away))
    drawn = [sample(share) for share in shares]
    found = {}
    for name in names:
        measured = float(statistics[name](here))
        taken = np.stack([statistics[name](gaps) for gaps in drawn])
        low, high = _ends(shares, taken >= measured)
        at_ends = [float(np.interp(end, shares, statistics[name](truths))) for end in (low, high)]
        value = float(values[name])
        found[name] = Estimate(value, min(at_ends[0], value), max(at_ends[1], value))
    return found


def _around(noise: float) -> np.ndarray:
    """Curves to try: the fitted one, less and more by several times what noise gives."""
    return np.linspace(max(0.0, 1 - REACH * noise), 1 + REACH * noise, STEPS)


def _ends(shares: np.ndarray, larger: np.ndarray) -> tuple[float, float]:
    """The first share under which the measured error is not too large, and the last under which it is not too small."""
    above = larger.mean(axis=1)
    return crossing(shares, above, TAIL, last=False), crossing(shares, 1 - above, TAIL, last=True)


def smooth_ece(points: Points, curve: Curve | None) -> Estimate:
    """The smooth ECE (Błasiok and Nakkiran 2024): gaps smoothed by a kernel whose width is the error itself."""
    n = points.w.sum()
    if not n:
        return UNKNOWN
    p = expit(points.x)
    cell = np.minimum((p * CELLS).astype(np.int64), CELLS - 1)
    value = smooth_width(np.bincount(cell, points.w * (points.y - p), CELLS) / n)
    if curve is None:
        return Estimate(value)
    count = np.bincount(cell, points.w, CELLS)
    filled = count > 0
    odds = np.bincount(cell, points.w * points.x, CELLS)[filled] / count[filled]
    weight, stated = count[filled] / n, expit(odds)
    away = curve.design(odds) @ curve.fit.beta - odds
    right = expit(odds + away)
    noise = np.zeros((DRAWS, CELLS))
    noise[:, filled] = normal_draws(CELLS)[:, filled] * np.sqrt(weight * right * (1 - right) / n)
    noise = _smooth(noise, value)

    def expected(share: float) -> np.ndarray:
        gap = np.zeros(CELLS)
        gap[filled] = weight * (expit(odds + share * away) - stated)
        return gap

    shares = _around(float(np.abs(noise).sum(-1).mean() / max(np.abs(expected(1.0)).sum(), 1e-12)))
    # Samples have a larger error where their gaps, smoothed as the measured ones, exceed it: no width need be found.
    larger = [np.abs(_smooth(expected(share), value) + noise).sum(-1) >= value for share in shares]
    low, high = (smooth_width(expected(end)) for end in _ends(shares, np.stack(larger)))
    return Estimate(value, min(low, value), max(high, value))


def _smooth(gaps: np.ndarray, width: float) -> np.ndarray:
    """Gaps in cells, smoothed by a Gaussian kernel of that width that is reflected at 0 and 1: in cosines, a product."""
    fade = np.exp(-0.5 * (np.pi * width * np.arange(CELLS)) ** 2)
    return idct(dct(gaps, axis=-1) * fade, axis=-1)


def smooth_width(gaps: np.ndarray) -> float:
    """The smooth ECE of gaps in cells: the kernel width that equals Σ|smoothed gaps|, which falls as the width grows."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if np.abs(_smooth(gaps, middle)).sum() >= middle else (low, middle)
    return (low + high) / 2


def brier_parts(points: Points, curve: Curve | None, calibration: Estimate) -> dict[str, Estimate]:
    """Brier score = calibration − discrimination + uncertainty.

    Calibration is the mean squared distance to the curve, uncertainty the variance of the outcome, and discrimination what is
    left, the variance of the curve: its error is that of the mean of (y − ȳ)² − (y − curve)².
    """
    n = points.w.sum()
    rate = float(points.w @ points.y / n) if n else math.nan
    share = wilson(rate * n, n)
    spread = [r * (1 - r) for r in (share.low, share.high)]
    most = 0.25 if share.low <= 0.5 <= share.high else max(spread)
    uncertainty = Estimate(rate * (1 - rate), min(spread), most) if n else UNKNOWN
    if curve is None:
        return {"brier_discrimination": UNKNOWN, "brier_uncertainty": uncertainty}
    p = expit(points.x)
    score = float(points.w @ (p - points.y) ** 2 / n)
    value = calibration.value + uncertainty.value - score
    gain = (points.y - rate) ** 2 - (points.y - curve.at(points.x)[0]) ** 2
    error = math.sqrt(float(points.w @ (gain - points.w @ gain / n) ** 2) / n / n)
    return {"brier_discrimination": on_log(value, error), "brier_uncertainty": uncertainty}


def observed_to_expected(points: Points) -> Estimate:
    """The number of events over the number that was predicted: 1 is calibrated in the large."""
    p = expit(points.x)
    expected, events = float(points.w @ p), float(points.w @ points.y)
    if not expected:
        return UNKNOWN
    ratio = events / expected
    return on_log(ratio, math.sqrt(float(points.w @ (points.y - ratio * p) ** 2)) / expected)


