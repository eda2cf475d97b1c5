"""AUROC and average precision against scikit-learn; decisions against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import average_precision_score, roc_auc_score

from fedcal.assess.discrimination import Decisions, auprc, auroc
from fedcal.assess.sums import CURVE
from fedcal.base.checks import as_logits
from scores import classes, draw, sums


@pytest.mark.parametrize(
    ("n", "seed", "spread"), [(30, 1, 1.5), (200, 2, 1.5), (2000, 3, 0.05), (20_000, 4, 3.0), (300_000, 5, 1.0)]
)
def test_areas_are_scikit_learns(n, seed, spread):
    x, y = draw(n, seed, spread=spread)
    for found, expected in ((auroc, roc_auc_score), (auprc, average_precision_score)):
        estimate, bound = found(sums(x, y), 0)
        error = abs(estimate.value - expected(y, x))
        assert error <= bound + 1e-12
        assert error < (1e-4 if n >= 200 else 2e-3)
        assert estimate.low < estimate.value < estimate.high


def test_ties_are_exact():
    x, y = draw(3000)
    x = np.log(np.round(expit(x), 1).clip(0.05, 0.95) / (1 - np.round(expit(x), 1).clip(0.05, 0.95)))
    for found, expected in ((auroc, roc_auc_score), (auprc, average_precision_score)):
        estimate, bound = found(sums(x, y), 0)
        assert estimate.value == pytest.approx(expected(y, x), abs=1e-9) and bound == pytest.approx(0, abs=1e-9)
    few, label = draw(60, 7)  # most scores are of one class only
    estimate, bound = auprc(sums(few.round(1), label), 0)
    assert estimate.value == pytest.approx(average_precision_score(label, few.round(1)), abs=1e-12) and bound < 1e-12
    same, _ = auroc(sums(np.zeros(100), np.arange(100) % 2), 0)
    assert same.value == 0.5 and 0.3 < same.low < same.high < 0.7


@pytest.mark.parametrize(("share", "n"), [(0.05, 20_000), (0.1, 20_000), (0.3, 100_000)])
def test_one_frequent_score_among_many_different_ones(share, n):
    """Such as that of all patients with a missing value: pairs in its bin are nearly all ties."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random(n) < share, 0.7, rng.normal(size=n))
    y = (rng.random(n) < expit(x)).astype(int)
    for found, expected in ((auroc, roc_auc_score), (auprc, average_precision_score)):
        estimate, bound = found(sums(x, y), 0)
        assert abs(estimate.value - expected(y, x)) < min(2e-4, bound)


@pytest.mark.parametrize("spread", [1, 15, 30, 100])
@pytest.mark.parametrize("noise", [1.0, 40.0])
def test_the_bound_holds_for_log_odds_beyond_those_that_are_told_apart(spread, noise):
    rng = np.random.default_rng(spread)
    x = rng.normal(0, spread, 4000)
    y = (x + noise * rng.logistic(size=4000) > 0).astype(int)
    for found, expected in ((auroc, roc_auc_score), (auprc, average_precision_score)):
        estimate, bound = found(sums(x, y), 0)
        assert abs(estimate.value - expected(y, x)) <= bound + 1e-12


def test_different_scores_in_a_bin_at_the_end_do_not_tie():
    y = np.arange(200) % 2
    worst, bound = auroc(sums(60.0 - 10 * y, y), 0)  # an AUROC of 0
    assert worst.value <= bound
    p = np.random.default_rng(0).choice([0, 1e-30, 1e-25, 0.3, 1], 200)
    for found, expected in ((auroc, roc_auc_score), (auprc, average_precision_score)):
        estimate, bound = found(sums(as_logits(p, True), y), 0)
        assert 0 < abs(estimate.value - expected(y, p)) <= bound


@pytest.mark.parametrize("k", [2, 3, 20])
def test_probabilities_of_exactly_0_and_1_tie(k):
    rng = np.random.default_rng(0)
    p = rng.multinomial(5, rng.dirichlet(np.full(k, 0.4), 3000)) / 5  # votes of five trees
    y = (p.cumsum(1) > rng.random((3000, 1))).argmax(1)
    y[::20] = rng.integers(k, size=150)
    whole = sums(as_logits(p, True), y)
    assert (p == 0).mean() > 0.2 and (p == 1).any()
    for found, expected in ((auroc, roc_auc_score), (auprc, average_precision_score)):
        for row, label in ((0, 1),) if k == 2 else ((1, 1), (2, 2)):
            estimate, bound = found(whole, row)
            assert estimate.value == pytest.approx(expected(y == label, p[:, label]), abs=1e-9) and bound < 1e-9


def test_every_class_against_the_rest():
    z, y = classes(1500, 5)
    whole = sums(z, y)
    for k in range(5):
        assert auroc(whole, k)[0].value == pytest.approx(roc_auc_score(y == k, softmax(z, axis=1)[:, k]), abs=1e-4)


def test_extremes_and_undefined():
    x = np.linspace(-3, 3, 40)
    perfect = auroc(sums(x, (x > 0).astype(int)), 0)[0]
    assert perfect.value == perfect.high == 1 and 0.8 < perfect.low < 1
    assert np.isnan(auroc(sums(x, np.ones(40, int)), 0)[0].value)
    assert np.isnan(auprc(sums(x, np.zeros(40, int)), 0)[0].value)
    assert auprc(sums(x, (x > 0).astype(int)), 0)[0].value == 1


def test_decisions_by_hand():
    x, y = draw(400)
    p, whole = expit(x), sums(x, y)
    for one in (Decisions.at(whole, 0, t) for t in CURVE[[9, 29, 49, 89]]):
        t = one.threshold
        true, false = ((p >= t) & (y == 1)).sum(), ((p >= t) & (y == 0)).sum()
        found = one.measures()
        assert found["net_benefit"].value == pytest.approx(true / 400 - false / 400 * t / (1 - t), abs=1e-13)
        assert one.treat_all() == pytest.approx(y.mean() - (1 - y.mean()) * t / (1 - t), abs=1e-13)
        assert found["sensitivity"].value == pytest.approx(true / y.sum())
        assert found["specificity"].value == pytest.approx(1 - false / (1 - y).sum())
        assert found["ppv"].value == pytest.approx(true / (true + false))
        assert found["npv"].value == pytest.approx(((p < t) & (y == 0)).sum() / (p < t).sum())
        assert all(one.low <= one.value <= one.high for one in found.values())


def test_several_thresholds_are_as_one_by_one():
    whole = sums(*draw(60))
    several, alone = Decisions.at(whole, 0, CURVE), [Decisions.at(whole, 0, t) for t in CURVE]
    for name, found in several.measures(min_count=5).items():
        np.testing.assert_array_equal(np.transpose(found), [one.measures(min_count=5)[name] for one in alone])
    np.testing.assert_array_equal(several.treat_all(), [one.treat_all() for one in alone])


def test_few_decisions_are_hidden():
    x = np.append(np.full(50, -2.0), [3.0, 3.0])
    one = Decisions.at(sums(x, [0] * 50 + [1, 1]), 0, 0.5)
    assert one.measures()["ppv"].value == 1 and np.isnan(one.measures(min_count=5)["ppv"].value)
