"""A tally from sums: exact where there is no noise, and always a tally where there is."""

import math

import numpy as np
import pytest

from fedcal.exact.prepared import Prepared
from fedcal.exact.private_queries import Measure
from fedcal.exact.private_query import VALUES
from fedcal.measure.noised import noised_tally
from fedcal.measure.tally import Tally


def samples(n=500, k=4):
    rng = np.random.default_rng(0)
    return 1.5 * rng.normal(size=(n, k)), rng.integers(k, size=n)


def test_without_noise_it_has_the_metrics_of_the_samples():
    z, y = samples()
    query = Measure(4, 1.0, 2, 15)
    views = z, z / 2
    values = query.reply(Prepared(lambda: (np.concatenate(views, 1), y)))[VALUES]
    for view, (losses, table) in zip(views, query.read(values), strict=True):
        found, expected = noised_tally(losses, table, 4).summary(), Tally.of(view, y).summary()
        for name in ("accuracy", "top3", "confidence", "nll", "brier", "ece", "ece_floor", "mce"):
            assert found[name] == pytest.approx(expected[name], abs=1e-9), name
        assert math.isnan(found["classwise_ece"]) and math.isnan(found["equal_mass_ece"])


def test_a_loss_that_noise_hides_is_not_told():
    z, y = samples()
    query = Measure(4, 1.0, 1, 15)
    ((losses, table),) = query.read(query.reply(Prepared(lambda: (z, y)))[VALUES])
    assert math.isfinite(noised_tally(losses, table, 4, noise=0.4 * 500).summary()["nll"])
    assert math.isnan(noised_tally(losses, table, 4, noise=0.6 * 500).summary()["nll"])


@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_noise_of_any_size_leaves_a_tally(size):
    rng = np.random.default_rng(1)
    query = Measure(3, 1.0, 3, 10)
    values = size * rng.normal(size=query.size)
    for losses, table in query.read(values):
        tally = noised_tally(losses, table, 3)
        assert 0 <= tally.correct <= tally.n and tally.correct <= tally.top3 <= tally.n and tally.nll >= 0
        assert 0 <= tally.summary()["ece"] <= 1 or not tally.n


def test_noise_alone_is_not_taken_for_samples():
    """Bins of nothing but noise, brought up to 0, add up to some samples; their NLL is unknown all the same."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        table = rng.normal(size=(3, 15)) * 100
        tally = noised_tally(np.array([500.0, 10.0, 5.0]), table, 10, noise=10 * 100.0)
        assert np.isnan(tally.nll) and tally.n > 0
    known = noised_tally(np.array([500.0, 10.0, 5.0]), np.full((3, 15), 1000.0), 10, noise=10 * 100.0)
    assert known.nll == 500.0
