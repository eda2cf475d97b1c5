"""Reliability adds exactly, and its floor, band and interval mean what they say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal import FedCalError, Reliability
from fedcal.measure.reliability import equal_width


def calibrated(n, seed, low=0.3):
    """Confidences and outcomes of a perfectly calibrated model."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(low, 1.0, n)
    return confidence, rng.random(n) < confidence


def of_top(confidence, correct, n_bins=15):
    return Reliability.of_top(confidence, correct, np.linspace(0, 1, n_bins + 1))


@given(st.integers(0, 500), st.lists(st.integers(0, 500), max_size=8), st.integers(1, 30), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_any_split_equals_the_pooled_one_exactly(n, cuts, n_bins, seed):
    confidence, correct = calibrated(n, seed, low=0.0)
    order = np.random.default_rng(seed + 1).permutation(n)
    parts = np.split(order, sorted(min(c, n) for c in cuts))
    total = Reliability.empty(n_bins)
    for part in parts:
        total = total + of_top(confidence[part], correct[part], n_bins)
    assert total == of_top(confidence, correct, n_bins)
    if n:
        assert total.ece() == of_top(confidence, correct, n_bins).ece()


def test_sums_are_the_confidences():
    confidence, correct = calibrated(1000, 0)
    assert of_top(confidence, correct).confidence_sum.sum() == pytest.approx(confidence.sum(), rel=1e-14)


def test_floor_is_the_mean_ece_of_a_calibrated_model():
    confidence, _ = calibrated(400, 0)
    rng = np.random.default_rng(1)
    measured = [of_top(confidence, rng.random(400) < confidence).ece() for _ in range(2000)]
    assert of_top(confidence, np.zeros(400)).floor() == pytest.approx(np.mean(measured), rel=0.03)


def test_floor_by_hand():
    # one sample of confidence 0.8: |1 − 0.8| with probability 0.8, else 0.8
    assert of_top(np.array([0.8]), np.array([1])).floor() == pytest.approx(0.8 * 0.2 + 0.2 * 0.8)
    assert of_top(np.array([1.0, 1.0]), np.array([1, 1])).floor() == 0


def test_band_holds_a_calibrated_model():
    outside = filled = 0
    for seed in range(50):
        bins = of_top(*calibrated(600, seed))
        (low, high), (_, accuracy) = bins.band(), bins.curve()
        outside += np.nansum((accuracy < low) | (accuracy > high))
        filled += (bins.count > 0).sum()
    assert outside / filled < 0.06


def test_debiased_is_small_for_a_calibrated_model_and_true_for_another():
    confidence, correct = calibrated(20_000, 0)
    assert of_top(confidence, correct).debiased_l2() < 0.01
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 0.9, 20_000)
    assert of_top(confidence, rng.random(20_000) < confidence + 0.1).debiased_l2() == pytest.approx(0.1, abs=0.01)


def test_no_samples_and_other_bins():
    empty = Reliability.empty()
    assert empty.n == 0 and np.isnan(empty.ece()) and np.isnan(empty.floor())
    with pytest.raises(FedCalError, match="do not add"):
        empty + Reliability.empty(10)
    with pytest.raises(FedCalError, match="n_bins"):
        Reliability.empty(0)


@given(st.integers(0, 400), st.integers(0, 60), st.integers(1, 30), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_disclosed_bins_hold_enough_and_nothing_is_lost(n, min_count, n_bins, seed):
    fine = of_top(*calibrated(n, seed, low=0.0), n_bins)
    shown = fine.disclosed(min_count)
    assert np.isin(shown.edges, fine.edges).all() and shown.edges[0] == 0 and shown.edges[-1] == 1
    if n < min_count:
        assert shown.n == 0 and np.isnan(shown.ece())
        return
    assert (shown.count >= min_count).all() and shown.n == n
    assert (shown.sums().sum(1) == fine.sums().sum(1)).all()
    assert not n or shown.ece() <= fine.ece() + 1e-12
    assert min_count > 0 or shown == fine


@pytest.mark.parametrize("n", [0, 1, 14, 15, 40, 1000])
def test_groups_to_look_at_hold_enough_samples_and_all_of_them(n):
    confidence = np.random.default_rng(n).uniform(0.4, 1, n)
    bins = Reliability.of_top(confidence, confidence > 0.6, equal_width(15))
    groups = bins.groups()
    assert groups.n == n and (groups.count >= min(15, n)).all()
    np.testing.assert_array_equal(groups.sums().sum(axis=1), bins.sums().sum(axis=1))
    if n:
        assert 0 <= confidence.min() - groups.edges[0] <= 1 / 15 and groups.edges[-1] == 1
