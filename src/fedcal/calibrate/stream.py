"""Clients' samples, checked: all at once, or (`Stream`) one client at a time, so that there may be any number of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from fedcal.checks import check_labels, check_logits
from fedcal.errors import FedCalError

Samples = tuple[Tensor, Tensor]  # logits (N, K) and labels (N,)


def check_pair(name: Any, pair: Any) -> tuple[Any, Any]:
    """Two things, whatever they are."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise FedCalError(f"client {name}: expected a pair (logits, labels), not {type(pair).__name__}")
    return pair[0], pair[1]


def check_client(name: str, pair: tuple[Any, Any], width: int = 0) -> Samples:
    """A client's (logits, labels) as tensors of the type they came in; `width` is the number of classes, 0 if any will do."""
    try:
        logits = check_logits(pair[0])
        labels = check_labels(pair[1], logits.shape[0], logits.shape[1])
    except FedCalError as error:
        raise FedCalError(f"client {name}: {error}") from None
    if width and logits.shape[1] != width:
        raise FedCalError(f"client {name}: logits of {logits.shape[1]} classes where the others have {width}")
    return logits, labels


class Stream(Mapping[str, Samples]):
    """A user's mapping of clients, read and checked anew whenever a client is looked at; nothing is held."""

    def __init__(self, clients: Any) -> None:
        if not isinstance(clients, Mapping):
            raise FedCalError(f"a stream of clients must be a mapping from names, not {type(clients).__name__}")
        if not len(clients):
            raise FedCalError("no clients: give (logits, labels) of at least one")
        self.clients, self.width = clients, 0
        self.width = next(iter(self.values()))[0].shape[1]

    def __getitem__(self, name: str) -> Samples:
        return check_client(name, check_pair(name, self.clients[name]), self.width)

    def __iter__(self) -> Iterator[str]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)
