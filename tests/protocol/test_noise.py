"""Discrete Gaussian noise: its distribution against scipy's sums, and where its bits come from."""

import math
import random

import numpy as np
import pytest
from scipy import stats

from fedcal.protocol import noise
from fedcal.protocol.noise import discrete_gaussian


def drawn_from(seed, variance, size, monkeypatch):
    monkeypatch.setattr(noise, "urandom", random.Random(seed).randbytes)
    return discrete_gaussian(variance, size)


@pytest.mark.parametrize("variance", [1, 2, 9])
def test_small_variances_have_the_exact_distribution(variance, monkeypatch):
    drawn = drawn_from(variance, variance, 40_000, monkeypatch)
    reach = 3 * math.isqrt(variance) + 1
    support = np.arange(-reach, reach + 1)
    weights = np.exp(-(support**2) / (2 * variance))
    inside = np.abs(drawn) <= reach
    counts = np.bincount(drawn[inside] + reach, minlength=len(support))
    assert stats.chisquare(counts, weights / weights.sum() * inside.sum()).pvalue > 1e-4
    assert inside.mean() > 0.99


def test_a_large_variance_is_nearly_normal(monkeypatch):
    drawn = drawn_from(1, 10**10, 20_000, monkeypatch)
    assert stats.kstest(drawn / 1e5, "norm").pvalue > 1e-4
    assert drawn.dtype == np.int64


def test_no_variance_is_no_noise():
    assert not discrete_gaussian(0, 5).any()


def test_coins_that_are_close_are_decided_exactly(monkeypatch):
    """With every comparison declared close, only the decimal exponential decides: the distribution is the same."""
    monkeypatch.setattr(noise, "CLOSE", 2.0)
    drawn = drawn_from(2, 4, 400, monkeypatch)
    assert abs(drawn.mean()) < 0.5 and drawn.var() == pytest.approx(4, rel=0.4)


def test_bits_come_from_the_operating_system_and_are_never_seeded():
    """The same draw twice differs, also with every known generator set to the same seed before."""
    import torch

    draws = []
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - the generator that must not matter
        draws.append(discrete_gaussian(10**8, 50))
    assert not np.array_equal(*draws)
