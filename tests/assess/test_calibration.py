"""Regressions against statsmodels; ICI, E50, E90 and the Brier score's parts computed directly; smooth ECE by its kernel."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.special import expit, logit
from scipy.stats import chi2, norm

import fedcal
from fedcal.assess.calibration import (
    CELLS,
    brier_parts,
    curve_errors,
    observed_to_expected,
    smooth_ece,
    smooth_width,
)
from fedcal.assess.intervals import wilson
from fedcal.assess.regression import Curve, basis, intercept, score_test, slope, spiegelhalter
from fedcal.assess.sums import Points, ScoreSums
from fedcal.base.checks import as_logits
from scores import draw, sums

BINOMIAL = sm.families.Binomial()


@pytest.mark.parametrize(("n", "spread"), [(60, 1.5), (2000, 0.3), (40_000, 2.0)])
def test_intercept_and_slope_are_those_of_a_pooled_glm(n, spread):
    x, y = draw(n, spread=spread)
    half = n // 3
    points = (sums(x[:half], y[:half]) + sums(x[half:], y[half:])).points(0)
    large = sm.GLM(y, np.ones(n), family=BINOMIAL, offset=x).fit(tol=1e-14, cov_type="HC0")
    weak = sm.GLM(y, sm.add_constant(x), family=BINOMIAL).fit(tol=1e-14, cov_type="HC0")
    for found, fit, i in ((intercept(points), large, 0), (slope(points), weak, 1)):
        np.testing.assert_allclose(found, [fit.params[i], *fit.conf_int()[i]], atol=1e-8)


def test_separable_or_single_class_has_no_slope():
    x = np.linspace(-2, 2, 50)
    for y in ((x > 0).astype(int), np.ones(50, int)):
        assert np.isnan(slope(sums(x, y).points(0)).value)
    assert np.isnan(slope(sums(np.zeros(50), np.arange(50) % 2).points(0)).value)


@pytest.mark.parametrize("n", [400, 20_000])
def test_curve_errors_by_direct_computation(n):
    x, y = draw(n)
    points = sums(x, y).points(0)
    curve = Curve.of(points)
    assert curve is not None and len(curve.knots) == 4
    fit = sm.GLM(y, basis(x, curve.knots), family=BINOMIAL).fit(tol=1e-13)
    gap, found = np.abs(expit(x) - fit.fittedvalues), curve_errors(points, curve)
    expected = {
        "ici": gap.mean(),
        "e50": np.median(gap),
        "e90": np.quantile(gap, 0.9),
        "brier_calibration": (gap**2).mean(),
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=2e-4 if name[0] == "e" else 1e-6)
        assert found[name].low <= found[name].value <= found[name].high
    np.testing.assert_allclose(curve.at(x)[0], fit.fittedvalues, atol=1e-5)


@pytest.mark.parametrize("scores", [(-2.0, -0.5, 1.5), (-3.0, -1.0, 1.0), (-3.0, -1.5, 0.0, 1.5)])
def test_the_curve_of_few_different_scores_goes_through_the_rate_at_each(scores):
    """A straight line through three risk groups said that they were 3 % off on average where they were 8 %."""
    rng, rates = np.random.default_rng(0), np.array([0.1, 0.55, 0.4, 0.9])[: len(scores)]
    group = rng.choice(len(scores), 1000, p=[0.87, 0.1, 0.03] if scores[0] == -3 and len(scores) == 3 else None)
    x, y = np.array(scores)[group], (rng.random(1000) < rates[group]).astype(int)
    points = (sums(x[:300], y[:300]) + sums(x[300:], y[300:])).points(0)
    found = curve_errors(points, Curve.of(points))
    observed = np.array([y[group == one].mean() for one in range(len(scores))])
    gap = np.abs(expit(x) - observed[group])
    assert found["ici"].value == pytest.approx(gap.mean(), abs=1e-6)
    assert found["brier_calibration"].value == pytest.approx((gap**2).mean(), abs=1e-6)


def test_equal_scores_stay_equal_however_samples_are_divided_into_sites():
    """The means of cases and of others differed by 3e-18: four scores were taken for five, and the ICI for 24.6 %."""
    rng, rates = np.random.default_rng(64), np.array([0.1, 0.6, 0.3, 0.9])
    scores = logit(np.sort(rng.choice(np.arange(1, 100), 4, replace=False) / 100))
    group = rng.choice(4, 400, p=[0.6, 0.2, 0.1, 0.1])
    y = (rng.random(400) < rates[group]).astype(int)
    x, observed = scores[group], np.array([y[group == one].mean() for one in range(4)])
    for parts in (sums(x, y), sums(x[:150], y[:150]) + sums(x[150:], y[150:])):
        points = parts.points(0)
        assert len(np.unique(points.x)) == 4
        found = curve_errors(points, Curve.of(points), intervals=False)["ici"].value
        assert found == pytest.approx(np.abs(expit(x) - observed[group]).mean(), abs=1e-6)


def grades(scores, events, of):
    """The points of so many samples at each score, with so many events."""
    x = np.repeat(scores, of)
    y = np.concatenate([np.arange(of) < one for one in events]).astype(int)
    return sums(x, y).points(0)


def test_a_risk_group_without_events():
    """With a straight line in its place, the ICI was 1.4 % (0 to 3.9) where the mean gap is 7.3 %."""
    points = grades(np.log([0.02 / 0.98, 0.3 / 0.7, 0.6 / 0.4]), [0, 160, 200], 400)
    found = curve_errors(points, Curve.of(points))["ici"]
    assert found.value == pytest.approx((0.02 - 0.5 / 401 + 0.1 + 0.1) / 3, abs=1e-3)
    assert found.low > 0.03 and found.high < 0.13


def test_rates_that_are_exactly_as_predicted_have_an_interval():
    """It ended at 6e-6: a measured error of 0 is luck, too."""
    points = grades(np.log([0.3 / 0.7, 1.0, 0.7 / 0.3]), [30, 50, 70], 100)
    curve = Curve.of(points)
    for one in (*curve_errors(points, curve).values(), smooth_ece(points, curve)):
        assert one.value < 1e-6 and one.low < 1e-6
    assert curve_errors(points, curve)["ici"].high > 0.03 and smooth_ece(points, curve).high > 0.03


def test_intervals_of_few_different_scores_hold():
    """Of three risk groups none of these intervals held."""
    rng, held = np.random.default_rng(1), []
    scores, shares, rates = np.array([-2.0, -0.5, 1.5]), np.array([0.5, 0.3, 0.2]), np.array([0.1, 0.55, 0.7])
    gap = np.abs(expit(scores) - rates)
    for _ in range(40):
        group = rng.choice(3, 1000, p=shares)
        points = sums(scores[group], (rng.random(1000) < rates[group]).astype(int)).points(0)
        found = curve_errors(points, Curve.of(points))
        held += [found["ici"].low <= shares @ gap <= found["ici"].high]
        held += [found["brier_calibration"].low <= shares @ gap**2 <= found["brier_calibration"].high]
    assert np.mean(held) >= 0.85


def test_an_error_that_is_small_by_luck_has_no_shorter_interval():
    """Of 70 samples of a calibrated model some have a curve near the diagonal: that does not show that it is within 0.1 %."""
    rng, found = np.random.default_rng(5), []
    for _ in range(60):
        x = 1.2 * rng.standard_normal(70) - 0.3
        points = sums(x, (rng.random(70) < expit(x)).astype(int)).points(0)
        curve = Curve.of(points)
        found.append([*curve_errors(points, curve).values(), smooth_ece(points, curve)])
    value, _, high = np.moveaxis(np.array(found), -1, 0)
    lucky = value[:, 0].argsort()[:5]
    assert (value[lucky, 0] < 0.02).all()
    assert (high[lucky] > 0.7 * np.median(high, axis=0)).all()


def test_hard_probabilities_are_wrong_for_a_share_of_the_samples():
    """Their interval went from 0 to 1: between a probability of 0 and a fitted one of 0.1, log-odds are no scale."""
    p, y = np.repeat([0.0, 1.0], [600, 400]), np.repeat([0, 1, 0, 1], [540, 60, 120, 280])
    points = ScoreSums.of(as_logits(p, True), y).points(0)
    found = curve_errors(points, Curve.of(points))
    for name, (wrong, n) in {"ici": (180, 1000), "e50": (60, 600), "e90": (120, 400)}.items():
        np.testing.assert_allclose(found[name], wilson(wrong, n), atol=1e-6)
    value, low, high = found["brier_calibration"]
    assert 0.03 < low < 0.042 == pytest.approx(value, abs=1e-6) and value < high < 0.06


def test_errors_of_one_score_are_those_of_a_share():
    points = sums(np.zeros(1000), np.repeat([0, 1], [400, 600])).points(0)
    _, low, high = curve_errors(points, Curve.of(points))["ici"]
    np.testing.assert_allclose([low, high], np.array(wilson(600, 1000)[1:]) - 0.5, atol=0.0015)


def test_the_parts_of_the_brier_score_add_up():
    x, y = draw(1000)
    points = sums(x, y).points(0)
    curve = Curve.of(points)
    calibration = curve_errors(points, curve)["brier_calibration"]
    parts = brier_parts(points, curve, calibration)
    score = ((expit(x) - y) ** 2).mean()
    uncertainty, discrimination = parts["brier_uncertainty"].value, parts["brier_discrimination"].value
    assert uncertainty == pytest.approx(y.mean() * (1 - y.mean()))
    assert calibration.value - discrimination + uncertainty == pytest.approx(score, abs=1e-9)
    assert curve is not None
    assert discrimination == pytest.approx(np.var(curve.at(x)[0]), rel=0.05)


def test_smooth_ece_by_its_kernel():
    x, y = draw(600, a=0.0, b=0.5)
    p = expit(x)
    found = smooth_ece(sums(x, y).points(0), None).value
    t = (np.arange(2000) + 0.5) / 2000
    kernel = sum(norm.pdf(t[:, None], image, found) for image in (p, -p, 2 - p))  # reflected at 0 and 1
    assert np.abs(kernel @ (y - p)).mean() / len(p) == pytest.approx(found, abs=1e-3)


def test_smooth_ece_of_a_calibrated_model_may_be_zero():
    points = sums(*draw(2000, a=0.0, b=1.0)).points(0)
    low, value = smooth_ece(points, Curve.of(points)).low, smooth_ece(points, None).value
    assert low == 0 < value
    assert smooth_width(np.zeros((2, CELLS))).tolist() == [0, 0]
    one = np.zeros(CELLS)
    one[CELLS // 2] = 1e-6
    assert smooth_width(one) == pytest.approx(1e-6, rel=1e-3)  # a small error is not rounded to 0


def test_observed_to_expected_and_the_tests():
    x, y = draw(500)
    points, p = sums(x, y).points(0), expit(x)
    assert observed_to_expected(points).value == pytest.approx(y.sum() / p.sum(), rel=1e-9)
    z = ((y - p) * (1 - 2 * p)).sum() / np.sqrt(((1 - 2 * p) ** 2 * p * (1 - p)).sum())
    assert spiegelhalter(points) == pytest.approx(z, rel=1e-6)
    design = basis(x, Curve.of(points).knots)  # type: ignore[union-attr]
    score, information = design.T @ (y - p), (design * (p * (1 - p))[:, None]).T @ design
    statistic, freedom, p_value = score_test(points)
    assert p_value == pytest.approx(chi2.sf(statistic, 4), abs=0.02)
    assert freedom == 4 and statistic == pytest.approx(score @ np.linalg.solve(information, score), rel=1e-4)


@pytest.mark.parametrize("mean", [-5.0, 5.0])
def test_a_single_surprise_blames_few_calibrated_models(mean):
    """Of rare outcomes χ² gave p < 0.0025 in 3 % of draws: of twenty sites one was blamed in 40 % of evaluations."""
    rng, found = np.random.default_rng(0), []
    for _ in range(1000):
        x = mean + 1.2 * rng.standard_normal(100)
        found.append(score_test(Points(x, (rng.random(100) < expit(x)).astype(float), np.ones(100)))[2])
    assert np.mean(np.array(found) < 0.05) <= 0.06
    assert np.mean(np.array(found) < 0.0025) <= 0.008


def test_a_model_without_surprise_is_not_blamed_for_being_sure():
    """All are right, as they should be: p was 7e-7, and the verdict "The model is not calibrated."."""
    for sure in (1e-4, 1e-9, 0.0):
        y = np.arange(20) % 2
        result = fedcal.evaluate({"a": (np.where(y == 1, 1 - sure, sure), y)}, probs=True)
        assert result.pooled["tests"]["score"]["p"] > 0.99 and "cannot be judged" in result.verdict[0]


def test_discrimination_is_at_most_the_variance_of_an_outcome():
    """Scores that are all but equal leave its error so large that a factor of it means nothing."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(0, 1e-3, 60), rng.integers(0, 2, 60)
    assert fedcal.evaluate([(x, y)]).pooled["brier_discrimination"]["high"] <= 0.25
