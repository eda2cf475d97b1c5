"""How much a measure differs between sites: a random-effects summary, and where a new site's value is to be expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit
from scipy.stats import t as student

from fedcal.assess.intervals import Z

Scale = tuple[Callable[[Any], Any], Callable[[Any], Any]]


def same(value: Any) -> Any:
    """The scale of measures that are normal as they are."""
    return value


SHARE, POSITIVE, PLAIN = (logit, expit), (np.log, np.exp), (same, same)
SCALES: dict[str, Scale] = {  # measures with a summary over sites, and the scale on which they are normal
    "auroc": SHARE,
    "auprc": SHARE,
    "accuracy": SHARE,
    "prevalence": SHARE,
    "calibration_intercept": PLAIN,
    "calibration_slope": PLAIN,
    "oe_ratio": POSITIVE,
    "brier": POSITIVE,
    "nll": POSITIVE,
    "sensitivity": SHARE,
    "specificity": SHARE,
    "net_benefit": PLAIN,
}


class Summary(NamedTuple):
    """A random-effects summary of normal estimates."""

    mean: float
    error: float
    tau: float  # standard deviation between sites
    share: float  # I²: the share of the variance that is between sites
    n: int

    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean (Hartung and Knapp)."""
        reach = float(student.ppf(0.975, self.n - 1)) * self.error
        return self.mean - reach, self.mean + reach

    def prediction(self) -> tuple[float, float]:
        """Where a new site's true value is with 95 %."""
        reach = float(student.ppf(0.975, self.n - 1)) * math.hypot(self.error, self.tau)
        return self.mean - reach, self.mean + reach


def random_effects(values: np.ndarray, errors: np.ndarray) -> Summary:
    """Paule and Mandel's estimate of the variance between sites, with Hartung and Knapp's error of the mean.

    Args:
        values: of at least two sites.
        errors: their standard errors.
    """
    k = len(values)

    def q(tau2: float) -> tuple[float, float, np.ndarray]:
        w = 1 / (errors**2 + tau2)
        centre = float(w @ values / w.sum())
        return float(w @ (values - centre) ** 2), centre, w

    low, high = 0.0, float(np.var(values) * k + (errors**2).max()) + 1e-300
    for _ in range(200):  # Q falls as τ² grows; at Paule and Mandel's it is k − 1
        middle = (low + high) / 2
        low, high = (middle, high) if q(middle)[0] > k - 1 else (low, middle)
    tau2 = 0.0 if q(0.0)[0] <= k - 1 else high
    total, centre, w = q(tau2)
    scale = max(1.0, total / (k - 1))  # never narrower than without Hartung and Knapp's factor (Röver et al. 2015)
    fixed = np.sort(1 / errors**2)
    pairs = 2 * float(fixed[1:] @ fixed.cumsum()[:-1])  # (Σw)² − Σw², also if one weight is far above the others
    typical = (k - 1) * fixed.sum() / pairs
    return Summary(centre, math.sqrt(scale / w.sum()), math.sqrt(tau2), tau2 / (tau2 + typical), k)


def on_scale(known: np.ndarray, transform: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray]:
    """Values and standard errors of sites on a measure's scale.

    A share of exactly 0 or 1 is infinite on it, and leaving out the sites that are always right would make the summary too
    low: the middle of their interval stands for the value, and the end that is finite tells the error.

    Args:
        known: (sites, 3) values with the ends of their intervals.
        transform: to that scale.
    """
    with np.errstate(all="ignore"):
        value, low, high = transform(known).T
        errors = (high - low) / (2 * Z)
        if transform is logit:
            middle, odd = transform(known[:, 1:].mean(axis=1)), ~np.isfinite(value + errors)
            end = np.where(np.isfinite(low), low, high)
            value, errors = np.where(odd, middle, value), np.where(odd, np.abs(middle - end) / Z, errors)
    return value, errors


def spread(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of each measure over the sites that have it with an interval; sites without are left out."""
    found = {}
    for name, (transform, back) in SCALES.items():
        rows = [one[name] for one in sites.values() if name in one]
        known = np.array(
            [(r["value"], r["low"], r["high"]) for r in rows if None not in (r["value"], r["low"], r["high"])]
        )
        values, errors = on_scale(known.reshape(-1, 3), transform)
        usable = np.isfinite(values) & np.isfinite(errors) & (errors > 0)
        if usable.sum() < 2:
            continue
        summary = random_effects(values[usable], errors[usable])
        low, high = (float(back(end)) for end in summary.interval())
        below, above = (float(back(end)) for end in summary.prediction())
        found[name] = {
            "sites": summary.n,
            "mean": {"value": float(back(summary.mean)), "low": low, "high": high},
            "prediction": {"low": below, "high": above},
            "tau": summary.tau,
            "i2": summary.share,
        }
    return found
