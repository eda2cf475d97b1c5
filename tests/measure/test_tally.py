"""Tallies: a federation's metrics are the pooled ones; the wire changes nothing."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from fedcal import FedCalError, Reliability
from fedcal.base.arrays import log_softmax
from fedcal.measure import metrics, reliability
from fedcal.measure.tally import Tally, over_clients, pooled


def drawn(seed=0, n=300, k=5):
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    return logits.log_softmax(1), torch.randint(k, (n,), generator=rng)


def split(log_probs, labels, cuts):
    bounds = [0, *sorted(min(c, len(labels)) for c in cuts), len(labels)]
    return [Tally.of(log_probs[a:b], labels[a:b]) for a, b in itertools.pairwise(bounds)]


@given(
    st.integers(0, 300),
    st.integers(2, 8),
    st.lists(st.integers(0, 300), max_size=6),
    st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_any_split_equals_the_pooled_metrics(n, k, cuts, seed):
    log_probs, labels = drawn(seed, n, k)
    whole, summed = Tally.of(log_probs, labels), pooled(split(log_probs, labels, cuts))
    read = [tally.summary(interval=True) for tally in (whole, summed)]
    assert read[1] == pytest.approx(read[0], rel=1e-12, abs=1e-12, nan_ok=True)


def test_agrees_with_the_metric_functions():
    log_probs, labels = drawn(3, n=2000)
    found, probs = Tally.of(log_probs, labels).summary(), log_probs.exp()
    for name in ("accuracy", "nll", "brier", "ece", "mce", "classwise_ece"):
        assert found[name] == pytest.approx(getattr(metrics, name)(probs, labels), abs=1e-12), name
    assert found["top3"] == pytest.approx(metrics.top_k(log_probs, labels, 3))
    assert found["equal_mass_ece"] == pytest.approx(metrics.equal_mass_ece(probs, labels), abs=0.01)


def test_clients_without_test_samples_do_not_count():
    log_probs, labels = drawn()
    found = over_clients(["a", "b"], [Tally.of(log_probs, labels), Tally.of(log_probs[:0], labels[:0])])
    assert found["clients"] == 1 and found["worst_client"] == "a"
    assert found["ece"] == found["worst_ece"] == Tally.of(log_probs, labels).summary()["ece"]
    assert over_clients(["b"], [Tally.of(log_probs[:0], labels[:0])]) == {"clients": 0}


def test_spread_over_clients():
    log_probs, labels = drawn(6)
    parts = split(log_probs, labels, [40, 90, 170])
    values = [part.summary()["nll"] for part in parts]
    spread = over_clients(list("abcd"), parts)["spread"]["nll"]
    assert spread["std"] == pytest.approx(np.std(values)) and spread["median"] == pytest.approx(np.median(values))
    assert (spread["min"], spread["max"]) == (min(values), max(values))
    assert spread["q10"] == pytest.approx(np.quantile(values, 0.1))


@pytest.mark.parametrize("n", [0, 1, 300])
def test_the_wire_changes_nothing(n):
    tally = Tally.of(*drawn(7, n))
    back = Tally.from_arrays(load(save(tally.to_arrays())))
    sent, again = tally.to_arrays(), back.to_arrays()
    assert all(np.array_equal(sent[name], again[name]) for name in sent)
    assert back.summary() == pytest.approx(tally.summary(), rel=0, abs=0, nan_ok=True)
    assert (back + tally).n == 2 * n


def test_a_damaged_message_is_one_line():
    good = Tally.of(*drawn()).to_arrays()
    bad = {
        "missing": {name: t for name, t in good.items() if name != "fine"},
        "shape": {**good, "fine": good["fine"][:, :3]},
        "another type": {**good, "counts": good["counts"].astype(float)},
        "add up": {**good, "counts": good["counts"] + 1},
        "negative": {**good, "classwise": -good["classwise"]},
        "not finite": {**good, "sums": good["sums"] * float("nan")},
    }
    none = Tally.of(*drawn(n=0)).to_arrays()
    bad["0 of at least two classes"] = {**none, "classwise": none["classwise"][:0]}
    for match, tensors in bad.items():
        with pytest.raises(FedCalError, match=match):
            Tally.from_arrays(tensors)
    with pytest.raises(FedCalError, match="classes do not add"):
        Tally.of(*drawn(k=3)) + Tally.of(*drawn(k=4))


def test_many_blocks_equal_one(monkeypatch):
    log_probs, labels = drawn(6, n=1000)
    whole = Tally.of(log_probs, labels)
    monkeypatch.setattr(reliability, "ENTRIES", 35)  # seven rows
    small = Tally.of(log_probs, labels)
    assert small.reliability == whole.reliability and small.fine == whole.fine  # exact: whole numbers
    assert (small.classes == whole.classes).all()
    assert small.summary() == pytest.approx(whole.summary(), rel=1e-13)
    assert metrics.classwise(np.exp(log_softmax(log_probs.numpy(), 1)), labels)[2] == whole.classwise[2]


def test_classwise_sums_are_those_of_each_column():
    log_probs, labels = drawn(7, n=400)
    for k, one in enumerate(Tally.of(log_probs, labels).classwise):
        probs = np.exp(log_softmax(log_probs.numpy(), 1))[:, k]
        column = Reliability.of_top(probs, (labels == k).numpy(), np.linspace(0, 1, 16))
        assert one == column


def test_calibrated_clients_have_no_debiased_error_on_average():
    """Clients of 50 samples each: clipped one by one, their mean was several per cent of pure noise."""
    rng = np.random.default_rng(0)
    tallies = []
    for _ in range(1000):
        probs = torch.from_numpy(rng.dirichlet(np.ones(3), 50))
        labels = torch.from_numpy((probs.numpy().cumsum(1) > rng.random((50, 1))).argmax(1))
        tallies.append(Tally.of(probs.log(), labels))
    found = over_clients([str(i) for i in range(1000)], tallies)["debiased_l2"]
    squares = np.array([t.reliability.debiased_square() for t in tallies])
    assert abs(squares.mean()) < 3 * squares.std() / np.sqrt(len(squares))  # noise that averages out
    assert found == pytest.approx(np.sqrt(max(0.0, squares.mean())))
    clipped = np.mean([t.reliability.debiased_l2() for t in tallies])
    assert found < 0.035 and clipped > 0.055
