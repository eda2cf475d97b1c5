"""The waist is narrow: a transport of less than 60 lines, with the protocol's public names only, gives the same bytes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

import fedcal
import toy_transport
from conversations import LOGIT_METHODS
from fedcal.methods import METHODS

SHORT = {name: f"{name}:rounds=3" for name in METHODS if name.startswith("fedcal") and name != "fedcal-plus"}
Samples = dict[str, tuple[Any, Any]]


@pytest.fixture(scope="module")
def samples() -> Samples:
    rng, found = default_rng(3), {}
    for name in ("a", "b"):
        labels = rng.integers(3, size=80)
        logits = rng.normal(size=(80, 3)) * 2
        logits[range(80), labels] += 2
        found[name] = logits, labels
    return found


@pytest.fixture(scope="module")
def pipes(samples: Samples) -> Iterator[list[Connection]]:
    with toy_transport.connected(samples) as pipes:
        yield pipes


@pytest.mark.parametrize("name", LOGIT_METHODS)
def test_a_toy_transport_gives_the_same_scaler(name: str, samples: Samples, pipes: list[Connection]) -> None:
    method = SHORT.get(name, name)
    scaler, expected = toy_transport.calibrate(pipes, method, n_classes=3), fedcal.calibrate(samples, method)
    assert scaler.params.keys() == expected.params.keys()
    assert all(np.array_equal(scaler.params[name], value) for name, value in expected.params.items())
    assert scaler.ledger == expected.ledger


def test_it_is_small_and_uses_public_names_only() -> None:
    source = inspect.getsource(toy_transport)
    assert len(source.splitlines()) <= 60
    imports = [line for line in source.splitlines() if "fedcal" in line and line.startswith(("import", "from"))]
    assert imports == ["from fedcal.protocol import Client, Scaler, Server, wire"]
