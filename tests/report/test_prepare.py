from __future__ import annotations

import numpy as np
import pytest

from fedcal.report import prepare


def as_written(values):
    """A list of results.json, with NaN for null."""
    return np.array(values, float)


def test_reliability_keeps_empty_bins_as_nan(digits):
    curve, written = prepare.prepare_reliability(digits, "uncal"), digits["methods"]["uncal"]["reliability"]
    assert None in written["accuracy"], "nothing to test: no bin is empty"
    np.testing.assert_array_equal(np.isnan(curve.accuracy), curve.count == 0)
    for name in ("edges", "count", "confidence", "accuracy", "low", "high"):
        np.testing.assert_array_equal(getattr(curve, name), as_written(written[name]))
    assert curve.ece == digits["methods"]["uncal"]["global"]["ece"]


def test_a_bin_is_in_the_band_up_to_its_ends(digits):
    written = digits["methods"]["uncal"]["reliability"]
    full = [b for b, n in enumerate(written["count"]) if n][:3]
    for b, accuracy in zip(full, (written["low"][full[0]], written["high"][full[1]], -0.1), strict=True):
        written["accuracy"][b] = accuracy
    inside = prepare.prepare_reliability(digits, "uncal").in_band
    assert inside[full].tolist() == [True, True, False]
    assert not inside[[b for b, n in enumerate(written["count"]) if not n]].any()


def test_ece_has_one_entry_per_method(digits):
    digits["methods"]["ens"]["global"].update(ece=None, ece_low=None, ece_high=None, ece_floor=None)
    data = prepare.prepare_ece(digits)
    assert data.methods == list(digits["methods"])
    ens, uncal = data.methods.index("ens"), digits["methods"]["uncal"]["global"]
    assert np.isnan([data.ece[ens], data.low[ens], data.high[ens], data.floor[ens]]).all()
    first = [values[0] for values in (data.ece, data.low, data.high, data.floor)]
    assert first == [uncal[key] for key in ("ece", "ece_low", "ece_high", "ece_floor")]


def test_clients_and_the_worst_of_them(digits):
    local = digits["methods"]["uncal"]["clients"]["local"]
    local["ece"][1] = local["ece_floor"][1] = None  # it has no test samples
    local["ece"][3] = 0.99
    digits["methods"]["ens"]["clients"]["local"]["ece"] = [None] * 8
    data = prepare.prepare_clients(digits, "local")
    assert data.clients == digits["data"]["clients"] and data.ece.shape == (5, 8)
    np.testing.assert_array_equal(data.ece[0], as_written(local["ece"]))
    np.testing.assert_array_equal(data.floor[0], as_written(local["ece_floor"]))
    assert [data.worst(0), data.worst(data.methods.index("ens"))] == [3, None]


def test_skew_shares_sum_to_one_except_for_an_empty_client(digits):
    digits["data"]["train_counts"][2] = [0] * 10
    data = prepare.prepare_skew(digits)
    assert data.counts.tolist() == digits["data"]["train_counts"]
    assert data.share.sum(axis=1) == pytest.approx([1, 1, 0, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(data.share[0] * data.counts[0].sum(), data.counts[0])


def test_training_is_in_percent_by_round(rounds):
    rounds[-1]["ece"] = None
    series = prepare.prepare_training(rounds)
    assert [s.title for s in series] == ["Training loss", "Accuracy, %", "ECE, %"]
    assert all(s.rounds.tolist() == [1, 2, 3] for s in series)
    assert series[0].values.tolist() == [r["loss"] for r in rounds]
    assert series[1].values.tolist() == [100 * r["accuracy"] for r in rounds]
    assert np.isnan(series[2].values).tolist() == [False, False, True]
