"""Influence functions: how much one sample moves each measure of its class, as a function of its log-odds and outcome.

Only their shape is used, for the correlation of two classes' errors. So factors are left out, and they need not have mean 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import expit

from fedcal.assess.intervals import Estimate
from fedcal.assess.regression import Curve, has_both, with_slope
from fedcal.assess.sums import Points


def influences(
    points: Points, found: Mapping[str, Estimate], curve: Curve | None, odds: float
) -> dict[str, np.ndarray]:
    """The influence functions of a class's measures at its points.

    Args:
        points: of the class.
        found: its measures, by name.
        curve: its calibration curve.
        odds: the log-odds of the threshold.
    """
    x, y, w = points.x, points.y, points.w
    p, n = expit(x), max(float(w.sum()), 1.0)
    chosen = (x >= odds).astype(np.float64)
    value = {name: np.nan_to_num(one.value) for name, one in found.items()}
    weight = np.exp(odds)
    moved = {
        "prevalence": y,
        "calibration_intercept": y - expit(x + value["calibration_intercept"]),
        "oe_ratio": y - value["oe_ratio"] * p,
        "sensitivity": y * (chosen - value["sensitivity"]),
        "specificity": (1 - y) * (1 - chosen - value["specificity"]),
        "ppv": chosen * (y - value["ppv"]),
        "npv": (1 - chosen) * (1 - y - value["npv"]),
        "net_benefit": chosen * (y - weight * (1 - y)),
    }
    if has_both(points):
        moved |= {"auroc": _auroc(points, value["auroc"]), "auprc": _auprc(points, value["auprc"])}
        moved["calibration_slope"] = _slope(points, value["calibration_slope"])
    if curve is not None:
        right = curve.at(x)[0]
        moved["brier_discrimination"] = (y - w @ y / n) ** 2 - (y - right) ** 2
    return moved


def curve_influences(points: Points, curve: Curve) -> np.ndarray:
    """Those of the calibration curve's coefficients: (points, coefficients)."""
    design = curve.design(points.x)
    return (design * (points.y - expit(design @ curve.fit.beta))[:, None]) @ curve.fit.covariance


def _auroc(points: Points, value: float) -> np.ndarray:
    """One of the class beats a share of the others; one of the others is beaten by a share of the class."""
    x, y, w = points.x, points.y, points.w
    no, yes = (_share_below(x[y == s], w[y == s], x) for s in (0, 1))
    rate = w @ y / w.sum()
    return np.where(y == 1, (no - value) / rate, (1 - yes - value) / (1 - rate))


def _share_below(x: np.ndarray, w: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The share of weighted points below each place; points at the place count half."""
    order = np.argsort(x)
    reached = np.concatenate([[0.0], np.cumsum(w[order])])
    both = (reached[np.searchsorted(x[order], at, side=side)] for side in ("left", "right"))
    return sum(both) / (2 * reached[-1])


def _auprc(points: Points, value: float) -> np.ndarray:
    """The derivative of average precision by the weight of one more sample (see `auprc`)."""
    order = np.argsort(-points.x, kind="stable")
    x, y, w = points.x[order], points.y[order], points.w[order]
    last = len(x) - 1 - np.searchsorted(x[::-1], x, side="left")  # the last one with the same score
    hit, missed = np.cumsum(w * y)[last], np.cumsum(w * (1 - y))[last]
    total = hit + missed
    first = np.searchsorted(-x, -x, side="left")  # the first one with the same score
    lost, gained = (np.cumsum((w * y * part / total**2)[::-1])[::-1][first] for part in (hit, missed))
    found = np.empty_like(x)
    found[order] = np.where(y == 1, hit / total + gained - value, -lost)
    return found


def _slope(points: Points, value: float) -> np.ndarray:
    """The slope's, with the level that belongs to it."""
    x, y, w = points.x, points.y, points.w
    q = with_slope(points, value)
    spread = w * q * (1 - q)
    centre = spread @ x / max(float(spread.sum()), 1e-300)
    return (y - q) * (x - centre)
