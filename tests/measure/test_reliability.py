"""Reliability adds exactly, and its floor, band and interval mean what they say."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal import FedCalError, Reliability
from fedcal.measure.tally import Tally, over_clients, pooled


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


def test_interval_covers_the_truth():
    """True ECE 0.1 by construction; a 95 % interval should hold it about that often."""
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(200):
        confidence = rng.uniform(0.5, 0.9, 2000)
        low, high = of_top(confidence, rng.random(2000) < confidence + 0.1).interval(seed=trial, draws=400)
        covered += low <= 0.1 <= high
    assert covered >= 180


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


def tallies(seed=0, n=300, k=5):
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    return logits.log_softmax(1), torch.randint(k, (n,), generator=rng)


@given(st.lists(st.integers(0, 300), max_size=6), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_tallies_of_any_split_equal_the_pooled_metrics(cuts, seed):
    log_probs, labels = tallies(seed)
    bounds = [0, *sorted(cuts), len(labels)]
    parts = [Tally.of(log_probs[a:b], labels[a:b]) for a, b in itertools.pairwise(bounds)]
    whole, summed = Tally.of(log_probs, labels).summary(interval=True), pooled(parts).summary(interval=True)
    assert summed == pytest.approx(whole, rel=1e-12, abs=1e-12)


def test_tally_agrees_with_the_metric_functions():
    from fedcal.measure import metrics

    log_probs, labels = tallies(3, n=2000)
    found, probs = Tally.of(log_probs, labels).summary(), log_probs.exp()
    for name in ("accuracy", "nll", "brier", "ece", "mce", "classwise_ece"):
        assert found[name] == pytest.approx(getattr(metrics, name)(probs, labels), abs=1e-12), name
    assert found["top3"] == pytest.approx(metrics.top_k(log_probs, labels, 3))
    assert found["equal_mass_ece"] == pytest.approx(metrics.equal_mass_ece(probs, labels), abs=0.01)


def test_clients_without_test_samples_do_not_count():
    log_probs, labels = tallies()
    found = over_clients(["a", "b"], [Tally.of(log_probs, labels), Tally.of(log_probs[:0], labels[:0])])
    assert found["clients"] == 1 and found["worst_client"] == "a"
    assert found["ece"] == found["worst_ece"] == Tally.of(log_probs, labels).summary()["ece"]
