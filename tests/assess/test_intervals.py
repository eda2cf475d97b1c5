"""Closed-form intervals against statsmodels; the spread over sites too; and a small simulation of the coverage."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student
from statsmodels.stats.meta_analysis import combine_effects
from statsmodels.stats.proportion import proportion_confint

from fedcal.assess.intervals import difference, mean, on_logit, wilson
from fedcal.assess.spread import random_effects, spread
from paper.studies.evaluation import WORLDS, draw_binary, gather


def test_wilson_is_statsmodels():
    for part, whole in ((0, 10), (3, 10), (10, 10), (77, 1000)):
        assert wilson(part, whole)[1:] == pytest.approx(proportion_confint(part, whole, method="wilson"), abs=1e-12)


def test_many_proportions_at_once_are_as_one_by_one():
    part, whole = np.array([0, 3, 10, 0]), np.array([10, 10, 10, 0])
    found = wilson(part, whole)
    np.testing.assert_array_equal(np.transpose(found), [wilson(*one) for one in zip(part, whole, strict=True)])
    several = difference(found, wilson(part[::-1] // 2, 10), np.arange(4.0))
    for i in range(3):
        alone = difference(wilson(part[i], whole[i]), wilson(part[3 - i] // 2, 10), float(i))
        np.testing.assert_array_equal([end[i] for end in several], alone)
    assert np.isnan([end[3] for end in several]).all()


def test_a_mean_without_skewness_has_students_interval():
    v = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = mean(5, v.sum(), (v**2).sum(), (v**3).sum())
    reach = student.ppf(0.975, 4) * v.std(ddof=1) / np.sqrt(5)
    assert found == pytest.approx((3, 3 - reach, 3 + reach))
    skewed = np.append(v, 40.0)
    value, low, high = mean(6, skewed.sum(), (skewed**2).sum(), (skewed**3).sum())
    assert high - value > value - low > 0


def test_a_difference_of_shares_is_close_to_walds_where_samples_are_many():
    n, a, b, w = 100_000, 0.3, 0.2, 0.25
    found = difference(wilson(a * n, n), wilson(b * n, n), w)
    error = np.sqrt((a + w * w * b - (a - w * b) ** 2) / n)
    assert found == pytest.approx((a - w * b, a - w * b - 1.96 * error, a - w * b + 1.96 * error), abs=1e-4)


def test_shares_at_the_ends_have_no_logit_interval():
    assert np.isnan(on_logit(1.0, 0.1).low)


def test_random_effects_are_statsmodels():
    values, errors = np.array([0.1, 0.5, 0.9, 0.2, 0.4]), np.array([0.1, 0.2, 0.15, 0.1, 0.3])
    found = random_effects(values, errors)
    expected = combine_effects(values, errors**2, method_re="iterated", use_t=True)
    assert found.mean == pytest.approx(expected.mean_effect_re, abs=1e-6)
    assert found.tau**2 == pytest.approx(expected.tau2, abs=1e-6)
    assert found.error == pytest.approx(expected.sd_eff_w_re_hksj, rel=1e-5)
    sure = random_effects(np.array([1.0, 2.0]), np.array([1e-10, 0.5]))  # of one site next to nothing is uncertain
    assert sure.share == pytest.approx(sure.tau**2 / (sure.tau**2 + 0.25 / 2))
    alike = random_effects(np.array([0.1, 0.1, 0.1]), np.array([0.1, 0.2, 0.3]))
    assert alike.tau == 0 and alike.share == 0


def test_spread_leaves_out_sites_without_the_measure():
    def site(value, low, high):
        return {"oe_ratio": {"value": value, "low": low, "high": high}}

    sites = {
        "a": site(1.0, 0.8, 1.25),
        "b": site(2.0, 1.6, 2.5),
        "c": site(None, None, None),
        "d": site(1.0, None, None),
    }
    found = spread(sites)["oe_ratio"]
    assert found["sites"] == 2 and 1 < found["mean"]["value"] < 2
    assert found["prediction"]["low"] < found["mean"]["low"] < found["mean"]["high"] < found["prediction"]["high"]
    assert spread({"a": sites["a"]}) == {}


def test_intervals_cover():
    """A small version of paper/studies/evaluation.py: of 40 draws, 95 % are 38; 31 or fewer are not by chance."""
    found = gather([draw_binary(WORLDS[1], 300, 40, [0])], 40)["coverage"]
    missed = {name: inside for name, (_, inside, _) in found.items() if inside < 32 / 40}
    assert missed == {}


@pytest.mark.parametrize("always", [0, 1])
def test_sites_that_are_always_right_count_in_the_summary(always):
    """They were left out, so that of 5 sites with 100 % and 5 with 70 % the mean was 70 %."""
    rows = [wilson(n, 60) for n in [60 * always] * 5 + [42] * 5]
    found = spread({str(i): {"accuracy": one._asdict()} for i, one in enumerate(rows)})["accuracy"]
    ends = (0.7, 0.97) if always else (0.03, 0.7)
    assert found["sites"] == 10 and ends[0] + 0.05 < found["mean"]["value"] < ends[1] - 0.05
    assert found["prediction"]["low"] < ends[0] and ends[1] < found["prediction"]["high"]
    assert found["mean"]["low"] > 0 and found["mean"]["high"] < 1
