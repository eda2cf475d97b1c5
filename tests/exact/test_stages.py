"""The averaged confidence map: as far from the identity as the samples warrant."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal.base.arrays import sigmoid
from fedcal.base.folds import FOLDS
from fedcal.exact import maps
from fedcal.exact.stages import average_map


def by_fold(p, hit, folds=FOLDS):
    """A histogram of confidences for each fold."""
    parts = [(p[i::folds], hit[i::folds]) for i in range(folds)]
    return np.stack([maps.fine_histogram(np.log(p), -np.log1p(-p), hit) for p, hit in parts])


def mapped(found, p):
    return sigmoid(maps.map_log_odds(found, np.log(p), -np.log1p(-p)))


@given(st.integers(0, 10**6), st.integers(60, 2000))
@settings(max_examples=30, deadline=None)
def test_an_averaged_map_is_monotone_to_the_last_bit(seed, n):
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.01, 0.999, n)
    found = average_map(by_fold(p, rng.random(n) < rng.uniform(0, 1) * p))
    assert (np.diff(found["hist"], axis=1) >= 0).all()  # a scaler file with any other is refused
    assert (found["beta"][:2] >= 0).all()


@pytest.mark.parametrize("truth", [lambda v: 0.6 * v - 0.3, lambda v: 1.3 * v + 0.2])
def test_a_map_that_gains_much_is_used_whole(truth):
    rng = np.random.default_rng(0)
    v = rng.normal(1.0, 1.5, 400_000)
    found = average_map(by_fold(sigmoid(v), rng.random(len(v)) < sigmoid(truth(v))))
    at = np.linspace(-2, 4, 25)
    assert np.abs(mapped(found, sigmoid(at)) - sigmoid(truth(at))).max() < 0.02


def test_right_confidences_move_less_than_by_a_fitted_map():
    """Less than half as far: what the fitted map moves is chance."""
    rng, moves = np.random.default_rng(1), []
    for _ in range(20):
        p = rng.uniform(0.2, 0.99, 500)
        histograms = by_fold(p, rng.random(500) < p)
        whole = {"beta": maps.fit_beta(histograms.sum(0)), "hist": maps.hist_knots(histograms.sum(0), 100.0)}
        moves.append([np.abs(mapped(found, p) - p).mean() for found in (average_map(histograms), whole)])
    averaged, fitted = np.mean(moves, 0)
    assert averaged < 0.5 * fitted
