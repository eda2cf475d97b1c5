"""What a site sends: only sums, only of enough samples; and what a stranger sends is checked."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedcal
from fedcal.base.codec import pack, unpack
from fedcal.monitor import Batch
from fedcal.monitor.batch import assumed_by, fingerprint


def samples(n: int, k: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=n)
    return 2 * np.eye(k)[labels] + rng.normal(size=(n, k)), labels


@pytest.fixture(scope="module")
def scaler():
    return fedcal.calibrate({"a": samples(200), "b": samples(150, seed=1)})


def test_a_round_trip_gives_the_same_batch(scaler, tmp_path):
    z, y = samples(30, seed=2)
    for labels, reference in ((y, False), (None, False), (y, True)):
        batch = fedcal.Monitor.sums(scaler, "a", "week 1", z, labels, reference=reference)
        batch.save(tmp_path / "sums")
        again = Batch.load(tmp_path / "sums")
        assert again.pack() == batch.pack() and again.digest == batch.digest and again.about is batch.about
        assert (tmp_path / "sums").stat().st_mode & 0o077 == 0


def test_the_same_samples_in_another_order_are_known_again(scaler):
    z, y = samples(300, seed=2)
    order = np.random.default_rng(0).permutation(300)
    for labels, reference in ((y, False), (None, False), (y, True)):
        one, two = (
            fedcal.Monitor.sums(
                scaler, "a", name, z[rows], None if labels is None else labels[rows], reference=reference
            )
            for name, rows in (("1", np.arange(300)), ("2", order))
        )
        assert one.digest == two.digest
    others = [fedcal.Monitor.sums(scaler, "a", "1", z[rows], y[rows]) for rows in (order[:299], order[1:])]
    assert others[0].digest != others[1].digest


def test_it_holds_the_sums_of_the_sites_own_probabilities(scaler):
    z, y = samples(40, seed=3)
    batch = fedcal.Monitor.sums(scaler, "b", "1", z)
    np.testing.assert_allclose(batch.expected, scaler.predict_proba(z, client="b").sum(0), rtol=1e-12)
    labelled = fedcal.Monitor.sums(scaler, "b", "1", z, y)
    np.testing.assert_array_equal(labelled.counts, np.bincount(y, minlength=3))
    assert not len(labelled.expected) and not len(batch.counts)  # nothing more than what is needed
    assumed = assumed_by(scaler, "b")
    assert assumed is not None and torch.equal(batch.assumed, assumed)
    new_site = fedcal.Monitor.sums(scaler, "elsewhere", "1", z)
    np.testing.assert_allclose(new_site.expected, scaler.predict_proba(z).sum(0), rtol=1e-12)
    assert not len(new_site.assumed)


def test_personal_parts_do_not_change_the_fingerprint(scaler):
    assert fingerprint(replace(scaler, personal={})) == fingerprint(scaler)
    assert fingerprint(fedcal.calibrate({"a": samples(200, seed=9)})) != fingerprint(scaler)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 31}, "label counts"),
        ({"n": 0}, "within"),
        ({"site": "../a"}, "cannot name a site"),
        ({"site": "a\x1b[2J"}, "cannot be shown"),
        ({"tolerance": -1.0}, "within"),
        ({"kind": "evaluation"}, "not a batch"),
        ({"about": "everything"}, "should be"),
        ({"n_classes": 4}, "shape"),
        ({"extra": 1}, "extra"),
    ],
)
def test_headers_of_strangers_are_refused(scaler, change, words):
    z, y = samples(30, seed=2)
    tensors, about = unpack(fedcal.Monitor.sums(scaler, "a", "1", z, y).pack())
    with pytest.raises(fedcal.FedCalError, match=words):
        Batch.unpack(pack(tensors, about | change))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ratios", torch.full((24,), 1e4, dtype=torch.float64), "more than 30 samples"),
        ("ratios", torch.full((24,), float("nan"), dtype=torch.float64), "NaN"),
        ("ratios", torch.zeros(23, dtype=torch.float64), "shape"),
        ("ratios", torch.zeros(24), "shape or type"),
        ("counts", torch.tensor([30.5, -0.5, 0.0], dtype=torch.float64), "label counts"),
        ("counts", torch.tensor([31.0, -1.0, 0.0], dtype=torch.float64), "label counts"),
        ("assumed", torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), "no label distribution"),
        ("assumed", torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64), "no label distribution"),
        ("expected", torch.ones(3, dtype=torch.float64), "no place"),
    ],
)
def test_sums_that_no_samples_give_are_refused(scaler, name, value, words):
    z, y = samples(30, seed=2)
    tensors, about = unpack(fedcal.Monitor.sums(scaler, "a", "1", z, y).pack())
    with pytest.raises(fedcal.FedCalError, match=words):
        Batch.unpack(pack(tensors | {name: value}, about))


def test_bad_input_is_one_line(scaler):
    z, y = samples(30)
    sums = fedcal.Monitor.sums
    for call, words in (
        (lambda: sums(scaler, "a", "1", z[:4], y[:4]), "4 samples, and a batch needs 5"),
        (lambda: sums(scaler, "a", "1", z[:0], min_count=0), "0 samples"),
        (lambda: sums(scaler, "a", "1", z, y[:7]), "7"),
        (lambda: sums(scaler, "a", "1", z, reference=True), "needs labels"),
        (lambda: sums(scaler, "a", "1", z, y, tolerance=-1), "tolerance -1"),
        (lambda: sums(scaler, "a/b", "1", z, y), "cannot name a site"),
        (lambda: sums(scaler, "a", "1", z[:, :2], y), "classes"),
        (lambda: Batch.unpack(b"no batch"), "."),
        (lambda: Batch.load("missing"), "missing"),
    ):
        with pytest.raises(fedcal.FedCalError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("k", [2, 1000])
def test_other_numbers_of_classes(k):
    z, y = samples(400, k)
    scaler = fedcal.calibrate({"a": (z, y)}, "fed-ts")
    batch = Batch.unpack(fedcal.Monitor.sums(scaler, "a", "1", z, y).pack())
    monitor = fedcal.Monitor(scaler, ["a"])
    assert monitor.add(batch) and not monitor.verdict().drifted
