"""How a scaler net is trained: it gets better, stops in time, and Adam is Adam."""

import math

import pytest
import torch

from fedcal.base.arrays import tensors
from fedcal.methods import get_method
from fedcal.nets.train import Adam, EarlyStopping, train_scaler
from fedcal.nets.training import Training


def overconfident(n, k, seed):
    """Logits whose right temperature is 4."""
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    return logits, torch.multinomial((logits / 4).softmax(1), 1, generator=rng)[:, 0]


@pytest.mark.parametrize("net", ["raw", "sorted", "plain"])
def test_training_lowers_the_loss_and_never_ends_worse_on_its_stopping_split(net):
    method = get_method("fedcal", net=net)
    logits, labels = overconfident(600, 5, 0)
    start = tensors(method.init(5, lambda: torch.Generator().manual_seed(0)))
    how = Training(lr=1e-2, steps=200)
    trained, steps = train_scaler(start, method.apply, logits, labels, how)
    unseen, unseen_labels = overconfident(4000, 5, 9)
    loss = [float(torch.nn.functional.cross_entropy(method.apply(p, unseen), unseen_labels)) for p in (start, trained)]
    assert steps > 0 and loss[1] < 0.9 * loss[0]


def test_too_few_samples_leave_the_scaler_as_it_was():
    method = get_method("fedcal")
    start = tensors(method.init(3, lambda: torch.Generator().manual_seed(0)))
    trained, steps = train_scaler(start, method.apply, *overconfident(7, 3, 0), Training())
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
