"""Conformal sets cover what they promise, and a federation's are the pooled ones."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom

from fedcal import FedCalError
from fedcal.base.conformal import ConformalHistogram, Score, predict_sets
from fedcal.measure.conformal import SetTally

SCORES = [Score("lac"), Score("aps"), Score("raps", penalty=0.05, free=2)]


def drawn(n, k, seed, sharpness=2.0, distort=1.5):
    """Probabilities of an over-confident model, and labels."""
    rng = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, k, generator=rng, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0] if n else torch.zeros(0, dtype=torch.int64)
    return (distort * logits).softmax(1), labels


def own_scores(score, probs, labels, u=None):
    return score.of(probs, u)[np.arange(len(labels)), labels.numpy()]


@pytest.mark.parametrize("score", SCORES, ids=lambda s: s.kind)
@pytest.mark.parametrize("randomised", [False, True])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_marginal_coverage(score, randomised, alpha):
    """Covered samples follow a beta-binomial of mean ⌈(n+1)(1−α)⌉/(n+1), or (bins) a little more."""
    n, m, draws = 200, 200, 300
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(draws):
        probs, labels = drawn(n + m, 5, seed)
        u = rng.random(n + m) if randomised else None
        mine, theirs = (None, None) if u is None else (u[:n], u[n:])
        threshold = ConformalHistogram.of(probs[:n], labels[:n], score, mine).threshold(alpha)
        sets = predict_sets(probs[n:], threshold, score, theirs)
        covered += SetTally.of(sets, labels[n:]).covered
    rank = math.ceil((n + 1) * (1 - alpha))
    error = 4 * math.sqrt(betabinom(m, rank, n + 1 - rank).var() / draws) / m
    expected = rank / (n + 1)
    assert expected - error <= covered / (m * draws) <= expected + error + 0.005


@given(st.integers(0, 300), st.lists(st.integers(0, 300), max_size=6), st.integers(2, 8), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_any_split_is_the_pooled_one(n, cuts, k, seed):
    probs, labels = drawn(n, k, seed)
    for score in SCORES:
        whole = ConformalHistogram.of(probs, labels, score)
        parts = np.split(np.random.default_rng(seed).permutation(n), sorted(min(c, n) for c in cuts))
        total = ConformalHistogram.of(probs[:0], labels[:0], score)
        for part in parts:
            total = total + ConformalHistogram.of(probs[part], labels[part], score)
        assert np.array_equal(total.count, whole.count) and total.n == n
        assert total.threshold(0.1) == whole.threshold(0.1)


@given(st.integers(20, 300), st.floats(0.06, 0.9), st.integers(0, 10**6), st.sampled_from([10, 100, 8192]))
@settings(max_examples=60, deadline=None)
def test_the_threshold_is_the_exact_quantile_rounded_up(n, alpha, seed, bins):
    probs, labels = drawn(n, 4, seed)
    for score in SCORES:
        exact = np.sort(own_scores(score, probs, labels))[math.ceil((n + 1) * (1 - alpha) - 1e-9) - 1]
        histogram = ConformalHistogram.of(probs, labels, score, n_bins=bins)
        found, edges = histogram.threshold(alpha), histogram.edges
        assert exact <= found and not ((edges >= exact) & (edges < found)).any()  # nothing lies between
        if bins == 8192 and 1e-9 < exact < 1 - 1e-9:
            assert found / (1 - found) < 1.007 * exact / (1 - exact)


def test_scores_by_hand():
    probs = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64)
    assert Score("lac").of(probs)[0] == pytest.approx([0.5, 0.8, 0.7])
    assert Score("aps").of(probs)[0] == pytest.approx([0.5, 1.0, 0.8])
    assert Score("aps").of(probs, [0.5])[0] == pytest.approx([0.25, 0.9, 0.65])
    assert Score("raps", 0.1, 1).of(probs)[0] == pytest.approx([0.5, 1.2, 0.9])
    assert predict_sets(probs, 0.8 + 1e-9).tolist() == [[True, False, True]]


def test_few_samples_or_a_tiny_alpha_give_every_class():
    probs, labels = drawn(1, 4, 0)
    one = ConformalHistogram.of(probs, labels)
    assert one.threshold(0.1) == math.inf and predict_sets(probs, one.threshold(0.1)).all()
    assert one.threshold(0.5) < math.inf
    none = ConformalHistogram.of(probs[:0], labels[:0])
    assert none.n == 0 and none.threshold(0.99) == math.inf
    many = ConformalHistogram.of(*drawn(500, 4, 1))
    assert many.threshold(1e-4) == math.inf
    assert many.threshold(1 - 1e-12) <= many.threshold(0.5)


def test_certain_models():
    """All scores in one bin, at either end."""
    probs = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0] * 10]
    right = probs.argmax(1)
    assert (
        predict_sets(probs, ConformalHistogram.of(probs, right, Score("lac")).threshold(0.1), Score("lac")).sum() == 40
    )
    wrong = (right + 1) % 3
    assert predict_sets(probs, ConformalHistogram.of(probs, wrong).threshold(0.1)).all()


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, float("nan"), "0.1", None, True])
def test_a_bad_alpha_is_one_line(alpha):
    with pytest.raises(FedCalError, match="alpha must lie between 0 and 1") as caught:
        ConformalHistogram.of(*drawn(10, 3, 0)).threshold(alpha)
    assert "\n" not in str(caught.value)


def test_other_bad_input():
    probs, labels = drawn(10, 3, 0)
    with pytest.raises(FedCalError, match="do not add"):
        ConformalHistogram.of(probs, labels) + ConformalHistogram.of(probs, labels, Score("lac"))
    with pytest.raises(FedCalError, match="score"):
        Score("asp")  # pyright: ignore[reportArgumentType]
    with pytest.raises(FedCalError, match="penalty"):
        Score("raps", penalty=-1.0)
    with pytest.raises(FedCalError, match="one per sample"):
        Score().of(probs, [0.5])
    with pytest.raises(FedCalError, match="not probabilities"):
        ConformalHistogram.of(2 * probs, labels)


def test_coverage_and_size_add():
    probs, labels = drawn(100, 4, 0)
    sets = predict_sets(probs, 0.9)
    whole, parts = SetTally.of(sets, labels), SetTally.of(sets[:30], labels[:30]) + SetTally.of(sets[30:], labels[30:])
    assert whole == parts
    assert whole.mean_size == pytest.approx(float(sets.sum(1).mean()))
    assert whole.coverage == float(sets[np.arange(100), labels].mean())
    assert math.isnan(SetTally.of(sets[:0], labels[:0]).coverage)
