"""The GPU engine against the reference loop, on the same batches."""

import copy

import numpy as np
import pytest
import torch

from fedcal.learn.local import SGD, Job, copy_state, train_in_turn
from fedcal.learn.models import build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

SIZES = (700, 300, 256, 40, 530)  # whole batches, rests of all kinds, a client smaller than a batch


def jobs_for(model, shape=(3, 32, 32), sizes=SIZES, look=False):
    rng = torch.Generator().manual_seed(1)
    received, jobs = copy_state(model), []
    for i, n in enumerate(sizes):
        x, y = torch.randn(n, *shape, generator=rng).cuda(), torch.randint(10, (n,), generator=rng).cuda()
        wanted = {"train": x, "nothing": x[:0]} if look else {}
        jobs.append(Job(received, x, y, np.random.default_rng(i), wanted, wanted))
    return jobs


@pytest.fixture(autouse=True)
def exact():
    """fp32 means fp32: cuDNN's default of TF32 is switched off for the reference too."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 1e-3}, {"prox_mu": 0.1}])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet14"])
def test_a_round_equals_the_reference(name, options):
    from fedcal.learn.fast import Engine

    model = build(name, (3, 32, 32), 10, torch.Generator().manual_seed(0)).cuda()
    how = SGD(batch_size=256, epochs=2, **options)
    theirs = train_in_turn(copy.deepcopy(model), jobs_for(model, look=True), how)
    engine = Engine(model, (3, 32, 32), how, "fp32", slots=3)
    ours = engine.train(jobs_for(model, look=True))
    again = engine.train(jobs_for(model, look=True))
    apart = []
    for a, b, c in zip(ours, theirs, again, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-4)
        apart.append(distance(a.state, b.state))
        assert all(torch.equal(a.state[key], c.state[key]) for key in a.state), "a second time, other bits"
        assert all(torch.equal(a.state[key], value) for key, value in b.state.items() if not value.is_floating_point())
        for kind in ("train", "nothing"):
            assert torch.allclose(a.before[kind].double(), b.before[kind], atol=1e-4)
            assert torch.allclose(a.after[kind].double(), b.after[kind], atol=1e-3)
    print(f"{name} {options}: relative difference of the parameters {max(apart):.1e}")
    assert max(apart) < 1e-4


def distance(ours, theirs):
    """‖θ − θ'‖ / ‖θ'‖ over all parameters and statistics. (A tensor alone can be all rounding: biases near zero.)"""
    keys = [key for key, value in theirs.items() if value.is_floating_point()]
    a, b = (torch.cat([state[key].double().flatten() for key in keys]) for state in (ours, theirs))
    return float((a - b).norm() / b.norm())
