"""Temperatures against scikit-learn's, and on samples that determine nothing."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import _TemperatureScaling

from fedcal.exact.temperature import T_MAX, T_MIN, fit_temperature, temperature_sums


def sample(n, k, seed, true_t=2.0, dtype=float, prior=None):
    """Logits whose right temperature is about `true_t`, with labels of a skewed distribution if `prior` says so."""
    rng = torch.Generator().manual_seed(seed)
    shares = torch.ones(k, dtype=torch.float64) if prior is None else torch.as_tensor(prior, dtype=torch.float64)
    logits = 3 * torch.randn(n, k, generator=rng, dtype=torch.float64) + shares.log()
    labels = torch.multinomial((logits / true_t).softmax(1), 1, generator=rng)[:, 0]
    return logits.numpy().astype(dtype), labels.numpy()


def scikit_learn(logits, labels):
    return 1 / _TemperatureScaling().fit(logits, labels).beta_


CASES = {
    "random": sample(500, 10, 0),
    "overconfident": sample(20_000, 5, 1, true_t=4.0),
    "underconfident": sample(3000, 10, 2, true_t=0.5),
    "skewed": sample(4000, 10, 3, prior=0.5 ** np.arange(10)),
    "float32": sample(5000, 10, 4, dtype=np.float32),
    "binary": sample(400, 2, 5),
    "K=100": sample(10_000, 100, 6, true_t=1.5),
    "a class nobody has": (sample(800, 4, 7)[0], sample(800, 4, 7)[1].clip(max=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_temperature_equals_scikit_learns(case):
    logits, labels = CASES[case]
    fit = fit_temperature(logits, labels)
    # scikit-learn computes in the type it is given: float64 is the reference for float32 logits, too
    assert fit.temperature == pytest.approx(scikit_learn(logits.astype(float), labels), abs=1e-6)
    assert not fit.at_bound and fit.steps < 12


@given(st.integers(1, 60), st.integers(2, 6), st.integers(0, 10**6), st.floats(0.01, 100))
@settings(max_examples=100, deadline=None)
def test_temperature_is_always_sane_and_stationary(n, k, seed, scale):
    logits, labels = sample(n, k, seed)
    fit = fit_temperature(scale * logits, labels)
    assert T_MIN <= fit.temperature <= T_MAX
    slope, curvature = temperature_sums(scale * logits, labels)(1 / fit.temperature)
    if fit.at_bound:  # the likelihood rises towards it
        assert slope * (1 if fit.temperature > 1 else -1) >= 0
    else:
        assert abs(slope) <= 1e-6 * max(1.0, curvature)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ([[3.0, 1.0, 0.0]], [0]),  # N = 1, right
        ([[3.0, 1.0, 0.0]], [2]),  # N = 1, wrong
        ([[4.0, 0.0], [3.0, 1.0], [5.0, 2.0]], [0, 0, 0]),  # one class, all right
        ([[4.0, 0.0], [0.0, 4.0]], [0, 1]),  # separable
        ([[1.0, 1.0], [2.0, 2.0]], [0, 1]),  # logits that say nothing
        ([[1e4, -1e4], [-1e4, 1e4]], [1, 0]),  # hopelessly wrong
    ],
)
def test_samples_without_an_optimum_are_flagged(logits, labels):
    fit = fit_temperature(np.array(logits), np.array(labels))
    assert T_MIN <= fit.temperature <= T_MAX and fit.at_bound


def test_no_samples():
    assert fit_temperature(np.empty((0, 3)), np.empty(0, np.int64)).temperature == 1.0


def test_derivatives_are_autograds():
    logits, labels = sample(300, 7, 0)
    b = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(b * torch.from_numpy(logits), torch.from_numpy(labels), reduction="sum")
    (slope,) = torch.autograd.grad(loss, b, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, b)
    assert temperature_sums(logits, labels)(0.8) == pytest.approx((slope.item(), curvature.item()))
