from __future__ import annotations

import pytest
import torch

from fedcal.data import synthetic


def ece(probabilities: torch.Tensor, labels: torch.Tensor) -> float:
    confidence, guess = probabilities.max(1)
    gap = (guess == labels).double() - confidence.double()
    bins = (confidence * 15).ceil().long().clamp(1, 15) - 1
    return float(torch.zeros(15, dtype=torch.float64).index_add(0, bins, gap).abs().sum() / len(labels))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_true_posterior_is_calibrated_and_not_trivial(seed):
    x, y = synthetic.sample(10_000, seed, "test")
    posterior = synthetic.log_posterior(x, seed).exp()
    assert 0.72 < (posterior.argmax(1) == y).double().mean() < 0.86
    # the noise floor: the ECE of labels drawn from the posterior itself
    rng = torch.Generator().manual_seed(seed)
    floor = [ece(posterior, torch.multinomial(posterior, 1, generator=rng)[:, 0]) for _ in range(200)]
    assert ece(posterior, y) < 1.2 * max(floor)
    sharper = (2 * synthetic.log_posterior(x, seed)).softmax(1)
    assert ece(sharper, y) > 3 * max(floor), "and the test would see a miscalibrated one"


def test_a_prior_of_ones_own_moves_the_posterior_by_bayes():
    x, y = synthetic.sample(20_000)
    prior = torch.linspace(1, 10, 10) / 55
    posterior = synthetic.log_posterior(x, log_prior=prior.log()).exp()
    keep = torch.rand(len(y), generator=torch.Generator().manual_seed(0)) < prior[y] / prior.max()
    assert torch.allclose(posterior[keep].mean(0), y[keep].bincount(minlength=10) / keep.sum(), atol=0.01)
    assert torch.allclose(
        synthetic.log_posterior(x),
        synthetic.log_posterior(x, log_prior=torch.full((10,), 0.1).log()),
        atol=1e-5,
    )


def test_train_and_test_are_different_draws_of_one_mixture():
    assert not torch.equal(synthetic.sample(9, 0, "train")[0], synthetic.sample(9, 0, "test")[0])
    assert torch.equal(synthetic.sample(9, 4)[0], synthetic.sample(9, 4)[0])
