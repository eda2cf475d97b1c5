"""Vectors: what a node adds, what the total says, and values that are too large."""

import numpy as np
import pytest

from fedcal import FedCalError
from fedcal.secure import Layout
from fedcal.secure.fixed import add
from fedcal.secure.messages import DoesNotAddUp

LAYOUT = Layout({"b": (2, 2), "a": (), "empty": (0,)})


def values(scale=1.0):
    return {"a": np.array(scale), "b": scale * np.array([[1.0, -2.0], [0.5, 0.0]]), "empty": np.zeros(0)}


def added(*nodes, layout=LAYOUT):
    found = np.zeros((layout.words, layout.length), np.uint64)
    for one in nodes:
        found = add(found, layout.encode(*one))
    return found


def total(*nodes, layout=LAYOUT):
    return layout.decode(added(*nodes, layout=layout), [str(i) for i in range(len(nodes))])


def test_totals_and_samples_and_the_bound_of_rounding():
    found = total((values(), 5), (values(1e-3), 7), ({}, 0))
    assert found and found.n == 12 and len(found.nodes) == 3
    assert all(np.abs(found.values[k] - 1.001 * values()[k]).max(initial=0) < 1e-15 for k in values())
    assert found.rounding == 3 * 2.0**-65


def test_one_value_that_is_too_large_is_noticed_and_nothing_is_told():
    """The total is then random in everything but the number of nodes: no values, not even the number of samples."""
    large = {**values(), "a": np.array(1e20)}
    assert total((values(), 5), (large, 7)) is None
    for raised in (1, 2):  # nor how many nodes raised the flag
        sums = [added(*[(large if i < raised else values(), 7) for i in range(3)]) for _ in range(2)]
        assert not (sums[0] == sums[1])[:, 1:].any() and (sums[0] == sums[1])[:, 0].all()
    found = total((values(), 5), (large, 7), layout=LAYOUT.wider())
    assert found and float(found.values["a"]) == 1e20 + 1 and found.n == 12
    assert (found.values["b"] == 2 * values()["b"]).all() and found.rounding == 2.0**-64  # small values lose nothing


def test_what_cannot_be_encoded():
    with pytest.raises(FedCalError, match="no 'b' of shape"):
        LAYOUT.encode({"a": np.array(1.0)}, 1)
    with pytest.raises(FedCalError, match="not finite in 'a'"):
        LAYOUT.encode({**values(), "a": np.array(np.nan)}, 1)
    with pytest.raises(FedCalError, match="beyond 5e\\+55"):
        LAYOUT.wider().wider().wider()
    with pytest.raises(DoesNotAddUp, match="do not cancel"):
        LAYOUT.decode(LAYOUT.encode(values(), 1), ["a", "b"])
