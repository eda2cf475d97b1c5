"""Wider intervals where a class has few cases, or few samples are not of it: those for many samples hold too seldom there.

So they do where few samples are in the wrong order: of a model that is very sure and nearly always right. And so do those of
quantiles if a model gives few different scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtri
from scipy.stats import t as student

from fedcal.assess.discrimination import newcombe
from fedcal.assess.intervals import Estimate, Z, wilson
from fedcal.assess.regression import KNOTS, quantiles
from fedcal.assess.sums import Points

FEW = 30  # of the smaller class, or in the wrong order, below which DeLong's interval of the AUROC held in 86 to 93 %
OF_WRONG = 2.0  # degrees of freedom that each sample in the wrong order counts


class _Rule(NamedTuple):
    """How an interval is widened: by Student's t on the scale on which it is symmetric."""

    to: Callable[[float], float]
    back: Callable[[float], float]
    freedom: float  # degrees of freedom that each sample of the smaller class counts
    few: float  # of the smaller class, and in the wrong order; with as many, the interval stays as it is
    most: float = math.inf  # the measure's largest value


# Chosen by simulation of calibrated and over-confident models of rare events, 5 to 50 of them (docs/evaluate.md).
_RULES = {
    "auprc": _Rule(logit, expit, 0.7, math.inf),
    "calibration_slope": _Rule(float, float, 1.0, 15),
    "brier_discrimination": _Rule(math.log, math.exp, 0.7, math.inf, 0.25),
}


def widened(
    found: Mapping[str, Estimate], positives: int, negatives: int, wrong: float = math.inf
) -> dict[str, Estimate]:
    """The measures of one class, some with wider intervals. With many samples of both kinds they stay nearly as they are.

    The AUROC's gets as wide as DeLong's and Newcombe's together: DeLong's variance is far too low where
    few cases happen to lie close together, or few are in the wrong order.

    Args:
        found: the class's measures.
        positives: how many samples are of the class.
        negatives: how many are not.
        wrong: how many samples are in the wrong order (`decisive`).
    """
    fewer = min(positives, negatives)
    if not fewer:
        return dict(found)
    wider = {name: _stretch(found[name], _freedom(rule, fewer, wrong), rule) for name, rule in _RULES.items()}
    if min(fewer, wrong) < FEW:
        delong, other = found["auroc"], newcombe(found["auroc"].value, positives, negatives)
        wider["auroc"] = Estimate(delong.value, min(delong.low, other.low), max(delong.high, other.high))
    return {**found, **wider}


def widened_quantiles(found: Mapping[str, Estimate], points: Points) -> dict[str, Estimate]:
    """E50 and E90 with wider intervals if there are few different scores, such as those of risk groups.

    A quantile of few errors is the error of one group, which may be far off alone, and a few samples more in a group make it
    that of another one. So the intervals also hold the quantiles of the groups' own ends (Wilson's), at levels that allow for
    the groups' sizes. The lower ends hold for all groups at once: that any group is off by chance must be rare.

    Args:
        found: the measures of a class.
        points: of the class.
    """
    scores, group = np.unique(points.x, return_inverse=True)
    if len(scores) > len(KNOTS) or not math.isfinite(found["e50"].low):
        return dict(found)
    p, size, events = expit(scores), np.bincount(group, points.w), np.bincount(group, points.w * points.y)
    one, every = wilson(events, size), wilson(events, size, float(ndtri(1 - 0.0125 / len(scores))))
    least, most = np.maximum(np.maximum(p - every.high, every.low - p), 0.0), np.maximum(p - one.low, one.high - p)
    wider = {}
    for name, level in (("e50", 0.5), ("e90", 0.9)):
        value, low, high = found[name]
        reach = Z * math.sqrt(level * (1 - level) / size.sum())
        ends = [quantiles(gap, size, np.array([at]))[0] for gap, at in ((least, level - reach), (most, level + reach))]
        wider[name] = Estimate(value, min(low, float(ends[0])), max(high, float(ends[1])))
    return {**found, **wider}


def _freedom(rule: _Rule, fewer: int, wrong: float) -> float:
    """Student's degrees of freedom: infinite where there are many samples of each kind."""
    of_cases = (fewer - 1) * rule.freedom if fewer < rule.few else math.inf
    return max(min(of_cases, OF_WRONG * wrong if wrong < min(rule.few, FEW) else math.inf), 1.0)


def _stretch(one: Estimate, freedom: float, rule: _Rule) -> Estimate:
    """The interval stretched on its scale; as it is where it reaches the scale's end, or is not defined."""
    if math.isinf(freedom):
        return one
    try:
        low, high = rule.to(one.low), rule.to(one.high)
    except ValueError:  # the logarithm of 0
        return one
    if not (math.isfinite(low) and math.isfinite(high)):
        return one
    factor = float(student.ppf(0.975, freedom)) / Z
    middle, reach = (low + high) / 2, (high - low) / 2 * factor
    low, high = min(rule.back(middle - reach), one.low), max(rule.back(middle + reach), one.high)
    return Estimate(one.value, low, min(high, rule.most))
