"""From a dataset to clients: who holds what, how it is split, and how skewed their labels are."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedcal.base.seeds import numpy_rng
from fedcal.data import deal
from fedcal.data.datasets import Dataset
from fedcal.data.standardise import standardise, statistics
from fedcal.errors import FedCalError, check_known

PARTITIONS = ("dirichlet", "iid", "shards", "natural")


@dataclass(frozen=True)
class Client:
    """One client's data: x float32 (standardised, unless the data set says otherwise) or int64 token ids; y int64.

    The calibration and test split may be empty.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    cal_x: Tensor
    cal_y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def n(self) -> int:
        """The paper's n_c: the number of training samples."""
        return len(self.train_y)


def make_clients(
    dataset: Dataset,
    *,
    partition: str = "dirichlet",
    n_clients: int = 20,
    beta: float = 0.5,
    classes_per_client: int = 2,
    cal_fraction: float = 0.1,
    min_samples: int = 10,
    seed: int = 0,
) -> list[Client]:
    """Deal a data set to clients; the same arguments give the same bytes.

    Clients left with fewer than `min_samples` get samples from the largest one (see deal.top_up).

    Args:
        dataset: what to deal.
        partition: `dirichlet` (class k goes to the clients in shares p_k ~ Dir(beta · 1), test samples by the same p_k),
            `iid` (equal sizes, labels at random), `shards` (`classes_per_client` classes each), or `natural` (as the data
            set says; `n_clients` and `min_samples` are not looked at).
        n_clients: how many clients.
        beta: concentration of `dirichlet`; lower is more skewed.
        classes_per_client: of `shards`.
        cal_fraction: share of a client's samples, at least one where it has two, that is set apart to calibrate on.
        min_samples: training samples that every client has at least.
        seed: of the draws.

    Returns:
        The clients, each with a training, a calibration and a test split.

    Raises:
        FedCalError: the data set has too few samples, or no natural clients.
    """
    if not 0 < cal_fraction < 1:
        raise FedCalError(f"cal_fraction must lie between 0 and 1, got {cal_fraction}: try 0.1")
    if partition == "natural":
        names, train_owner, test_owner = _natural(dataset)
    else:
        _check(partition, dataset, n_clients, min_samples)
        names = dealt_names(n_clients)
        train_owner, test_owner = _dealt(dataset, partition, n_clients, beta, classes_per_client, seed)
        train_owner = deal.top_up(train_owner, n_clients, min_samples, numpy_rng(seed, "partition", "top up"))

    train, cal, test = [], [], []
    for c in range(len(names)):
        pool = numpy_rng(seed, "partition", "split", c).permutation(np.flatnonzero(train_owner == c))
        n_cal = min(max(1, round(cal_fraction * len(pool))), len(pool) - 1)
        cal.append(torch.from_numpy(pool[:n_cal]))
        train.append(torch.from_numpy(pool[n_cal:]))
        test.append(torch.from_numpy(np.flatnonzero(test_owner == c)))

    if dataset.standardised:
        mean, std = statistics([dataset.train_x[rows] for rows in train])
        prepare = functools.partial(standardise, mean=mean, std=std)
    else:
        prepare = as_model_input
    return [
        Client(
            name,
            *(prepare(dataset.train_x[train[c]]), dataset.train_y[train[c]]),
            *(prepare(dataset.train_x[cal[c]]), dataset.train_y[cal[c]]),
            *(prepare(dataset.test_x[test[c]]), dataset.test_y[test[c]]),
        )
        for c, name in enumerate(names)
    ]


def dealt_names(n_clients: int) -> tuple[str, ...]:
    """The names of clients that samples are dealt to."""
    return tuple(f"client-{c:0{len(str(n_clients - 1))}d}" for c in range(n_clients))


def as_model_input(x: Tensor) -> Tensor:
    """Inputs that are not standardised: token ids as they are, all else as float32."""
    return x if x.dtype == torch.int64 else x.float()


@dataclass(frozen=True)
class Skew:
    """How far the clients' label distributions are from the pooled one."""

    train: Tensor  # clients × classes: numbers of samples
    cal: Tensor
    test: Tensor
    kl: Tensor  # KL(P_c ‖ P) in nats for each client, P_c its training label distribution and P the pooled one

    @property
    def G(self) -> float:
        """The paper's G: the largest of them."""
        return float(self.kl.max())


def together(name: str, clients: list[Client]) -> Client:
    """Return one client that holds everybody's data.

    Args:
        name: of that client.
        clients: those whose data it holds.
    """
    parts = ("train_x", "train_y", "cal_x", "cal_y", "test_x", "test_y")
    return Client(name, *(torch.cat([getattr(client, part) for client in clients]) for part in parts))


def skew(clients: list[Client], n_classes: int) -> Skew:
    """Return label counts and label skew of a federation.

    Args:
        clients: all of them.
        n_classes: the number of classes.
    """
    from scipy.special import rel_entr

    def counts(labels: list[Tensor]) -> Tensor:
        return torch.stack([y.bincount(minlength=n_classes) for y in labels])

    train = counts([client.train_y for client in clients])
    local = train.numpy() / train.sum(1, keepdim=True).numpy()
    pooled = train.sum(0).numpy() / train.sum().item()
    return Skew(
        train=train,
        cal=counts([client.cal_y for client in clients]),
        test=counts([client.test_y for client in clients]),
        kl=torch.from_numpy(rel_entr(local, pooled).sum(1)),
    )


def _check(partition: str, dataset: Dataset, n_clients: int, min_samples: int) -> None:
    check_known("partition", partition, PARTITIONS)
    if not 1 <= n_clients <= len(dataset.train_y):
        raise FedCalError(
            f"the number of clients must lie in 1..{len(dataset.train_y)}, the number of training samples of "
            f"{dataset.name}, got {n_clients}"
        )
    if min_samples < 1:
        raise FedCalError(f"min_samples must be at least 1, got {min_samples}: a client without data cannot train")


def _natural(dataset: Dataset) -> tuple[tuple[str, ...], deal.Owners, deal.Owners]:
    if dataset.train_client is None or dataset.test_client is None:
        raise FedCalError(f"{dataset.name} has no natural clients: choose the partition dirichlet, iid or shards")
    owners = dataset.train_client.numpy()
    sizes = np.bincount(owners, minlength=len(dataset.client_names))
    if not sizes.all():
        name = dataset.client_names[int(sizes.argmin())]
        raise FedCalError(f"{dataset.name}: client {name!r} has no training samples: load more of the set")
    return dataset.client_names, owners, dataset.test_client.numpy()


def _dealt(
    dataset: Dataset, partition: str, n_clients: int, beta: float, classes_per_client: int, seed: int
) -> tuple[deal.Owners, deal.Owners]:
    rng = numpy_rng(seed, "partition", partition)
    train_y, test_y = dataset.train_y.numpy(), dataset.test_y.numpy()
    if partition == "iid":
        return deal.iid(train_y, n_clients, rng), deal.iid(test_y, n_clients, rng)
    if partition == "dirichlet":
        if not 0 < beta < 1e9:
            raise FedCalError(f"beta must be positive and finite, got {beta}: for equal shares choose iid")
        shares = deal.dirichlet_shares(dataset.n_classes, n_clients, beta, rng)
    else:
        if not 1 <= classes_per_client <= dataset.n_classes:
            raise FedCalError(f"classes_per_client must lie in 1..{dataset.n_classes}, got {classes_per_client}")
        if n_clients * classes_per_client < dataset.n_classes:
            raise FedCalError(
                f"{n_clients} clients with {classes_per_client} classes each cannot hold all "
                f"{dataset.n_classes} classes: raise n_clients or classes_per_client"
            )
        shares = deal.shard_shares(dataset.n_classes, n_clients, classes_per_client, rng)
    return deal.by_shares(train_y, shares, rng), deal.by_shares(test_y, shares, rng)
