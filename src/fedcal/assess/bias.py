"""By how much measures of few samples are too high on average. For one class that is less than the error; in a mean of many
classes errors cancel, and this does not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.special import expit

from fedcal.assess.intervals import Estimate
from fedcal.assess.regression import Curve, has_both, with_slope
from fedcal.assess.sums import Points


def biases(points: Points, found: Mapping[str, Estimate], curve: Curve | None) -> dict[str, float]:
    """The bias of a class's measures, by name; of the others it is small.

    Args:
        points: of the class.
        found: its measures.
        curve: its calibration curve.
    """
    known = {"brier_discrimination": curve.excess(points) if curve else 0.0}
    if has_both(points):
        shift, slope = (np.nan_to_num(found[f"calibration_{name}"].value) for name in ("intercept", "slope"))
        x, ones = points.x, np.ones((len(points.x), 1))
        known |= {
            "auprc": _auprc(points),
            "calibration_intercept": float(_coefficients(ones, points.w, expit(x + shift))[0]),
            "calibration_slope": float(
                _coefficients(np.column_stack([ones, x]), points.w, with_slope(points, slope))[1]
            ),
        }
    return {name: value for name, value in known.items() if np.isfinite(value)}


def _auprc(points: Points) -> float:
    """A sample of the class counts among those that are at least as high as it is. The population's precision leaves it out.

    The first of all has nobody above it: its precision is taken to be that of the next one.
    """
    order = np.argsort(-points.x, kind="stable")
    y, w = points.y[order], points.w[order]
    hit, missed, total = np.cumsum(w * y), np.cumsum(w * (1 - y)), float(w @ y)
    if total < 2:
        return 0.0
    # In a point of several samples, the middle one.
    reached = (hit - np.maximum((w * y - 1) / 2, 0.0))[y == 1]
    passed, weight = missed[y == 1], w[y == 1]
    others = (reached - 1) * total / (total - 1)
    seen = others + passed > 0.25
    if not seen.any():
        return 0.0
    precise = np.where(seen, others / np.maximum(others + passed, 0.25), 0.0)
    precise[: int(seen.argmax())] = precise[int(seen.argmax())]
    return float(weight @ (reached / (reached + passed) - precise) / total)


def _coefficients(design: np.ndarray, w: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The bias of a logistic regression's coefficients (Cox and Snell 1968), of fitted probabilities q."""
    spread = w * q * (1 - q)
    inverse = np.linalg.pinv((design * spread[:, None]).T @ design)
    leverage = np.einsum("ij,jk,ik->i", design, inverse, design)
    return inverse @ (design.T @ (spread * leverage * (q - 0.5)))
