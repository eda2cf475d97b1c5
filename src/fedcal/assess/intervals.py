"""Confidence intervals in closed form. Every function gives (value, low, high), NaN where it is not defined.

`wilson` and `difference` also take arrays, and then give three arrays.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

Z = 1.959963984540054  # of a 95 % interval


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def to_json(self) -> dict[str, float | None]:
        """The three by name; None where one is not defined."""
        return {name: float(value) if math.isfinite(value) else None for name, value in self._asdict().items()}

    def within(self, least: float, most: float) -> Estimate:
        """The same with ends that lie between two bounds."""
        return Estimate(self.value, max(self.low, least), min(self.high, most))


UNKNOWN = Estimate(math.nan)


def wilson(part: Any, whole: Any, z: float = Z) -> Estimate:
    """A proportion by Wilson's score interval."""
    whole = np.where(np.asarray(whole) > 0, whole, math.nan)
    share, z2 = part / whole, z * z / whole
    middle, reach = (share + z2 / 2) / (1 + z2), z * np.sqrt(share * (1 - share) / whole + z2 / whole / 4) / (1 + z2)
    low, high = np.minimum(middle - reach, share), np.maximum(middle + reach, share)
    return Estimate(share, np.maximum(low, 0.0), np.minimum(high, 1.0))


def laplace(part: float, whole: float) -> Estimate:
    """A proportion with an error that holds on average over draws: that of one more success and one more failure.

    Wilson's interval is too short for that where all is seen or nothing, which shows in a mean of many proportions.
    """
    if whole <= 0:
        return UNKNOWN
    middle = (part + 1) / (whole + 2)
    reach = Z * math.sqrt(middle * (1 - middle) / whole)
    return Estimate(part / whole, middle - reach, middle + reach)


def wald(value: float, error: float) -> Estimate:
    """A value with a normal error."""
    return Estimate(value, value - Z * error, value + Z * error)


def on_logit(value: float, error: float) -> Estimate:
    """A share whose log-odds have a normal error, by the delta method: it stays within 0 and 1."""
    if not 0 < value < 1 or not math.isfinite(error):
        return Estimate(value)
    odds, reach = math.log(value / (1 - value)), Z * error / (value * (1 - value))
    return Estimate(value, _expit(odds - reach), _expit(odds + reach))


def on_log(value: float, error: float) -> Estimate:
    """A positive value whose logarithm has a normal error, by the delta method."""
    if not value > 0 or not error < 100 * value:
        return Estimate(value)
    reach = math.exp(Z * error / value)
    return Estimate(value, value / reach, value * reach)


def _expit(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def mean(n: float, one: float, two: float, three: float) -> Estimate:
    """A mean from the sums of the values, their squares and their cubes.

    Student's interval with Hall's (1992) correction for skewness: losses have long tails, and a symmetric interval would miss
    the mean from below too often.
    """
    if n < 1:
        return UNKNOWN
    centre = one / n
    variance = max(two / n - centre**2, 0.0)
    if n < 2 or variance <= 1e-14 * centre * centre:
        return Estimate(centre, *((centre, centre) if n >= 2 else (math.nan, math.nan)))
    spread = math.sqrt(variance)
    skew = (three / n - 3 * centre * two / n + 2 * centre**3) / spread**3
    reach = float(student.ppf(0.975, n - 1))
    error = spread * math.sqrt(1 / (n - 1))
    low, high = (centre - error * _unskewed(end, skew, n) for end in (reach, -reach))
    return Estimate(centre, min(low, centre), max(high, centre))


def _unskewed(t: float, skew: float, n: float) -> float:
    """Hall's transformation, inverted: the studentised mean whose skewness-corrected value is t."""
    a = skew / math.sqrt(n)
    if abs(a) < 1e-9:
        return t
    return (float(np.cbrt(1 + a * (t - a / 6))) - 1) / (a / 3)


def difference(gain: Estimate, loss: Estimate, weight: Any) -> Estimate:
    """gain − weight · loss of two shares of the same samples that exclude each other, from their own intervals (MOVER).

    Zou and Donner (2008), with the correlation of multinomial shares.
    """
    a, b = gain.value, loss.value
    scale = np.sqrt(a * (1 - a) * b * (1 - b))
    correlation = np.where(scale > 0, -a * b / np.where(scale > 0, scale, 1.0), 0.0)
    value = a - weight * b

    def reach(x: Any, y: Any) -> Any:
        y = y * weight
        return np.sqrt(np.maximum(x * x + y * y - 2 * correlation * x * y, 0.0))

    return Estimate(value, value - reach(a - gain.low, loss.high - b), value + reach(gain.high - a, b - loss.low))


def crossing(at: np.ndarray, values: np.ndarray, level: float, last: bool) -> float:
    """Where a curve of probabilities crosses `level`: the first (or last) point that is not rejected, interpolated."""
    kept = np.flatnonzero(values >= level)
    if not len(kept):
        return float(at[-1] if not last else at[0])
    i = int(kept[-1] if last else kept[0])
    j = i + 1 if last else i - 1
    if not 0 <= j < len(at):
        return float(at[i])
    share = (values[i] - level) / max(values[i] - values[j], 1e-12)
    return float(at[i] + share * (at[j] - at[i]))
