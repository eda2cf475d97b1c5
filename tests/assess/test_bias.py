"""The bias of measures of few samples, against simulation."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from fedcal.assess.bias import biases
from fedcal.assess.discrimination import auprc
from fedcal.assess.intervals import UNKNOWN, Estimate
from fedcal.assess.regression import intercept, slope, with_slope
from fedcal.assess.sums import Points
from scores import sums


def measured(x, y):
    total = sums(x, y)
    points = total.points(0)
    return {"auprc": auprc(total, 0)[0], "calibration_intercept": intercept(points), "calibration_slope": slope(points)}


def draw(rng, n):
    x = 1.2 * rng.normal(size=n) - 2
    return x, (rng.random(n) < expit(x)).astype(int)


def test_what_is_taken_off_is_what_few_samples_add():
    rng, found = np.random.default_rng(100), []
    names = ("auprc", "calibration_intercept", "calibration_slope")
    while len(found) < 2500:
        x, y = draw(rng, 150)
        one = measured(x, y)
        if y.sum() > 2 and all(np.isfinite(value.value) for value in one.values()):
            bias = biases(sums(x, y).points(0), one, None)
            found.append([(one[name].value, bias[name]) for name in names])
    truth = measured(*draw(rng, 500_000))
    for (value, bias), error, name in zip(np.mean(found, 0), np.std(found, 0)[:, 0] / 50, names, strict=True):
        excess = value - truth[name].value
        assert abs(excess) > 2 * error and abs(bias) > 2 * error and excess * bias > 0, name
        assert abs(excess - bias) < max(0.35 * abs(excess), 3 * error), name


def test_where_there_is_nothing_to_tell():
    points = sums(np.array([0.5, 1.0, -1.0]), [1, 0, 0]).points(0)
    unknown = dict.fromkeys(("calibration_intercept", "calibration_slope"), UNKNOWN)
    assert biases(points, unknown, None)["auprc"] == 0
    known = dict.fromkeys(("calibration_intercept", "calibration_slope"), Estimate(0.0))
    assert biases(sums(np.zeros(4), [1, 1, 0, 0]).points(0), known, None)["calibration_intercept"] == pytest.approx(0)
    assert biases(sums(np.zeros(4), [1, 1, 1, 1]).points(0), unknown, None) == {"brier_discrimination": 0}


def test_the_bias_of_a_steep_slope_does_not_depend_on_where_the_log_odds_lie():
    rng = np.random.default_rng(0)
    z = rng.normal(size=4000)  # probabilities that differ by less than a thousandth: the slope is about 1000
    y = (rng.random(4000) < expit(z - 0.7)).astype(int)
    steep, plain = (Points(x, y, np.ones(4000)) for x in (1e-3 * z - 0.7, z))
    found: list[dict[str, Estimate]] = [
        {"calibration_intercept": intercept(one), "calibration_slope": slope(one)} for one in (steep, plain)
    ]
    right = [
        with_slope(one, value["calibration_slope"].value) for one, value in zip((steep, plain), found, strict=True)
    ]
    np.testing.assert_allclose(right[0], right[1], atol=1e-9)
    bias = [biases(one, value, None)["calibration_slope"] for one, value in zip((steep, plain), found, strict=True)]
    assert 1e-3 * bias[0] == pytest.approx(bias[1], rel=1e-6)
