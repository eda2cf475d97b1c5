"""The waist is narrow: a transport of less than 60 lines, with the protocol's public names only, gives the same bytes."""

import inspect

import pytest
import torch
from numpy.random import default_rng

import fedcal
import toy_transport


@pytest.mark.parametrize("method", ["fedcal-plus", "fedcal-no-wm:rounds=3"])
def test_a_toy_transport_gives_the_same_scaler(method: str) -> None:
    rng = default_rng(3)
    samples = {}
    for name in ("a", "b"):
        labels = rng.integers(3, size=80)
        logits = rng.normal(size=(80, 3)) * 2
        logits[range(80), labels] += 2
        samples[name] = logits, labels
    scaler, expected = toy_transport.calibrate(samples, method, n_classes=3), fedcal.calibrate(samples, method)
    assert scaler.params.keys() == expected.params.keys()
    assert all(torch.equal(scaler.params[name], value) for name, value in expected.params.items())
    assert scaler.ledger == expected.ledger


def test_it_is_small_and_uses_public_names_only() -> None:
    source = inspect.getsource(toy_transport)
    assert len(source.splitlines()) <= 60
    imports = [line for line in source.splitlines() if "fedcal" in line and line.startswith(("import", "from"))]
    assert imports == ["from fedcal.protocol import Client, Scaler, Server, wire"]
