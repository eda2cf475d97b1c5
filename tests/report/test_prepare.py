from __future__ import annotations

import numpy as np
import pytest

from fedcal.report import prepare

RESULTS = {
    "data": {"clients": ["a", "b", "c"], "classes": ["x", "y"], "train_counts": [[3, 1], [0, 0], [0, 5]]},
    "methods": {
        "uncal": {
            "global": {"ece": 0.2, "ece_low": 0.1, "ece_high": 0.3, "ece_floor": 0.05},
            "clients": {"local": {"ece": [0.1, None, 0.4], "ece_floor": [0.2, None, 0.1]}},
            "reliability": {
                "edges": [0.0, 0.5, 1.0], "count": [0, 10], "confidence": [None, 0.8],
                "accuracy": [None, 0.7], "low": [None, 0.6], "high": [None, 1.0],
            },
        },
        "ens": {
            "global": {"ece": None, "ece_low": None, "ece_high": None, "ece_floor": None},
            "clients": {"local": {"ece": [None, None, None], "ece_floor": [None, None, None]}},
        },
    },
}  # fmt: skip


def test_reliability_keeps_empty_bins_as_nan():
    curve = prepare.prepare_reliability(RESULTS, "uncal")
    np.testing.assert_array_equal(curve.accuracy, [np.nan, 0.7])
    np.testing.assert_array_equal(curve.in_band, [False, True])
    assert curve.ece == pytest.approx(0.2)


def test_ece_is_one_entry_a_method():
    data = prepare.prepare_ece(RESULTS)
    assert data.methods == ["uncal", "ens"]
    np.testing.assert_array_equal(data.high, [0.3, np.nan])
    np.testing.assert_array_equal(data.floor, [0.05, np.nan])


def test_clients_and_the_worst_of_them():
    data = prepare.prepare_clients(RESULTS, "local")
    np.testing.assert_array_equal(data.ece, [[0.1, np.nan, 0.4], [np.nan] * 3])
    assert [data.worst(0), data.worst(1)] == [2, None]


def test_skew_shares_sum_to_one_except_for_an_empty_client():
    data = prepare.prepare_skew(RESULTS)
    np.testing.assert_allclose(data.share, [[0.75, 0.25], [0, 0], [0, 1]])
    assert data.counts.tolist() == [[3, 1], [0, 0], [0, 5]]


def test_training_is_in_percent_by_round():
    series = prepare.prepare_training([{"round": 3, "loss": 1.5, "accuracy": 0.5, "ece": None}])
    assert [s.title for s in series] == ["Training loss", "Accuracy, %", "ECE, %"]
    assert series[1].values.tolist() == [50.0] and series[1].rounds.tolist() == [3.0]
    assert np.isnan(series[2].values).all()
