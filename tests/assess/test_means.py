"""Means over classes: correlations equal those of the samples, and the intervals cover."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import expit

import fedcal
from fedcal.assess.calibration import ERRORS
from fedcal.assess.influence import influences
from fedcal.assess.intervals import UNKNOWN, Estimate
from fedcal.assess.means import Together, mean_over, mean_uncertainty
from fedcal.assess.measures import measure, over_classes
from fedcal.assess.regression import Curve
from fedcal.assess.score_bins import log_odds
from fedcal.assess.sums import ScoreSums
from paper.studies.evaluation import Classes, draw_classes, each_class, gather
from scores import classes, sums


def shares(z, y, threshold):
    """The influence functions that have a closed form, at every sample: (samples, classes) by name."""
    x = log_odds(z)
    p, of = expit(x), (y[:, None] == np.arange(z.shape[1])).astype(float)
    chosen = p >= threshold
    ratio = of.mean(0) / p.mean(0)
    rate = of.mean(0)
    beaten = np.empty_like(x)
    for j in range(z.shape[1]):
        own, other = np.sort(x[of[:, j] == 1, j]), np.sort(x[of[:, j] == 0, j])
        below, above = np.searchsorted(other, x[:, j]) / len(other), 1 - np.searchsorted(own, x[:, j]) / len(own)
        area = below[of[:, j] == 1].mean()
        beaten[:, j] = np.where(of[:, j], (below - area) / rate[j], (above - area) / (1 - rate[j]))
    return {
        "auroc": beaten,
        "oe_ratio": of - ratio * p,
        "sensitivity": of * (chosen - (of * chosen).sum(0) / of.sum(0)),
        "net_benefit": chosen * (of - threshold / (1 - threshold) * (1 - of)),
    }


@pytest.mark.parametrize(("k", "near"), [(3, 0.01), (10, 0.01), (40, 0.03)])
def test_correlations_are_those_of_the_samples(k, near):
    z, y = classes(4000, k)
    threshold = 0.3 if k < 20 else 0.05
    found = ScoreSums.of(z, y, first=threshold)
    each, fits = each_class(found)
    odds = math.log(threshold / (1 - threshold))
    moved = [(points, influences(points, one, curve, odds)) for one, (points, curve) in zip(each, fits, strict=True)]
    expected = shares(z, y, threshold)
    for name, r in zip(expected, Together(found).correlations(moved, list(expected)), strict=True):
        np.testing.assert_allclose(r, np.corrcoef(expected[name].T), atol=near, err_msg=name)


def test_prevalences_add_up_to_one():
    found = measure(sums(*classes(300, 4)), list("abcd"), (0.5,))["prevalence"]
    assert found["value"] == pytest.approx(0.25) and found["high"] - found["low"] < 1e-3


def test_mean_of_estimates():
    one, two = Estimate(1.0, 0.0, 2.0), Estimate(3.0, 1.0, 5.0)
    apart, same = np.eye(3), np.ones((3, 3))
    assert mean_over([one, two], apart[:2, :2]) == pytest.approx((2, 2 - 5**0.5 / 2, 2 + 5**0.5 / 2))
    assert mean_over([one, UNKNOWN, two], same) == pytest.approx((2, 0.5, 3.5))
    skew = Estimate(1.0, 0.5, 3.5)
    assert mean_over([skew], np.eye(1)) == pytest.approx(skew)
    assert mean_over([skew] * 2, np.eye(2)).high == pytest.approx(1 + 1 / 2 + 1.5 / 2**0.5)
    assert mean_over([one, one], np.eye(2), [0.1, 0.3]).high == pytest.approx(1 - 0.2 + 0.1 + 1 / 2**0.5, abs=0.1)
    assert math.isnan(mean_over([UNKNOWN], np.eye(1)).value)


def test_without_the_matrix_the_variance_is_doubled():
    z, y = classes(600, 101)
    found, _ = each_class(ScoreSums.of(z, y))
    r = Together(ScoreSums.of(z, y)).correlations([], ["auroc"])[0]
    known = [one["auroc"] for one in found]
    ends, apart = mean_over(known, r), mean_over(known, np.eye(101))
    assert (ends.high - ends.low) == pytest.approx(2**0.5 * (apart.high - apart.low), rel=0.06)


def test_errors_of_classes_without_a_curve_are_left_out():
    z, y = classes(300, 4)
    y = np.where(y == 3, 0, y)  # the last class has no cases
    found = measure(sums(z, y), list("abcd"), (0.5,))
    each = [found["classes"][name] for name in "abc"]
    assert found["classes"]["d"]["ici"]["value"] is None
    for name in ERRORS:
        assert found[name]["value"] == pytest.approx(np.mean([one[name]["value"] for one in each]))
        assert 0 <= found[name]["low"] <= found[name]["value"] <= found[name]["high"]
    assert Curve.of(sums(z, y).points(3)) is None


def test_a_mean_error_that_is_small_by_luck_has_no_shorter_interval():
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        each, fits = each_class(population := Classes("calibrated").sums(90, 3, rng))
        means = over_classes(population, each, fits)
        found.append([means[name] for name in ERRORS])
    value, _, high = np.moveaxis(np.array(found), -1, 0)
    lucky = value[:, 0].argsort()[:5]
    assert (high[lucky] > 0.7 * np.median(high, axis=0)).all()


def test_intervals_of_means_cover_and_are_not_far_too_wide():
    """150 draws. With an assumed correlation those of intercept and O/E covered always, and were three times as long."""
    population = Classes("too confident", 1.3)
    cell = gather([draw_classes(population, 4, 400, 150, [100, 400], population.truth(4, 500_000))], 150)
    for name, (_, inside, _) in cell["coverage"].items():
        assert inside >= 0.89 or cell["without"].get(name, 0) > 0.5, name  # few of these draws have an interval
    for name in ("calibration_intercept", "oe_ratio"):
        assert cell["coverage"][name][1] < 1, name


def test_hard_probabilities_have_no_interval_of_the_mean_error():
    """Theirs held the truth in 17 to 40 % of draws."""
    rng = np.random.default_rng(0)
    p, y = np.eye(3)[rng.integers(0, 3, 300)], rng.integers(0, 3, 300)
    found = fedcal.evaluate([(p, y)], probs=True).pooled
    assert found["ici"]["value"] == pytest.approx(2 / 3 * (p.argmax(1) != y).mean(), abs=1e-6)
    assert all(found[name]["low"] is None is found[name]["high"] for name in ("ici", "e50", "e90", "brier_calibration"))


def test_sure_models_that_are_right_have_intervals():
    """Nets for easy data are as sure as log-odds of 40, and right."""
    rng = np.random.default_rng(0)
    z = 40 * rng.normal(size=(3000, 3))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    found = fedcal.evaluate([(z, y)]).pooled
    assert (np.ptp(z, axis=1) > 40).mean() > 0.5  # most are as good as 0 or 1
    assert all(
        found[name]["low"] <= found[name]["value"] <= found[name]["high"] < 0.02 for name in ("ici", "e50", "e90")
    )


def test_intervals_of_a_forest_of_a_hundred_trees_rarely_miss():
    """Three classes; the truth given the votes is known. With a limit of 0.1 % on excluded outcomes, a sixth missed."""
    rng, trees, prior, missed = np.random.default_rng(0), 100, 0.3, 0
    for _ in range(40):
        p = rng.dirichlet([prior] * 3, 1000)
        votes, y = rng.multinomial(trees, p), (p.cumsum(1) > rng.random((1000, 1))).argmax(1)
        truth = np.abs(votes / trees - (votes + prior) / (trees + 3 * prior)).mean()
        ici = fedcal.evaluate([(votes / trees, y)], probs=True).pooled["ici"]
        missed += ici["low"] is not None and not ici["low"] <= truth <= ici["high"]
    assert missed <= 2


def test_errors_of_which_few_classes_are_off_reach_down_far_enough():
    """If every class had its part of what was measured, the lower end would be above the truth in a quarter of draws."""
    population = Classes("two classes off", pair=True)
    cell = gather([draw_classes(population, 10, 5000, 30, [100, 5000], population.truth(10, 500_000))], 30)
    assert all(cell["coverage"][name][1] >= 0.87 for name in ERRORS)


@pytest.mark.parametrize(("k", "lean"), [(3, 1.0), (4, 0.0), (10, 3.0), (100, 1.0)])
def test_the_mean_uncertainty_covers(k, lean):
    """Also of classes that are equally frequent, where the error falls with n and not with its root."""
    rng, share = np.random.default_rng(0), np.exp(np.linspace(0, lean, k))
    share /= share.sum()
    truth, draws = (share * (1 - share)).mean(), rng.multinomial(500, share, size=1000)
    found = [mean_uncertainty(cases) for cases in draws]
    assert np.mean([one.low <= truth + 1e-12 and truth - 1e-12 <= one.high for one in found]) > 0.92
    assert all(one.low <= one.value <= one.high for one in found)


def test_the_mean_uncertainty_of_one_class_or_sample():
    assert mean_uncertainty(np.array([0, 5, 0])).value == 0
    assert not np.isfinite(mean_uncertainty(np.array([1, 0])).value)
