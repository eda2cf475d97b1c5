"""AUROC and average precision against scikit-learn; decisions against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import average_precision_score, roc_auc_score

from fedcal.assess.discrimination import Decisions, auprc, auroc
from fedcal.assess.sums import CURVE
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
    for one in Decisions.at(whole, 0, CURVE[[9, 29, 49, 89]]):
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


def test_few_decisions_are_hidden():
    x = np.append(np.full(50, -2.0), [3.0, 3.0])
    one = Decisions.at(sums(x, [0] * 50 + [1, 1]), 0, [0.5])[0]
    assert one.measures()["ppv"].value == 1 and np.isnan(one.measures(min_count=5)["ppv"].value)
