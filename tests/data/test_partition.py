from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal.data import Client, Dataset, load, make_clients, skew
from fedcal.errors import FedCalError


def numbered(n_train: int, n_test: int, n_classes: int = 10, seed: int = 0) -> Dataset:
    """A set whose second feature tells the samples apart (the first varies, the third never)."""
    rng = torch.Generator().manual_seed(seed)

    def split(n: int, start: int) -> tuple[torch.Tensor, torch.Tensor]:
        number = torch.arange(start, start + n, dtype=torch.float32)
        x = torch.stack([torch.randn(n, generator=rng), number, torch.ones(n)], 1)
        return x, torch.randint(n_classes, (n,), generator=rng)

    classes = tuple(str(k) for k in range(n_classes))
    return Dataset("numbered", classes, *split(n_train, 0), *split(n_test, 10**6))


def ranks(parts: list[torch.Tensor]) -> list[int]:
    """Which samples, by the order of their numbers: standardising keeps it."""
    return torch.cat(parts)[:, 1].unique(return_inverse=True)[1].bincount().tolist()


@settings(max_examples=60, deadline=None)
@given(
    n_train=st.integers(1, 300),
    n_test=st.integers(0, 100),
    beta=st.floats(1e-6, 1e6),
    seed=st.integers(0, 99),
    partition=st.sampled_from(["dirichlet", "iid", "shards"]),
    fraction=st.floats(0.01, 0.99),
    data=st.data(),
)
def test_every_sample_is_dealt_exactly_once(n_train, n_test, beta, seed, partition, fraction, data):
    dataset = numbered(n_train, n_test, n_classes=3, seed=seed)
    n_clients = data.draw(st.integers(1, min(n_train, 40)))
    clients = make_clients(
        dataset,
        partition=partition,
        n_clients=n_clients,
        beta=beta,
        classes_per_client=3,
        cal_fraction=fraction,
        seed=seed,
    )
    assert len(clients) == n_clients
    assert ranks([x for c in clients for x in (c.train_x, c.cal_x)]) == [1] * n_train
    assert ranks([c.test_x for c in clients]) == [1] * n_test
    assert all(c.n >= 1 and (len(c.cal_y) >= 1 or c.n == 1) for c in clients)
    assert all(torch.cat([c.train_x, c.cal_x, c.test_x]).isfinite().all() for c in clients)
    labels = torch.cat([c.test_y for c in clients])
    assert labels.bincount(minlength=3).equal(dataset.test_y.bincount(minlength=3))


def test_the_test_law_of_a_client_follows_its_training_law():
    dataset = numbered(20_000, 20_000)
    for beta in (0.1, 1.0):
        clients = make_clients(dataset, beta=beta, seed=3, cal_fraction=0.01)
        counts = skew(clients, 10)
        train = counts.train / dataset.train_y.bincount()  # each client's share of each class
        test = counts.test / dataset.test_y.bincount()
        assert (train - test).abs().max() < 0.02


def test_the_smaller_beta_the_larger_the_skew():
    dataset = numbered(5000, 100)
    kinds = [{"beta": 0.05}, {"beta": 0.5}, {"beta": 50}, {"partition": "iid"}]
    found = [skew(make_clients(dataset, **kind), 10).kl.mean().item() for kind in kinds]
    assert found[0] > found[1] > found[2] and found[3] < 0.05


def test_shards_give_each_client_its_classes():
    clients = make_clients(numbered(2000, 500), partition="shards", classes_per_client=2, n_clients=10)
    for c in clients:
        labels = torch.cat([c.train_y, c.cal_y]).unique()
        assert len(labels) == 2 and set(c.test_y.tolist()) <= set(labels.tolist())


def test_natural_clients_are_the_hospitals():
    clients = make_clients(load("heart"), partition="natural")
    assert [c.name for c in clients] == ["cleveland", "hungarian", "switzerland", "va"]
    assert sum(c.n + len(c.cal_y) + len(c.test_y) for c in clients) == 920
    with pytest.raises(FedCalError, match="digits has no natural clients"):
        make_clients(load("digits"), partition="natural")
    with pytest.raises(FedCalError, match="has no training samples"):
        make_clients(load("heart", limit=2), partition="natural")


def test_only_training_values_decide_the_scale():
    """Change every test value: the training and calibration tensors keep their bytes."""
    heart = load("heart")
    clients = make_clients(heart, partition="natural")
    other = make_clients(replace(heart, test_x=heart.test_x * 7 + 1e6), partition="natural")
    for a, b in zip(clients, other, strict=True):
        assert torch.equal(a.train_x, b.train_x) and torch.equal(a.cal_x, b.cal_x)
        assert not torch.equal(a.test_x, b.test_x)
    pooled = torch.cat([c.train_x for c in clients])
    assert pooled.mean(0).abs().max() < 1e-5, "missing values sit at the mean"
    assert not torch.cat([c.cal_x for c in clients]).isnan().any()


def test_calibration_values_do_not_decide_the_scale():
    dataset = numbered(200, 0)
    clients = make_clients(dataset, n_clients=4)
    taken = torch.cat([c.train_x for c in clients])[:, 0]
    assert abs(taken.mean()) < 1e-6 and abs(taken.std(correction=0) - 1) < 1e-5
    everything = torch.cat([taken, *[c.cal_x[:, 0] for c in clients]])
    assert abs(everything.mean()) > 1e-5


def test_same_seed_same_bytes():
    def flat(clients: list[Client]) -> torch.Tensor:
        return torch.cat([torch.cat([c.train_x, c.cal_x, c.test_x]) for c in clients])

    dataset = numbered(300, 100)
    for partition in ("dirichlet", "iid", "shards"):
        first, again = (flat(make_clients(dataset, partition=partition, seed=5)) for _ in range(2))
        assert torch.equal(first, again)
        assert not torch.equal(first, flat(make_clients(dataset, partition=partition, seed=6)))


def test_starving_clients_are_topped_up():
    clients = make_clients(numbered(1000, 50), beta=1e-3, n_clients=20, min_samples=30)
    assert min(c.n + len(c.cal_y) for c in clients) == 30
    clients = make_clients(numbered(1000, 50), beta=1e-3, n_clients=20, min_samples=10**6)
    assert {c.n + len(c.cal_y) for c in clients} == {50}, "capped at what all can have"


def test_one_sample_each():
    clients = make_clients(numbered(7, 0), n_clients=7)
    assert [(c.n, len(c.cal_y), len(c.test_y)) for c in clients] == [(1, 0, 0)] * 7
    assert clients[0].cal_x.shape == (0, 3) and clients[0].test_x.shape == (0, 3)
    assert torch.isfinite(skew(clients, 10).kl).all()


def test_names_sort_in_order():
    names = [c.name for c in make_clients(numbered(100, 0), n_clients=12, min_samples=1)]
    assert names == sorted(names) and names[3] == "client-03"


def test_skew_of_a_known_federation():
    def client(name: str, labels: list[int]) -> Client:
        y = torch.tensor(labels)
        return Client(name, torch.zeros(len(y), 1), y, torch.zeros(0, 1), y[:0], torch.zeros(1, 1), y[:1])

    found = skew([client("a", [0, 0]), client("b", [1, 1]), client("c", [0, 1])], 3)
    assert found.train.tolist() == [[2, 0, 0], [0, 2, 0], [1, 1, 0]]
    assert found.cal.sum() == 0 and found.test.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert found.kl.tolist() == pytest.approx([np.log(2), np.log(2), 0])
    assert found.kl.max() == found.G


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"beta": 0.0}, "beta must be positive and finite, got 0.0"),
        ({"beta": -1}, "beta must be positive"),
        ({"beta": float("nan")}, "beta must be positive"),
        ({"beta": float("inf")}, "choose iid"),
        ({"n_clients": 0}, r"the number of clients must lie in 1\.\.50"),
        ({"n_clients": 51}, r"the number of clients must lie in 1\.\.50.*got 51"),
        ({"min_samples": 0}, "min_samples must be at least 1, got 0"),
        ({"cal_fraction": 0.0}, "cal_fraction must lie between 0 and 1, got 0.0"),
        ({"cal_fraction": 1.0}, "cal_fraction"),
        ({"cal_fraction": float("nan")}, "cal_fraction"),
        ({"partition": "dirichelt"}, "did you mean 'dirichlet'"),
        ({"partition": "shards", "classes_per_client": 0}, "classes_per_client must lie in"),
        ({"partition": "shards", "classes_per_client": 11}, "classes_per_client must lie in"),
        ({"partition": "shards", "n_clients": 4}, "4 clients with 2 classes each cannot hold all 10 classes"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    with pytest.raises(FedCalError, match=message) as error:
        make_clients(numbered(50, 10), **arguments)
    assert "\n" not in str(error.value)
