"""The reference loop against PyTorch's own optimiser and numbers worked out by hand."""

import copy

import numpy as np
import pytest
import torch

from fedcal.learn.local import SGD, average, copy_state, predict, train_locally
from fedcal.learn.models import build


def task(n=60, d=5, k=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng)
    return x, torch.randint(k, (n,), generator=rng), build("mlp", (d,), k, rng)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.01}]
)
def test_local_training_is_pytorchs_sgd(options):
    x, y, ours = task()
    theirs = copy.deepcopy(ours)
    train_locally(ours, x, y, SGD(lr=0.1, batch_size=16, epochs=2, **options), np.random.default_rng(7))
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.1, **options)
    rng = np.random.default_rng(7)
    for _ in range(2):
        for batch in torch.from_numpy(rng.permutation(len(y))).split(16):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(theirs(x[batch]), y[batch]).backward()
            optimiser.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_fedprox_is_sgd_on_the_penalised_loss():
    x, y, ours = task()
    theirs = copy.deepcopy(ours)
    start = [p.detach().clone() for p in theirs.parameters()]
    train_locally(ours, x, y, SGD(lr=0.1, batch_size=60, epochs=3, prox_mu=0.7), np.random.default_rng(0))
    optimiser, rng = torch.optim.SGD(theirs.parameters(), lr=0.1), np.random.default_rng(0)
    for _ in range(3):
        batch = torch.from_numpy(rng.permutation(len(y)))
        optimiser.zero_grad()
        penalty = sum((p - a).square().sum() for p, a in zip(theirs.parameters(), start, strict=True))
        (torch.nn.functional.cross_entropy(theirs(x[batch]), y[batch]) + 0.35 * penalty).backward()
        optimiser.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_fedprox_holds_the_model_back():
    moved = {}
    for mu in (0.0, 5.0):
        x, y, model = task()
        start = copy_state(model)
        train_locally(model, x, y, SGD(lr=0.1, batch_size=10, epochs=5, prox_mu=mu), np.random.default_rng(0))
        moved[mu] = sum(float((value - start[name]).square().sum()) for name, value in copy_state(model).items())
    assert moved[5.0] < 0.5 * moved[0.0]


def test_one_step_of_logistic_regression_by_hand():
    """x = (1, 0), y = 0, θ = 0: p = (½, ½), so the weights of class 0 go up by lr · ½ on the first feature."""
    model = build("logistic", (2,), 2, torch.Generator().manual_seed(0))
    model.load_state_dict({"1.weight": torch.zeros(2, 2), "1.bias": torch.zeros(2)})
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    loss = train_locally(model, x, y, SGD(lr=0.1, epochs=1), np.random.default_rng(0))
    assert loss == pytest.approx(np.log(2))
    assert torch.allclose(model.state_dict()["1.weight"], torch.tensor([[0.05, 0.0], [-0.05, 0.0]]))
    assert torch.allclose(model.state_dict()["1.bias"], torch.tensor([0.05, -0.05]))


def test_fedavg_golden_numbers():
    """n = 1, 3 and 4 of 8: ⅛ · 8 + ⅜ · 0 + ½ · 2 = 2, and so on; counters are not averaged."""
    states = [
        {"w": torch.tensor([8.0, 0.0]), "running_mean": torch.tensor([1.0]), "num_batches_tracked": torch.tensor(5)},
        {"w": torch.tensor([0.0, 8.0]), "running_mean": torch.tensor([3.0]), "num_batches_tracked": torch.tensor(9)},
        {"w": torch.tensor([2.0, 4.0]), "running_mean": torch.tensor([0.5]), "num_batches_tracked": torch.tensor(7)},
    ]
    mean = average(states, by=[1, 3, 4])
    assert mean["w"].tolist() == [2.0, 5.0]
    assert mean["running_mean"].tolist() == [0.125 + 1.125 + 0.25]
    assert mean["num_batches_tracked"] == 5 and mean["num_batches_tracked"].dtype == torch.int64


def test_the_average_of_one_is_itself_to_the_bit():
    _, _, model = task()
    state = copy_state(model)
    assert all(torch.equal(average([state], by=[17])[name], value) for name, value in state.items())


@pytest.mark.parametrize("model", ["cnn", "resnet14"])
def test_predict_takes_any_number_of_samples(model):
    net = build(model, (3, 32, 32), 7, torch.Generator().manual_seed(0))
    x = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert predict(net, x[:0]).shape == (0, 7)
    assert torch.allclose(predict(net, x, batch_size=2), predict(net, x), atol=1e-5)
    assert predict(net, x).dtype == torch.float64
