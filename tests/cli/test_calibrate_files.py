"""Held-out samples: who has some, and how they are measured."""

from __future__ import annotations

import numpy as np
import pytest

from fedcal import FedCalError
from fedcal.cli.calibrate_files import estimate, fit, hold_out, summary
from fedcal.methods import get_method

Samples = dict[str, tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def sites() -> Samples:
    """Three sites of an overconfident model; one is too small to hold anything out."""
    rng = np.random.default_rng(0)
    found = {}
    for name, n in (("b", 103), ("a", 50), ("few", 4)):
        z = rng.normal(size=(n, 3))
        labels = (z + rng.gumbel(size=z.shape)).argmax(1)
        found[name] = 3 * z, labels
    return found


def test_a_fifth_is_held_out_and_nothing_is_lost(sites: Samples) -> None:
    kept, held = hold_out(sites, seed=0)
    assert {name: len(labels) for name, (_, labels) in held.items()} == {"b": 20, "a": 10, "few": 0}
    for name, (logits, _) in sites.items():
        both = np.concatenate([kept[name][0], held[name][0]])
        assert np.array_equal(np.sort(both, 0), np.sort(logits, 0))
    again, other = hold_out(sites, seed=0)[1], hold_out(sites, seed=1)[1]
    assert np.array_equal(again["b"][0], held["b"][0]) and not np.array_equal(other["b"][0], held["b"][0])


def test_the_estimate_is_of_the_sites_that_held_samples_out(sites: Samples) -> None:
    kept, held = hold_out(sites, seed=0)
    seen: list[int] = []
    fitted = fit(kept, get_method("fed-ts"), 0, lambda server: seen.append(server.ledger.rounds))
    assert seen == list(range(1, fitted.ledger.rounds + 1)) and seen
    found = estimate(fitted, held)
    assert list(found.tallies) == ["before", "global", "own"] and found.clients == ["b", "a"]
    assert found.pooled("global").summary()["nll"] < found.pooled("before").summary()["nll"]
    written = summary(fitted, sites, 0, found)
    assert written["n"] == 157 and written["estimate"]["before"]["pooled"]["n"] == 30
    assert written["estimate"]["ece_change"]["global"] == list(found.difference("global", "before"))
    assert summary(fitted, sites, 0, None)["estimate"] is None


def test_a_method_of_training_rounds_is_refused(sites: Samples) -> None:
    with pytest.raises(FedCalError, match="fitted while a model is trained"):
        fit(sites, get_method("fedcal-literal"), 0, lambda server: None)
