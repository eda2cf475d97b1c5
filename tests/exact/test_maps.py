"""Confidence maps: monotone, and lifted back with the order kept."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from fedcal.exact import maps


def rows(seed, n=40, k=5):
    return 4 * torch.randn(n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(-6, 6))
@settings(max_examples=60, deadline=None)
def test_lifting_gives_the_wanted_confidence_and_keeps_the_order(seed, k, shift):
    u = rows(seed, k=k)
    _, log_p, log_q = maps.top(u)
    wanted = (log_p + log_q + shift).clamp_min(-np.log(k - 1) + 0.05)
    for lift in (maps.lift, maps.lift_by_temperature):
        out = lift(u, wanted)
        assert torch.equal(out.argsort(dim=1, stable=True), u.argsort(dim=1, stable=True))
        _, p, q = maps.top(out)
        assert float((p + q - wanted).abs().max()) < 1e-6


def test_log_odds_are_exact_at_both_ends():
    u = torch.tensor([[0.0, -800.0], [0.0, 0.0], [1e-12, 0.0]], dtype=torch.float64)
    log_p, log_q = maps.log_odds(u, torch.tensor([0, 0, 0]))
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
    p = torch.from_numpy(rng.uniform(0.2, 0.999, 500))
    hit = torch.from_numpy(rng.random(500) < 0.7)
    knots = maps.hist_knots(maps.fine_histogram(p.log(), -torch.log1p(-p), hit), pseudo)
    v = torch.linspace(-8, 20, 500, dtype=torch.float64)
    half = torch.nn.functional.logsigmoid(v)
    mapped = maps.map_log_odds({"hist": knots}, half, v - half)
    assert bool((mapped.diff() >= -1e-9).all())


def test_a_map_of_nothing_is_the_identity():
    log_p, log_q = torch.tensor([-0.1]), torch.tensor([2.3])
    assert torch.equal(maps.map_log_odds({}, log_p, log_q), log_p + log_q)
    identity = {"beta": torch.tensor(maps.IDENTITY, dtype=torch.float64)}
    assert torch.allclose(maps.map_log_odds(identity, log_p.double(), log_q.double()), (log_p + log_q).double())


def test_a_histogram_map_knows_the_confidence_that_it_measured():
    """Very sure, and often wrong: what was measured at .99999 counts there, not where accuracies are clipped."""
    p = torch.full((1000,), 0.99999, dtype=torch.float64)
    hit = torch.arange(1000) < 906
    knots = maps.hist_knots(maps.fine_histogram(p.log(), -torch.log1p(-p), hit), pseudo=1.0)
    mapped = maps.map_log_odds({"hist": knots}, p[:1].log(), -torch.log1p(-p[:1])).sigmoid()
    assert float(mapped) == pytest.approx(0.906, abs=1e-3)
    assert float(knots[1].sigmoid().max()) < 1
