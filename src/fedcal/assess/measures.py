"""All measures of one set of samples, by name, as JSON values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit, logit
from scipy.stats import norm

from fedcal.assess.bias import biases
from fedcal.assess.calibration import ERRORS, brier_parts, curve_errors, observed_to_expected, smooth_ece
from fedcal.assess.discrimination import Decisions, auprc, auroc, decisive
from fedcal.assess.few_cases import widened, widened_quantiles
from fedcal.assess.influence import influences
from fedcal.assess.intervals import UNKNOWN, Estimate, mean, wilson
from fedcal.assess.mean_errors import mean_errors
from fedcal.assess.means import Together, mean_over, mean_uncertainty
from fedcal.assess.regression import Curve, intercept, quantiles, score_test, slope, spiegelhalter
from fedcal.assess.score_bins import grid
from fedcal.assess.sums import CURVE, TABLE, Points, ScoreSums
from fedcal.base.bins import equal_mass

SHARES = ("auroc", "auprc", "sensitivity", "specificity", "ppv", "npv")  # between 0 and 1
# Means over classes of these have no interval if a class has cases, but fewer than so many: it would hold too seldom.
CASES = {"auroc": 10, "calibration_slope": 15, "auprc": 75, "brier_discrimination": 30}
TENTHS = 10  # groups of samples beside the curve
LEAST = 10  # samples in each
PLACES = 41  # at which a calibration curve is given

Json = dict[str, Any]


def measure(
    sums: ScoreSums, names: Sequence[str], asked: Sequence[float], min_count: int = 0, detail: bool = True
) -> Json:
    """Every measure of these samples.

    Args:
        sums: of the samples.
        names: the classes.
        asked: the thresholds; the first is that of `sensitivity`, `net_benefit` and so on.
        min_count: hide decisions of fewer samples, and join smaller groups of the calibration plot.
        detail: whether to add the measures of each class where there are more than two, and the curves.
    """
    n, right, *powers = sums.samples
    found: dict[str, Estimate] = {
        "accuracy": wilson(right, n),
        "nll": mean(n, *powers[:3]),
        "brier": mean(n, *powers[3:]),
    }
    found["ece"] = Estimate(sums.bins.ece(), *sums.bins.interval()) if n else UNKNOWN
    about: Json = {"n": int(n)}
    last = len(sums.moments) - 1
    points = sums.points(last)
    curve = Curve.of(points)
    found["smooth_ece"] = smooth_ece(points, curve)
    if sums.n_classes == 2:
        more = _single(sums, 0, one_class(sums, 0, asked[0], min_count, points, curve), points)
        about |= about_class(sums, 0, asked, min_count, points, curve)
    else:
        fits = [_curve(sums, row, detail) for row in range(last)]
        each = [one_class(sums, row, asked[0], min_count, *fits[row]) for row in range(last)]
        more = over_classes(sums, each, fits)
        if detail:
            about["classes"] = {
                name: about_class(sums, row, asked, min_count, *fits[row])
                | to_json(_single(sums, row, each[row], fits[row][0]))
                for row, name in enumerate(names)
            }
        about |= {
            "tests": tests_json(points),
            "calibration_curve": curve_json(points, curve),
            "calibration_bins": groups_json(sums, last, min_count),
            "threshold": float(asked[0]),
        }
    about["bins"] = bins_json(sums)
    about["ece_floor"] = _finite(sums.bins.floor())
    return about | to_json(found | more)


def _single(sums: ScoreSums, row: int, found: dict[str, Estimate], points: Points) -> dict[str, Estimate]:
    """A class's measures by themselves. Means over classes have rules of their own where cases are few (`CASES`)."""
    negatives, positives = sums.counts(row)
    return widened_quantiles(widened(found, positives, negatives, decisive(sums, row)), points)


def _curve(sums: ScoreSums, row: int, detail: bool) -> tuple[Points, Curve | None]:
    points = sums.points(row)
    return points, Curve.of(points) if detail else None


def one_class(
    sums: ScoreSums, row: int, threshold: float, min_count: int, points: Points, curve: Curve | None
) -> dict[str, Estimate]:
    """The measures of one class against the rest. A class of few samples will be hidden: some have no interval there."""
    hidden = 0 < sums.counts(row)[1] < min_count
    errors = curve_errors(points, curve, intervals=not hidden)
    return class_measures(sums, row, threshold, min_count, points, curve, errors)


def about_class(
    sums: ScoreSums, row: int, asked: Sequence[float], min_count: int, points: Points, curve: Curve | None
) -> Json:
    """What else is known of a class: tests, curves, and decisions at each threshold."""
    thresholds = np.unique([*TABLE, *asked])
    decisions = Decisions.at(sums, row, thresholds).measures(min_count)
    at = {name: np.transpose(one).tolist() for name, one in decisions.items()}
    return {
        "events": sums.counts(row)[1],
        "binning_error": {"auroc": _finite(auroc(sums, row)[1]), "auprc": _finite(auprc(sums, row)[1])},
        "tests": tests_json(points),
        "calibration_curve": curve_json(points, curve),
        "calibration_bins": groups_json(sums, row, min_count),
        "threshold": float(asked[0]),
        "thresholds": [
            {"threshold": t} | {name: Estimate(*some[i]).to_json() for name, some in at.items()}
            for i, t in enumerate(thresholds.tolist())
        ],
        "decision_curve": decision_json(sums, row, min_count),
    }


def class_measures(
    sums: ScoreSums,
    row: int,
    threshold: float,
    min_count: int,
    points: Points,
    curve: Curve | None,
    errors: dict[str, Estimate],
) -> dict[str, Estimate]:
    """The measures of one class against the rest, whose distances to the calibration curve are known."""
    negatives, positives = sums.counts(row)
    return {
        "auroc": auroc(sums, row)[0],
        "auprc": auprc(sums, row)[0],
        "prevalence": wilson(positives, positives + negatives),
        "calibration_intercept": intercept(points),
        "calibration_slope": slope(points),
        "oe_ratio": observed_to_expected(points),
        **errors,
        **brier_parts(points, curve, errors["brier_calibration"]),
        **Decisions.at(sums, row, threshold).measures(min_count),
    }


def over_classes(
    sums: ScoreSums, found: Sequence[dict[str, Estimate]], fits: Sequence[tuple[Points, Curve | None]]
) -> dict[str, Estimate]:
    """The means over classes.

    Args:
        sums: of the samples.
        found: each class's measures.
        fits: each class's points and calibration curve.
    """
    together = Together(sums)
    odds = math.log(sums.first / (1 - sums.first))
    names = [name for name in found[0] if name not in ERRORS and name != "brier_uncertainty"]
    moved = [
        (points, influences(points, one, curve, odds) if together.known else {})
        for one, (points, curve) in zip(found, fits, strict=True)
    ]
    bias = [biases(points, one, curve) for one, (points, curve) in zip(found, fits, strict=True)]
    rates = [Decisions.at(sums, row, sums.first).rates() for row in range(len(found))]
    cases = np.array([sums.counts(row)[1] for row in range(len(found))])
    fewest = cases[cases > 0].min(initial=max(CASES.values()))
    means = {}
    for name, r in zip(names, together.correlations(moved, names), strict=True):
        known = [one[name] for one in found]
        if name in rates[0]:
            known = [rate[name] if math.isfinite(one.value) else one for rate, one in zip(rates, known, strict=True)]
        means[name] = mean_over(known, r, [one.get(name, 0.0) for one in bias])
        if fewest < CASES.get(name, 0):
            means[name] = Estimate(means[name].value)
        if name in SHARES:
            means[name] = means[name].within(0.0, 1.0)
    curves = [(row, points, curve) for row, (points, curve) in enumerate(fits) if curve is not None]
    means |= mean_errors(curves, together) | {"brier_uncertainty": mean_uncertainty(cases)}
    return {name: means[name] for name in found[0]}


def to_json(values: dict[str, Estimate]) -> Json:
    return {name: one.to_json() for name, one in values.items()}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def tests_json(points: Points) -> Json:
    """Tests that the probabilities are right: Spiegelhalter's, and a score test against any smooth curve."""
    if not points.w.sum():
        return {"score": None, "spiegelhalter": None}
    statistic, freedom, p = score_test(points)
    z = spiegelhalter(points)
    return {
        "score": {"chi2": statistic, "df": freedom, "p": p},
        "spiegelhalter": {"z": _finite(z), "p": _finite(2 * float(norm.sf(abs(z))))},
    }


def curve_json(points: Points, curve: Curve | None) -> Json | None:
    """The smooth calibration curve with its 95 % band, over the middle 98 % of the predictions."""
    if curve is None:
        return None
    low, high = quantiles(points.x, points.w, np.array([0.01, 0.99]))
    p = np.linspace(expit(low), expit(high), PLACES)
    x = np.clip(logit(p), low, high)
    value, below, above = curve.at(x)
    return {"predicted": p.tolist(), "value": value.tolist(), "low": below.tolist(), "high": above.tolist()}


def groups_json(sums: ScoreSums, row: int, min_count: int) -> Json:
    """Samples in groups of about equal size, by their prediction: how many, predicted, and observed with its interval."""
    moments, at = sums.moments[row], grid(sums.n_classes)
    count = moments[..., 0].sum(0)
    many = int(min(TENTHS, count.sum() // max(min_count, LEAST)))
    if not many:
        return {"count": [], "predicted": [], **{key: [] for key in Estimate._fields}}
    starts = enough(equal_mass(count, many), count, min_count)
    odds = at.middle + at.width * moments[..., 1].sum(0) / np.maximum(count, 1)
    size, events, predicted = (np.add.reduceat(v, starts) for v in (count, moments[1, :, 0], count * expit(odds)))
    filled = size > 0
    observed = wilson(events[filled], size[filled])
    return {
        "count": size[filled].astype(int).tolist(),
        "predicted": (predicted[filled] / size[filled]).tolist(),
        **{key: values.tolist() for key, values in observed._asdict().items()},
    }


def enough(starts: np.ndarray, count: np.ndarray, least: int) -> np.ndarray:
    """Join groups of samples with the next one until each holds enough: ties make some of them small."""
    kept, held = [], least
    for start, size in zip(starts, np.add.reduceat(count, starts), strict=True):
        if held >= least:
            kept.append(start)
            held = 0
        held += size
    return np.array(kept[:-1] if held < least and len(kept) > 1 else kept)


def decision_json(sums: ScoreSums, row: int, min_count: int) -> Json:
    """The decision curve: net benefit by threshold, with 95 % intervals, and that of treating everybody."""
    at = Decisions.at(sums, row, CURVE)
    benefit = at.measures(min_count)["net_benefit"]
    return {
        "threshold": CURVE.tolist(),
        **{key: [_finite(value) for value in values] for key, values in benefit._asdict().items()},
        "treat_all": [_finite(value) for value in at.treat_all()],
    }


def bins_json(sums: ScoreSums) -> Json:
    """The reliability of the top class, by bins of confidence; `hide.py` hides the small ones."""
    bins = sums.bins
    confidence, accuracy = bins.curve()
    return {
        "edges": bins.edges.tolist(),
        "count": bins.count.tolist(),
        "confidence": [_finite(value) for value in confidence],
        "accuracy": [_finite(value) for value in accuracy],
    }
