"""Clients' samples, checked: all at once, or (`Stream`) one client at a time, so that there may be any number of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.checks import as_logits, check_labels, check_shown, look_like_probs, warn_if_swapped, warn_of_masks
from fedcal.base.labels import as_labels, find_classes
from fedcal.errors import FedCalError, error_context

Samples = tuple[Any, Any]  # logits (N, K) and labels (N,): arrays; a simulation's may be tensors


def check_pair(name: Any, pair: Any) -> tuple[Any, Any]:
    """Refuse what is no pair; return its two parts, whatever they are."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise FedCalError(f"client {name}: expected a pair (logits, labels), not {type(pair).__name__}")
    return pair[0], pair[1]


def read_client(name: str, pair: tuple[Any, Any], width: int, probs: bool | None) -> tuple[Array, np.ndarray]:
    """A client's logits and its labels, as they came; `width` is the number of classes, 0 if any will do."""
    with error_context(f"client {name}"):
        logits, labels = as_logits(pair[0], probs), as_labels(pair[1])
    if width and logits.shape[1] != width:
        raise FedCalError(f"client {name}: logits of {logits.shape[1]} classes where the others have {width}")
    warn_of_masks(logits)
    return logits, labels


def label_client(name: str, logits: Array, labels: np.ndarray, classes: Any) -> Samples:
    """Its labels as columns."""
    with error_context(f"client {name}"):
        return logits, check_labels(labels, len(logits), logits.shape[1], classes=classes)


def name_clients(clients: Any) -> dict[str, tuple[Any, Any]]:
    """Each client's (logits, labels) by name; clients of a list are numbered."""
    if not isinstance(clients, Iterable):
        raise FedCalError(f"clients must be a list of pairs (logits, labels), not {type(clients).__name__}")
    given = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    return {name: check_pair(name, given[key]) for name, key in keys_by_name(given).items()}


def keys_by_name(clients: Mapping[Any, Any]) -> dict[str, Any]:
    """The clients' names, which are texts, and the keys that users gave: numbers, perhaps."""
    keys: dict[str, Any] = {}
    for key in clients:
        if str(key) in keys:
            raise FedCalError(f"two clients have the name {str(key)!r}: rename one")
        keys[check_shown(str(key))] = key
    if not keys:
        raise FedCalError("no clients: give (logits, labels) of at least one")
    return keys


def name_columns(classes: np.ndarray | None) -> tuple[Any, ...]:
    """What a scaler remembers of its classes: nothing where they are the columns' numbers."""
    labels = () if classes is None else tuple(classes.tolist())
    return () if labels == tuple(range(len(labels))) else labels


def check_clients(clients: Any, probs: bool | None, classes: Any) -> tuple[dict[str, Samples], np.ndarray | None]:
    """Each client's samples as arrays, by name, all of as many classes; and the label of each column, if it has one."""
    read: dict[str, tuple[Array, np.ndarray]] = {}
    width = 0
    for name, pair in name_clients(clients).items():
        read[name] = read_client(name, pair, width, probs)
        width = read[name][0].shape[1]
    found = find_classes((labels for _, labels in read.values()), width, classes)
    labelled = {name: label_client(name, *pair, found) for name, pair in read.items()}
    if classes is None:
        warn_if_swapped(labelled.values(), found)
    return labelled, found


class Stream(Mapping[str, Samples]):
    """A user's mapping of clients, read and checked again whenever a client is looked at; nothing but names is held.

    The first client says what cannot be asked of all of them: the number of classes and, where labels are strings, which
    ones there are.
    """

    def __init__(self, clients: Any, probs: bool | None = False, classes: Any = None) -> None:
        if not isinstance(clients, Mapping):
            raise FedCalError(f"a stream of clients must be a mapping from names, not {type(clients).__name__}")
        self.clients, self.probs, self.key_of = clients, probs, keys_by_name(clients)
        first, key = next(iter(self.key_of.items()))
        logits, labels = read_client(first, check_pair(first, clients[key]), 0, probs)
        self.width, self.suspect = logits.shape[1], look_like_probs(logits)
        named = classes is not None or labels.dtype.kind == "U"
        self.classes = find_classes([labels], self.width, classes) if named else None

    def __getitem__(self, name: str) -> Samples:
        pair = read_client(name, check_pair(name, self.clients[self.key_of[name]]), self.width, self.probs)
        return label_client(name, *pair, self.classes)

    def __contains__(self, name: object) -> bool:  # the one of Mapping would read the client
        return name in self.key_of

    def __iter__(self) -> Iterator[str]:
        return iter(self.key_of)

    def __len__(self) -> int:
        return len(self.key_of)
