"""Views of the same samples: blocks and clients add up, and every path measures the same."""

import numpy as np
import pytest
import torch

from fedcal import FedCalError
from fedcal.measure import reliability
from fedcal.measure.paired import MOST_BINS, Paired, top_of
from fedcal.measure.tally import Tally, over_clients, pooled
from fedcal.measure.views import Measured, add_up, measure, unchanged

K = 3
VIEWS = {"before": unchanged, "after": lambda client, logits: logits / (2 + (client == "b"))}


def drawn(seed, n=150):
    rng = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(n, K, generator=rng, dtype=torch.float64), torch.randint(K, (n,), generator=rng)


@pytest.fixture
def samples():
    return {"a": drawn(0), "b": drawn(1, 80), "empty": drawn(2, 0), "c": drawn(3, 1)}


def test_it_is_the_tally_of_every_client_and_view(samples):
    found = measure(samples, VIEWS)
    assert found.clients == list(samples)
    for name, view in VIEWS.items():
        for client, (logits, labels) in samples.items():
            known = Tally.of(view(client, logits), labels)
            sums = found.tallies[name][client].to_arrays()
            assert all(np.array_equal(sums[part], value) for part, value in known.to_arrays().items())
        tallies = list(found.tallies[name].values())
        assert found.pooled(name).summary() == pooled(tallies).summary()
        assert str(found.over_clients(name)) == str(over_clients(list(samples), tallies))
        assert list(found.rows(name)) == ["pooled", *samples]


def test_views_are_compared_on_all_samples(samples):
    found = measure(samples, VIEWS)
    logits = {name: torch.cat([view(client, z) for client, (z, _) in samples.items()]) for name, view in VIEWS.items()}
    labels = torch.cat([y for _, y in samples.values()])
    known = Paired.of({name: top_of(z.numpy(), labels.numpy()) for name, z in logits.items()})
    assert found.difference("after", "before") == pytest.approx(known.difference("after", "before"), rel=1e-9)
    value = found.pooled("after").summary()["ece"] - found.pooled("before").summary()["ece"]
    assert found.difference("after", "before")[0] == pytest.approx(value, abs=1e-12)


def test_blocks_change_nothing(samples, monkeypatch):
    whole = measure(samples, VIEWS)
    monkeypatch.setattr(reliability, "ENTRIES", 7 * K)  # seven rows
    small = measure(samples, VIEWS)
    for view, tallies in whole.tallies.items():
        for name, tally in tallies.items():
            assert small.tallies[view][name].reliability == tally.reliability
            assert small.tallies[view][name].summary() == pytest.approx(tally.summary(), rel=1e-12, nan_ok=True)
    assert small.difference("after", "before") == pytest.approx(whole.difference("after", "before"), rel=1e-9)


def test_parts_add_up_by_client(samples):
    parts = [measure({client: pair}, VIEWS) for client, pair in samples.items()]
    whole, summed = measure(samples, VIEWS), parts[0] + parts[1] + add_up(parts[2:])
    assert summed.clients == whole.clients
    assert summed.difference("after", "before") == pytest.approx(whole.difference("after", "before"), rel=1e-12)
    assert summed.pooled("after").summary() == whole.pooled("after").summary()
    twice = parts[0] + parts[0]
    assert twice.clients == ["a"] and twice.pooled("before").n == 300
    assert add_up([]).clients == []
    uncompared = measure({"d": drawn(4)}, VIEWS, compare=False)
    assert (whole + uncompared).paired is None and (uncompared + whole).paired is None


def test_not_every_view_can_be_compared(samples):
    for found in (
        measure(samples, {"before": unchanged}),
        measure(samples, VIEWS, compare=False),
        measure(samples, VIEWS, n_bins=MOST_BINS // 2 + 1),
    ):
        assert found.paired is None
        with pytest.raises(FedCalError, match="were not compared"):
            found.difference("after", "before")


def test_selected_views_and_clients(samples):
    found = measure(samples, {**VIEWS, "other": lambda _, logits: 2 * logits})
    order = ["c", "b", "a", "empty"]
    some = found.select({"other": "x", "before": "y"}, order)
    assert list(some.tallies) == ["x", "y"] and some.clients == order
    assert some.tallies["x"]["b"] is found.tallies["other"]["b"]
    assert some.difference("x", "y") == found.difference("other", "before")


def test_a_client_cannot_be_the_pooled_row():
    found = Measured.of("pooled", {"before": drawn(0)[0]}, drawn(0)[1])
    with pytest.raises(FedCalError, match="cannot be named 'pooled'"):
        found.rows("before")
