"""The CPU engine against the reference loop, on the same batches."""

import copy

import numpy as np
import pytest
import torch

from fedcal import Config
from fedcal.errors import FedCalError
from fedcal.learn import cpu
from fedcal.learn.local import SGD, Job, copy_state, train_in_turn
from fedcal.learn.models import build
from fedcal.simulate.assemble import trainer

SIZES = (200, 90, 20)  # whole batches and rests of all kinds, a client smaller than a batch
SHAPE = (3, 8, 8)


def jobs_for(model):
    rng = torch.Generator().manual_seed(1)
    received, jobs = copy_state(model), []
    for i, n in enumerate(SIZES):
        x, y = torch.randn(n, *SHAPE, generator=rng), torch.randint(10, (n,), generator=rng)
        x = x.to(next(model.parameters()).dtype)
        wanted = {"train": x, "nothing": x[:0]}
        jobs.append(Job(received, x, y, np.random.default_rng(i), wanted, wanted))
    return jobs


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 1e-3}, {"prox_mu": 0.1}])
@pytest.mark.parametrize(
    ("name", "dtype", "apart"),  # batch normalisation over few pixels lets rounding grow: in float64 it does not matter
    [("cnn", torch.float32, 1e-5), ("resnet14", torch.float32, 3e-4), ("resnet14", torch.float64, 1e-11)],
)
def test_a_round_equals_the_reference_with_any_number_of_threads(name, dtype, apart, options):
    model = build(name, SHAPE, 10, torch.Generator().manual_seed(0)).to(dtype)
    how = SGD(batch_size=140, epochs=1, **options)
    theirs = train_in_turn(copy.deepcopy(model), jobs_for(model), how)
    threads = torch.get_num_threads()
    ours = cpu.Engine(model, how, 1).train(jobs_for(model))
    again = cpu.Engine(model, how, 2).train(jobs_for(model))
    assert torch.get_num_threads() == threads
    for a, b, c in zip(ours, theirs, again, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=apart)
        floats = [key for key, value in b.state.items() if value.is_floating_point()]
        mine, reference = (torch.cat([t.state[key].flatten() for key in floats]) for t in (a, b))
        assert (mine - reference).norm() < apart * reference.norm()
        for key, value in b.state.items():
            assert torch.equal(a.state[key], c.state[key]), "another number of threads, other bits"
            assert a.state[key].is_contiguous() and a.state[key].shape == value.shape
            assert value.is_floating_point() or torch.equal(a.state[key], value)
        for kind in ("train", "nothing"):
            assert torch.allclose(a.before[kind], b.before[kind], atol=1e-4)
            assert torch.allclose(a.after[kind], b.after[kind], atol=1e-2)


def test_dense_nets_stay_with_the_plain_loop():
    dense, conv = (build(name, SHAPE, 10, torch.Generator().manual_seed(0)) for name in ("mlp", "cnn"))
    assert cpu.pays(conv) and not cpu.pays(dense)
    auto, reference = Config(model="cnn"), Config(model="cnn", engine="reference")
    assert getattr(trainer(auto, conv, SHAPE), "__func__", None) is cpu.Engine.train
    assert not hasattr(trainer(auto, dense, SHAPE), "__func__")
    assert not hasattr(trainer(reference, conv, SHAPE), "__func__")


def test_an_error_in_a_client_is_raised():
    model = build("cnn", SHAPE, 10, torch.Generator().manual_seed(0))
    bad = [Job(copy_state(model), torch.randn(4, 1, 8, 8), torch.zeros(4).long(), np.random.default_rng(0))]
    engine = cpu.Engine(model, SGD(epochs=1), 2)
    with pytest.raises(FedCalError, match=r"the model fails on inputs of shape .1, 8, 8.*channels"):
        engine.train(bad)
    assert len(engine.train(jobs_for(model))) == 3  # the models are back in their places
