"""Who gets which sample: the owner (a client's index) of every training and test sample.

An owner per sample is the whole bookkeeping: no sample can be dealt twice or forgotten. The test samples of a
class are dealt in the same shares as its training samples, so that a client is tested under its own label distribution
and the local test sets together are the whole test set.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Owners = NDArray[np.int64]


def iid(labels: Owners, n_clients: int, rng: np.random.Generator) -> Owners:
    """Equal numbers of samples, labels at random."""
    return rng.permutation(np.arange(len(labels)) % n_clients)


def dirichlet_shares(n_classes: int, n_clients: int, beta: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Row k is p_k ~ Dir(beta · 1): each client's share of class k. The smaller beta, the more lopsided."""
    return rng.dirichlet(np.full(n_clients, beta), size=n_classes)


def shard_shares(n_classes: int, n_clients: int, each: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """`each` classes a client, and a class shared equally by those who hold it.

    Clients in turn take the classes taken least so far (ties at random), so usage differs by at most one.
    """
    holds = np.zeros((n_classes, n_clients))
    for client in range(n_clients):
        least_used_first = np.lexsort((rng.random(n_classes), holds.sum(1)))
        holds[least_used_first[:each], client] = 1
    return holds / holds.sum(1, keepdims=True)


def by_shares(labels: Owners, shares: NDArray[np.float64], rng: np.random.Generator) -> Owners:
    """Deal the samples of each class k, in random order, in the proportions shares[k]."""
    owners = np.empty(len(labels), np.int64)
    for k, share in enumerate(shares):
        members = rng.permutation(np.flatnonzero(labels == k))
        # clients take their turn in random order: the rounding of small shares must not favour the same ones
        turn = rng.permutation(len(share))
        cuts = np.rint(np.cumsum(share[turn])[:-1] * len(members))
        owners[members] = turn[np.searchsorted(cuts, np.arange(len(members)), side="right")]
    return owners


def top_up(owners: Owners, n_clients: int, at_least: int, rng: np.random.Generator) -> Owners:
    """Move random samples from the largest client to each one that has fewer than `at_least`.

    Redrawing until everyone has enough would change the distribution of the partition (and may never end); moving a
    handful of samples touches only the starving clients' labels. `at_least` is lowered to what all can have.
    """
    owners = owners.copy()
    at_least = min(at_least, len(owners) // n_clients)
    sizes = np.bincount(owners, minlength=n_clients)
    while sizes.min() < at_least:
        poor, rich = sizes.argmin(), sizes.argmax()
        # the largest lies above the average, hence above `at_least`, and gives only what it has beyond that
        n = min(at_least - sizes[poor], sizes[rich] - at_least)
        owners[rng.permutation(np.flatnonzero(owners == rich))[:n]] = poor
        sizes[poor] += n
        sizes[rich] -= n
    return owners
