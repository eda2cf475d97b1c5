"""Confidence maps: monotone, and lifted back with the order kept."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from fedcal.base.arrays import sigmoid, softmax
from fedcal.exact import maps


def rows(seed, n=40, k=5):
    return 4 * np.random.default_rng(seed).normal(size=(n, k))


@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(-6, 6))
@settings(max_examples=60, deadline=None)
def test_lifting_gives_the_wanted_confidence_and_keeps_the_order(seed, k, shift):
    u = rows(seed, k=k)
    _, log_p, log_q = maps.top(u)
    wanted = np.maximum(log_p + log_q + shift, -np.log(k - 1) + 0.05)
    for lift in (maps.lift, maps.lift_by_temperature):
        out = lift(u, wanted)
        assert np.array_equal(out.argsort(axis=1, kind="stable"), u.argsort(axis=1, kind="stable"))
        _, p, q = maps.top(out)
        assert float(np.abs(p + q - wanted).max()) < 1e-6
        of_tensors = lift(torch.from_numpy(u), torch.from_numpy(wanted)).numpy()
        np.testing.assert_allclose(of_tensors, out, rtol=1e-8, atol=1e-8)  # PyTorch's softplus cuts off at 2e-9


@pytest.mark.parametrize("gap", [0.0, 1e-9, 0.01])
def test_two_close_classes_do_not_make_the_others_impossible(gap):
    """Saturated or coarse logits tie: the temperature that should have parted them took the third class to e^-1e6."""
    u, wanted = np.array([[gap, 0.0, -2.0, -3.0]]), np.array([1.0])
    out = maps.lift_by_temperature(u, wanted)
    p = softmax(out, 1)[0]
    assert p[2] > 0.01
    if gap:
        assert p[0] == pytest.approx(sigmoid(wanted[0]))
    else:
        assert p[0] == p[1]
    np.testing.assert_allclose(maps.lift_by_temperature(torch.from_numpy(u), torch.from_numpy(wanted)).numpy(), out)


def test_log_odds_are_exact_at_both_ends():
    u = np.array([[0.0, -800.0], [0.0, 0.0], [1e-12, 0.0]])
    log_p, log_q = maps.log_odds(u, np.array([0, 0, 0]))
    assert (log_p + log_q).tolist() == pytest.approx([800.0, 0.0, 1e-12], rel=1e-6)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 10)), min_size=1, max_size=30))
def test_isotonic_is_scikit_learns(pairs):
    values, weights = np.array(pairs).T
    theirs = IsotonicRegression().fit_transform(np.arange(len(values)), values, sample_weight=weights)
    assert np.allclose(maps.isotonic(values, weights), theirs)


@given(st.integers(0, 10**6), st.sampled_from([1.0, 10.0, 1000.0]))
@settings(max_examples=30, deadline=None)
def test_histogram_maps_are_monotone(seed, pseudo):
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.2, 0.999, 500)
    hit = rng.random(500) < 0.7
    knots = maps.hist_knots(maps.fine_histogram(np.log(p), -np.log1p(-p), hit), pseudo)
    v = np.linspace(-8, 20, 500)
    half = -np.logaddexp(0, -v)
    mapped = maps.map_log_odds({"hist": knots}, half, v - half)
    assert (np.diff(mapped) >= -1e-9).all()


def test_a_map_of_nothing_is_the_identity():
    log_p, log_q = np.array([-0.1]), np.array([2.3])
    assert np.array_equal(maps.map_log_odds({}, log_p, log_q), log_p + log_q)
    assert np.allclose(maps.map_log_odds({"beta": maps.IDENTITY}, log_p, log_q), log_p + log_q)


@pytest.mark.parametrize("seed", range(20))
def test_the_beta_map_does_not_depend_on_the_order_of_the_samples(seed):
    """The last step gains less than rounding: it was taken or not by chance, which moved the map by 1e-8."""
    rng = np.random.default_rng(seed)
    p = sigmoid(rng.normal(1, 1.5, size=120))
    hit, order = rng.random(120) < p**1.5, rng.permutation(120)
    one, other = (
        maps.fit_beta(maps.fine_histogram(np.log(p[i]), -np.log1p(-p[i]), hit[i])) for i in (np.arange(120), order)
    )
    assert np.abs(one - other).max() < 1e-12


def test_a_histogram_map_knows_the_confidence_that_it_measured():
    """Very sure, and often wrong: what was measured at .99999 counts there, not where accuracies are clipped."""
    p = np.full(1000, 0.99999)
    hit = np.arange(1000) < 906
    knots = maps.hist_knots(maps.fine_histogram(np.log(p), -np.log1p(-p), hit), pseudo=1.0)
    mapped = sigmoid(maps.map_log_odds({"hist": knots}, np.log(p[:1]), -np.log1p(-p[:1])))
    assert mapped[0] == pytest.approx(0.906, abs=1e-3)
    assert sigmoid(knots[1]).max() < 1
