"""Thresholds cover what they promise, and a federation's are the pooled ones."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom

from fedcal import FedCalError
from fedcal.base import conformal
from fedcal.base.conformal import LEVELS, count_scores, edges_of, level_of, rank_of, scores_of, sets_of, threshold_curve

SCORES = ["lac", "aps", "raps"]


@pytest.fixture(autouse=True, scope="module")
def penalties_of_few_classes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conformal, "PENALTY", 0.05)
        patch.setattr(conformal, "FREE", 2)
        yield


def drawn(n, k, seed, sharpness=2.0, distort=1.5):
    """Probabilities of an over-confident model, and labels."""
    rng = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, k, generator=rng, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0] if n else torch.zeros(0, dtype=torch.int64)
    return (distort * logits).softmax(1), labels.numpy()


def of_labels(score, probs, labels):
    return scores_of(score, probs)[np.arange(len(labels)), labels]


def curve_of(score, probs, labels, bins=8192):
    edges = edges_of(score, probs.shape[1], bins)
    return threshold_curve(count_scores(of_labels(score, probs, labels), edges), edges)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_marginal_coverage(score, alpha):
    """Covered samples follow a beta-binomial of mean ⌈(n+1)(1−α)⌉/(n+1), or (bins) a little more."""
    n, m, draws = 200, 200, 300
    covered = in_sets = 0
    for seed in range(draws):
        probs, labels = drawn(n + m, 5, seed)
        threshold = curve_of(score, probs[:n], labels[:n])[level_of(alpha)]
        scores = scores_of(score, probs[n:])
        covered += int((scores[np.arange(m), labels[n:]] <= threshold).sum())
        in_sets += int(sets_of(scores, threshold)[np.arange(m), labels[n:]].sum())
    rank = math.ceil((n + 1) * (1 - alpha))
    error = 4 * math.sqrt(betabinom(m, rank, n + 1 - rank).var() / draws) / m
    expected = rank / (n + 1)
    assert expected - error <= covered / (m * draws) <= expected + error + 0.005
    assert in_sets >= covered  # the best class is always in its set


@given(st.integers(0, 300), st.lists(st.integers(0, 300), max_size=6), st.integers(2, 8), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_any_split_is_the_pooled_one(n, cuts, k, seed):
    probs, labels = drawn(n, k, seed)
    for score in SCORES:
        edges = edges_of(score, k, 512)
        own = of_labels(score, probs, labels)
        parts = np.split(np.random.default_rng(seed).permutation(n), sorted(min(c, n) for c in cuts))
        total = sum((count_scores(own[part], edges) for part in parts), np.zeros(len(edges) - 1, np.int64))
        whole = count_scores(own, edges)
        assert np.array_equal(total, whole) and whole.sum() == n
        assert np.array_equal(threshold_curve(total, edges), threshold_curve(whole, edges))


@given(st.integers(1, 300), st.integers(0, 10**6), st.sampled_from([10, 100, 8192]))
@settings(max_examples=60, deadline=None)
def test_the_threshold_is_the_exact_quantile_rounded_up(n, seed, bins):
    probs, labels = drawn(n, 4, seed)
    for score in SCORES:
        edges, curve = edges_of(score, 4, bins), curve_of(score, probs, labels, bins)
        ranked = np.sort(of_labels(score, probs, labels))
        assert (np.diff(curve) <= 0).all()
        for alpha, found in zip(LEVELS[::7], curve[::7], strict=True):
            rank = math.ceil((n + 1) * (1 - alpha) - 1e-9)
            if rank > n:
                assert found == edges[-1]
                continue
            exact = ranked[rank - 1]
            assert exact <= found and not ((edges >= exact) & (edges < found)).any()  # nothing lies between
            if bins == 8192 and 1e-9 < exact < 1 - 1e-9:
                assert found / (1 - found) < 1.007 * exact / (1 - exact)


def test_scores_by_hand():
    probs = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64)
    assert scores_of("lac", probs)[0] == pytest.approx([0.5, 0.8, 0.7])
    assert scores_of("aps", probs)[0] == pytest.approx([0.5, 1.0, 0.8])
    assert scores_of("raps", probs)[0] == pytest.approx([0.5, 1.05, 0.8])
    assert sets_of(scores_of("aps", probs), 0.8 + 1e-9).tolist() == [[True, False, True]]
    assert sets_of(scores_of("lac", probs), 0.1).tolist() == [[True, False, False]]  # else it would be empty
    assert sets_of(scores_of("lac", probs), np.array([0.0, 0.9, 0.0])).tolist() == [[True, True, False]]


@pytest.mark.parametrize("score", SCORES)
def test_the_last_edge_holds_every_class(score):
    """Of a thousand classes too: it stands for an infinite threshold."""
    probs, _ = drawn(50, 1000, 0)
    assert sets_of(scores_of(score, probs), edges_of(score, 1000, 64)[-1]).all()


def test_few_samples_or_a_tiny_alpha_give_every_class():
    probs, labels = drawn(1, 4, 0)
    one, last = curve_of("aps", probs, labels), edges_of("aps", 4, 8192)[-1]
    assert one[level_of(0.1)] == last and one[level_of(0.5)] < last
    assert (curve_of("aps", probs[:0], labels[:0]) == last).all()
    assert curve_of("aps", *drawn(500, 4, 1))[level_of(0.001)] == last
    assert [int(rank_of(0.1, n)) for n in (0, 8, 9, 10, 99)] == [1, 9, 9, 10, 90]


def test_certain_models():
    """All scores in one bin, at either end."""
    probs = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 0] * 10]
    right = probs.argmax(1).numpy()
    assert sets_of(scores_of("lac", probs), curve_of("lac", probs, right)[level_of(0.1)]).sum() == 40
    assert sets_of(scores_of("lac", probs), curve_of("lac", probs, (right + 1) % 3)[level_of(0.1)]).all()


def test_an_alpha_between_two_levels_takes_the_lower_one():
    assert all(level_of(float(alpha)) == number for number, alpha in enumerate(LEVELS))
    assert level_of(np.float32(0.1)) == level_of(0.1)
    assert LEVELS[level_of(0.1049)] == 0.1 and LEVELS[level_of(0.0019)] == 0.001 and level_of(0.5) == len(LEVELS) - 1


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, 0.0005, 0.51, float("nan"), "0.1", None, True])
def test_a_bad_alpha_is_one_line(alpha):
    with pytest.raises(FedCalError, match="alpha must lie") as caught:
        level_of(alpha)
    assert "\n" not in str(caught.value)


def test_scores_are_of_probabilities():
    with pytest.raises(FedCalError, match="not probabilities"):
        scores_of("aps", 2 * drawn(10, 3, 0)[0])
