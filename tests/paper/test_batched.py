"""Scaler nets trained together against the same nets trained one by one."""

from dataclasses import replace

import pytest
import torch

from fedcal.base.arrays import tensors
from fedcal.methods import METHODS
from fedcal.nets.train import Training, train_scaler
from fedcal.protocol import Server
from fedcal.transport.memory import Exchange
from paper.batched import stacked_round, train_scalers


def clients(seed, sizes, k=5):
    rng = torch.Generator().manual_seed(seed)
    out = {}
    for i, n in enumerate(sizes):
        labels = torch.randint(k, (n,), generator=rng)
        logits = torch.randn(n, k, generator=rng).double()
        logits[torch.arange(n), labels] += 2
        out[f"c{i}"] = 3 * logits + torch.linspace(-2, 2, k), labels  # over-confident, and leaning to some classes
    return out


@pytest.mark.parametrize("name", ["fedcal", "fedcal-literal", "fedcal-no-wm", "fedcal-small", "fedcal-no-op"])
def test_stacked_rounds_equal_rounds_client_by_client(name):
    method = replace(METHODS[name], lr=0.01, steps=40)
    samples = clients(0, [120, 40, 7, 300])  # 7: too few to be split
    server, exchange, nets = Server(method, 5, rounds=3), Exchange(Server(method, 5, rounds=3)), {}
    for _ in range(3):
        stacked_round(server, samples, nets)
        exchange.round(samples)
    ours, alone, probe = server.scaler, exchange.scaler(samples), samples["c0"][0]
    assert (alone.apply(probe) - probe).abs().max() > 0.05  # something was learnt
    assert torch.allclose(ours.apply(probe).softmax(1), alone.apply(probe).softmax(1), atol=1e-4)
    assert set(nets) == set(alone.personal)
    ours.ledger.notes = alone.ledger.notes  # steps may differ by rounding
    assert ours.ledger == alone.ledger


def test_steps_and_params_of_each_net():
    method = METHODS["fedcal"]
    samples = list(clients(3, [50, 200, 120]).values())
    start = tensors(method.init(5, lambda: torch.Generator().manual_seed(0)))
    how = Training(lr=0.03, steps=60, patience=5)
    for (ours, steps), pair in zip(train_scalers([start] * 3, method.apply, samples, how), samples, strict=True):
        theirs, expected = train_scaler(start, method.apply, *pair, how)
        assert steps == expected
        assert all(torch.allclose(ours[key], value, atol=1e-4) for key, value in theirs.items())
