"""Fits against scikit-learn's, and on samples that determine nothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import _TemperatureScaling

from fedcal.exact.temperature import T_MAX, T_MIN, fit_temperature, temperature_sums
from fedcal.methods import get_method
from fedcal.nets.train import Adam, EarlyStopping, Training, train_scaler


def sample(n, k, seed, true_t=2.0, dtype=torch.float64, prior=None):
    """Logits whose right temperature is about `true_t`, with labels of a skewed law if `prior` says so."""
    rng = torch.Generator().manual_seed(seed)
    law = torch.ones(k, dtype=torch.float64) if prior is None else torch.as_tensor(prior, dtype=torch.float64)
    logits = 3 * torch.randn(n, k, generator=rng, dtype=torch.float64) + law.log()
    labels = torch.multinomial((logits / true_t).softmax(1), 1, generator=rng)[:, 0]
    return logits.to(dtype), labels


def scikit_learn(logits, labels):
    return 1 / _TemperatureScaling().fit(logits.numpy(), labels.numpy()).beta_


CASES = {
    "random": sample(500, 10, 0),
    "overconfident": sample(20_000, 5, 1, true_t=4.0),
    "underconfident": sample(3000, 10, 2, true_t=0.5),
    "skewed": sample(4000, 10, 3, prior=0.5 ** np.arange(10)),
    "float32": sample(5000, 10, 4, dtype=torch.float32),
    "binary": sample(400, 2, 5),
    "K=100": sample(10_000, 100, 6, true_t=1.5),
    "a class nobody has": (sample(800, 4, 7)[0], sample(800, 4, 7)[1].clamp(max=2)),
}


@pytest.mark.parametrize("case", CASES)
def test_temperature_equals_scikit_learns(case):
    logits, labels = CASES[case]
    fit = fit_temperature(logits, labels)
    # scikit-learn computes in the type it is given: float64 is the reference for float32 logits, too
    assert fit.temperature == pytest.approx(scikit_learn(logits.double(), labels), abs=1e-6)
    assert fit.converged and not fit.at_bound and fit.steps < 12


@given(st.integers(1, 60), st.integers(2, 6), st.integers(0, 10**6), st.floats(0.01, 100))
@settings(max_examples=100, deadline=None)
def test_temperature_is_always_sane_and_stationary(n, k, seed, scale):
    logits, labels = sample(n, k, seed)
    fit = fit_temperature(scale * logits, labels)
    assert T_MIN <= fit.temperature <= T_MAX
    assert fit.converged != fit.at_bound
    slope, curvature = temperature_sums(scale * logits, labels)(1 / fit.temperature)
    if fit.converged:
        assert abs(slope) <= 1e-6 * max(1.0, curvature)
    else:  # the likelihood rises towards the bound
        assert slope * (1 if fit.temperature > 1 else -1) >= 0


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
    fit = fit_temperature(torch.tensor(logits), torch.tensor(labels))
    assert T_MIN <= fit.temperature <= T_MAX and fit.at_bound and not fit.converged


def test_no_samples():
    assert fit_temperature(torch.empty(0, 3), torch.empty(0, dtype=torch.long)).temperature == 1.0


def test_derivatives_are_autograds():
    logits, labels = sample(300, 7, 0)
    b = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    loss = torch.nn.functional.cross_entropy(b * logits, labels, reduction="sum")
    (slope,) = torch.autograd.grad(loss, b, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, b)
    assert temperature_sums(logits, labels)(0.8) == pytest.approx((slope.item(), curvature.item()))


@pytest.mark.parametrize("net", ["raw", "sorted", "plain"])
def test_training_lowers_the_loss_and_never_ends_worse_on_its_stopping_split(net):
    method = get_method("fedcal", net=net)
    logits, labels = sample(600, 5, 0, true_t=4.0)
    start = method.init(5, torch.Generator().manual_seed(0))
    how = Training(lr=1e-2, steps=200)
    trained, steps = train_scaler(start, method.apply, logits, labels, how)
    unseen, unseen_labels = sample(4000, 5, 9, true_t=4.0)
    loss = [float(torch.nn.functional.cross_entropy(method.apply(p, unseen), unseen_labels)) for p in (start, trained)]
    assert steps > 0 and loss[1] < 0.9 * loss[0]


def test_too_few_samples_leave_the_scaler_as_it_was():
    method = get_method("fedcal")
    start = method.init(3, torch.Generator().manual_seed(0))
    trained, steps = train_scaler(start, method.apply, *sample(7, 3, 0), Training())
    assert trained is start and steps == 0


def test_adam_is_pytorchs():
    rng = torch.Generator().manual_seed(0)
    start, target = torch.randn(20, generator=rng), torch.randn(20, generator=rng)
    theirs, ours = start.clone().requires_grad_(), start.clone().requires_grad_()
    optimiser = torch.optim.AdamW([theirs], lr=0.03, weight_decay=0.1)
    adam = Adam(ours, 0.03, torch.full((20,), 0.03 * 0.1))
    for _ in range(50):
        optimiser.zero_grad()
        (theirs - target).pow(4).sum().backward()
        optimiser.step()
        adam.step(torch.autograd.grad((ours - target).pow(4).sum(), ours)[0])
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_the_lowest_loss_is_kept_until_patience_ends():
    stopping = EarlyStopping(torch.zeros(2), patience=2)
    went_on = [
        stopping.goes_on(torch.full((2,), float(i)), torch.tensor(x)) for i, x in enumerate((3.0, 1.0, 2.0, 1.0))
    ]
    assert went_on == [True, True, True, False]
    assert stopping.steps == [1] and torch.equal(stopping.best, torch.ones(2))


def test_nets_of_a_stack_stop_one_by_one():
    stopping = EarlyStopping(torch.zeros(3, 2), patience=1, margin=0.5)
    losses = torch.tensor([[3.0, 3.0, 3.0], [2.0, 2.8, math.nan], [1.0, 0.0, 0.0], [0.9, 0.0, 0.0]])
    went_on = [stopping.goes_on(torch.full((3, 2), float(i)), loss) for i, loss in enumerate(losses)]
    assert went_on == [True, True, True, False]
    assert stopping.steps == [2, 0, 0] and stopping.best[:, 0].tolist() == [2.0, 0.0, 0.0]
