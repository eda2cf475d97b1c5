"""Streamed clients: sums added as they come, nothing kept, the same result."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcal
from fedcal import FedCalError
from fedcal.data.samples import Stream
from fedcal.methods.fit import Total
from fedcal.protocol import Server
from fedcal.transport.memory import Exchange


class Lazy(Mapping):
    """Clients made when they are read."""

    def __init__(self, n, size=60):
        self.n, self.size, self.reads = n, size, 0

    def __getitem__(self, name):
        self.reads += 1
        rng = torch.Generator().manual_seed(int(name))
        logits = 2 * torch.randn(self.size, 4, generator=rng, dtype=torch.float64)
        labels = torch.multinomial((logits / 2 - torch.linspace(-1, 1, 4)).softmax(1), 1, generator=rng)[:, 0]
        return logits, labels

    def __iter__(self):
        return map(str, range(self.n))

    def __len__(self):
        return self.n


def pairwise(tensors):
    """What `Total` promises to equal, bit for bit."""
    while len(tensors) > 1:
        tensors = [a + b for a, b in zip(tensors[::2], tensors[1::2], strict=False)] + tensors[len(tensors) & ~1 :]
    return tensors[0]


@given(st.integers(1, 70), st.integers(0, 10**6))
@settings(max_examples=50, deadline=None)
def test_totals_are_pairwise_sums(n, seed):
    rng = torch.Generator().manual_seed(seed)
    values = list(torch.randn(n, 3, generator=rng, dtype=torch.float64).exp().numpy())
    whole = Total()
    for i, v in enumerate(values):
        whole.add({"a": v, **({"b": 2 * v} if i % 3 else {})})
    found = whole.sums()
    assert np.array_equal(found["a"], pairwise(values))
    some = [2 * v for i, v in enumerate(values) if i % 3]
    assert np.array_equal(found["b"], pairwise(some)) if some else "b" not in found
    assert Total().sums() == {}


@pytest.mark.parametrize("method", ["fed-ts", "fed-vector", "fedcal-plus"])
def test_a_stream_gives_the_same_scaler_and_keeps_nothing(method):
    clients = Lazy(30)
    held = fedcal.calibrate(dict(clients.items()), method)
    clients.reads = 0
    streamed = fedcal.calibrate(clients, method, stream=True)
    assert all(np.array_equal(held.params[name], streamed.params[name]) for name in held.params)
    assert streamed.personal == {} and clients.reads <= 30 * streamed.ledger.rounds + 2
    streamed.welcome("3", *clients["3"])
    assert torch.isfinite(streamed.predict_proba(clients["3"][0], client="3")).all()


@pytest.mark.parametrize("method", ["avg-t", "fedcal-small:rounds=2", "fedcal-small:rounds=2,start=matched"])
def test_streamed_clients_keep_the_scalers_that_are_averaged(method):
    clients = Lazy(5)
    held = fedcal.calibrate(dict(clients.items()), method)
    exchange = Exchange(Server(method, 4, history=False))
    streamed = exchange.run(Stream(clients))
    assert streamed.personal.keys() == held.personal.keys() and all(held.personal.values())
    for client, personal in held.personal.items():
        assert all(np.array_equal(streamed.personal[client][name], value) for name, value in personal.items())
    clients.reads = 0
    assert all(len(client.samples.labels) == 60 for client in exchange.clients.values())
    assert clients.reads == 5  # no samples were held


def test_clients_that_are_numbered_keep_their_scalers_too(tmp_path):
    clients = {7: Lazy(1)["0"], 8: Lazy(2)["1"]}
    streamed, held = (fedcal.calibrate(clients, "avg-t", stream=stream) for stream in (True, False))
    streamed.save(tmp_path / "s")
    logits = clients[8][0]
    expected = held.predict_proba(logits, client=8)
    for scaler in (streamed, fedcal.Scaler.load(tmp_path / "s")):
        assert list(scaler.personal) == ["7", "8"] and torch.equal(scaler.predict_proba(logits, client=8), expected)
    with pytest.raises(FedCalError, match="two clients have the name '7'"):
        fedcal.calibrate({7: clients[7], "7": clients[8]}, "fed-ts", stream=True)


def test_bad_streams_are_one_line():
    with pytest.raises(FedCalError, match="must be a mapping"):
        fedcal.calibrate([(torch.zeros(3, 2), torch.zeros(3))], "fed-ts", stream=True)
    with pytest.raises(FedCalError, match="no clients"):
        fedcal.calibrate({}, "fed-ts", stream=True)
    with pytest.raises(FedCalError, match="no samples"):
        fedcal.calibrate(Lazy(3, size=0), "fed-ts", stream=True)
    with pytest.raises(FedCalError, match="client 1: logits of 3 classes where the others have 4"):
        fedcal.calibrate({"0": Lazy(1)["0"], "1": (torch.zeros(2, 3), torch.zeros(2))}, "fed-ts", stream=True)
