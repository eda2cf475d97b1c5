"""Wider intervals where a class has few cases, or few samples are not of it: those for many samples hold too seldom there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from scipy.special import expit, logit
from scipy.stats import t as student

from fedcal.assess.discrimination import newcombe
from fedcal.assess.intervals import Estimate, Z

FEW = 30  # of the smaller class, below which DeLong's interval of the AUROC held in 86 to 93 % of draws


class _Rule(NamedTuple):
    """How an interval is widened: by Student's t on the scale on which it is symmetric."""

    to: Callable[[float], float]
    back: Callable[[float], float]
    freedom: float  # degrees of freedom that each sample of the smaller class counts
    few: float  # of the smaller class; with as many, the interval stays as it is
    most: float = math.inf  # the measure's largest value


# Chosen by simulation of calibrated and over-confident models of rare events, 5 to 50 of them (docs/evaluate.md).
_RULES = {
    "auprc": _Rule(logit, expit, 0.7, math.inf),
    "calibration_slope": _Rule(float, float, 1.0, 15),
    "brier_discrimination": _Rule(math.log, math.exp, 0.7, math.inf, 0.25),
}


def widened(found: Mapping[str, Estimate], positives: int, negatives: int) -> dict[str, Estimate]:
    """The measures of one class, some with wider intervals. With many samples of both kinds they stay nearly as they are.

    The AUROC's gets as wide as DeLong's and Newcombe's together: DeLong's variance is far too low where
    few cases happen to lie close together.

    Args:
        found: the class's measures.
        positives: how many samples are of the class.
        negatives: how many are not.
    """
    fewer = min(positives, negatives)
    wider = {name: _stretch(found[name], fewer, rule) for name, rule in _RULES.items() if 0 < fewer < rule.few}
    if 0 < fewer < FEW:
        delong, other = found["auroc"], newcombe(found["auroc"].value, positives, negatives)
        wider["auroc"] = Estimate(delong.value, min(delong.low, other.low), max(delong.high, other.high))
    return {**found, **wider}


def _stretch(one: Estimate, fewer: int, rule: _Rule) -> Estimate:
    """The interval stretched on its scale; as it is where it reaches the scale's end, or is not defined."""
    try:
        low, high = rule.to(one.low), rule.to(one.high)
    except ValueError:  # the logarithm of 0
        return one
    if not (math.isfinite(low) and math.isfinite(high)):
        return one
    factor = float(student.ppf(0.975, max((fewer - 1) * rule.freedom, 1.0))) / Z
    middle, reach = (low + high) / 2, (high - low) / 2 * factor
    low, high = min(rule.back(middle - reach), one.low), max(rule.back(middle + reach), one.high)
    return Estimate(one.value, low, min(high, rule.most))
