"""Users' own arrays as a data set for the simulator: checked once, split where they are not, and known by their hash.

x            (N, …): features (N, D), images (N, C, H, W), or token ids (N, L). What they are follows from their type,
             never from their values: floating-point numbers and bytes are standardised, other whole numbers are token ids.
y            (N,) labels 0..K-1, or strings
client       (N,) who holds the sample: natural clients
test_x, test_y, test_client      a test split; without it, one is drawn by the seed
classes      the label of each class, in order, where they are not 0, 1, … or not all of them occur
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcal.base.arrays import tensor
from fedcal.base.checks import check_array
from fedcal.base.labels import as_labels, check_classes, to_columns
from fedcal.base.seeds import numpy_rng
from fedcal.data.datasets import Dataset
from fedcal.errors import FedCalError, check_known, error_context

PARTS = ("x", "y", "client", "test_x", "test_y", "test_client", "classes")
ARRAYS = "arrays"  # the name of data that come from no file
OWN = re.compile(r"[\w.-]{1,60}@[0-9a-f]{16}")  # how a config names them


def is_own(name: str) -> bool:
    """Whether a config's `data` names a user's own data, as NAME@HASH."""
    return OWN.fullmatch(name) is not None


def own_dataset(
    data: Any, *, name: str = ARRAYS, standardise: bool | None = None, test_fraction: float = 0.2, seed: int = 0
) -> Dataset:
    """Check a user's arrays and make a data set of them.

    Args:
        data: a mapping of PARTS, or (x, y), or (x, y, client).
        name: of the data, for messages and for the config.
        standardise: whether inputs get zero mean and unit variance; None: floating-point numbers and bytes do, while other
            whole numbers are token ids.
        test_fraction: share of each client's samples to hold out for testing, where there is no test split.
        seed: draws that split.

    Returns:
        The data set; its name holds the data's hash.

    Raises:
        FedCalError: where an array is missing, or not as it should be.
    """
    given = _by_name(data)
    with error_context(f"data {name}"):
        return _checked(given, name, standardise, test_fraction, seed)


@dataclass(frozen=True)
class _Split:
    """Samples and, where it is known, who holds them."""

    x: Tensor
    y: np.ndarray
    client: np.ndarray | None


def _by_name(data: Any) -> dict[str, Any]:
    if isinstance(data, tuple | list) and len(data) in (2, 3):
        data = dict(zip(PARTS, data, strict=False))
    if not isinstance(data, Mapping):
        raise FedCalError(
            f"data must be (x, y), (x, y, client) or a mapping of {', '.join(PARTS)}, not {type(data).__name__}"
        )
    given = {str(key): value for key, value in data.items() if value is not None}
    for key in given:
        check_known("part of data", key, PARTS)
    for key in ("x", "y"):
        if key not in given:
            raise FedCalError(f"data has no {key!r}: give the inputs as x, and their labels as y")
    if ("test_x" in given) != ("test_y" in given):
        raise FedCalError("data has one of test_x and test_y: give both, or neither")
    if "test_client" in given and "test_x" not in given:
        raise FedCalError("data has test_client, but no test_x: give the test split, or leave test_client out")
    return given


def _checked(given: Mapping[str, Any], name: str, standardise: bool | None, test_fraction: float, seed: int) -> Dataset:
    train = _split(given, "", standardise)
    if not len(train.y):
        raise FedCalError("x has no samples")
    test = _split(given, "test_", standardise) if "test_x" in given else None
    if test is not None:
        _check_alike(train, test)
    classes = _classes([train.y, *([test.y] if test else [])], given.get("classes"))
    known_as = re.sub(r"[^\w.-]", "_", name)[:60] or ARRAYS
    names, owners = _owners(train, test)
    y = _columns(train.y, classes)
    if test is None:
        held = _held_out(y, None if owners is None else owners[0], test_fraction, seed)
        if not held.any():
            raise FedCalError(
                f"{len(y)} samples are too few to hold some out for testing: give more, or test_x and test_y"
            )
        parts = train.x[~held], y[~held], train.x[held], y[held]
        holders = (None, None) if owners is None else (owners[0][~held], owners[0][held])
    else:
        parts = train.x, y, test.x, _columns(test.y, classes)
        holders = (None, None) if owners is None else owners
    tokens = not train.x.is_floating_point() and train.x.dtype != torch.uint8
    return Dataset(
        f"{known_as}@{fingerprint(given)}",
        tuple(str(label) for label in classes),
        *parts,
        train_client=holders[0],
        test_client=holders[1],
        client_names=names,
        standardised=standardise if standardise is not None else not tokens,
    )


def _split(given: Mapping[str, Any], prefix: str, standardise: bool | None) -> _Split:
    x, y = tensor(_signed(check_array(given[f"{prefix}x"], f"{prefix}x"))), as_labels(given[f"{prefix}y"], f"{prefix}y")
    if x.ndim < 2:
        raise FedCalError(f"{prefix}x must have shape (samples, …), not {tuple(x.shape)}: a single feature is a column")
    if not x[:1].numel() and len(x):
        raise FedCalError(f"{prefix}x has no features: its shape is {tuple(x.shape)}")
    if len(x) != len(y):
        raise FedCalError(f"{prefix}x has {len(x)} samples, but {prefix}y has {len(y)} labels: give as many")
    client = f"{prefix}client"
    held = as_labels(given[client], client).astype(np.str_) if client in given else None
    if held is not None and len(held) != len(y):
        raise FedCalError(f"{client} has {len(held)} entries for {len(y)} samples: give one per sample")
    return _Split(_numbers(x, f"{prefix}x", standardise), y, held)


def _signed(x: np.ndarray) -> np.ndarray:
    """Whole numbers without a sign as int64: PyTorch can do little with them, except for bytes."""
    if x.dtype.kind != "u" or x.dtype == np.uint8:
        return x
    if x.size and int(x.max()) > np.iinfo(np.int64).max:
        raise FedCalError(f"x holds {int(x.max())}, which is too large a whole number: give floating-point numbers")
    return x.astype(np.int64)


def _numbers(x: Tensor, what: str, standardise: bool | None) -> Tensor:
    """Inputs of a type that models take: floating-point numbers and bytes as they are, token ids as int64."""
    if x.is_floating_point():
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        bad = ~(x.abs() <= torch.finfo(torch.float32).max)  # NaN too
        if bad.any():
            row, *rest = bad.nonzero()[0].tolist()
            value = float(x[(row, *rest)])
            raise FedCalError(
                f"{what} holds {value} in row {row} at {tuple(rest)}: fill missing values, or leave them out"
            )
        return x
    if standardise:  # whole numbers that are features
        return x if x.dtype == torch.uint8 else x.double()
    if x.dtype == torch.uint8:
        return x
    if len(x) and int(x.min()) < 0:
        raise FedCalError(
            f"{what} holds whole numbers, which are token ids, and {int(x.min())} is below 0: "
            "give features as floating-point numbers, or pass standardise=True (--standardise)"
        )
    return x.long()


def _check_alike(train: _Split, test: _Split) -> None:
    if train.x.shape[1:] != test.x.shape[1:]:
        raise FedCalError(
            f"x has samples of shape {tuple(train.x.shape[1:])}, but test_x of {tuple(test.x.shape[1:])}: give the same"
        )
    if train.x.is_floating_point() != test.x.is_floating_point():
        raise FedCalError(f"x holds {train.x.dtype}, but test_x {test.x.dtype}: give the same type")
    if not len(test.y):
        raise FedCalError("test_x has no samples: give some, or leave the test split out")
    if (train.y.dtype.kind == "U") != (test.y.dtype.kind == "U"):
        raise FedCalError("y and test_y must both be numbers, or both strings")


def _classes(labels: list[np.ndarray], given: Any) -> list[Any]:
    """The label of each class, in order: as given, sorted strings, or 0..K-1."""
    found = np.unique(np.concatenate([np.unique(own) for own in labels]))
    if given is not None:
        classes = check_classes(given, len(given) if isinstance(given, list | tuple | np.ndarray) else 2).tolist()
    elif found.dtype.kind == "U":
        classes = found.tolist()
        if all(label.isdecimal() for label in classes) and sorted(classes, key=int) != classes:
            raise FedCalError("labels are numbers written as text, whose order is unclear: give `classes`")
    else:
        numbers = found.astype(np.float64)
        classes = list(range(int(numbers.max()) + 1)) if 0 <= numbers.max() < 1e6 else []
        if numbers.tolist() != classes:
            odd = next((n for n in numbers.tolist() if n not in set(classes)), None)
            why = f"found {odd:g}" if odd is not None else f"none is {min(set(classes) - set(numbers.tolist()))}"
            raise FedCalError(
                f"labels must be 0, 1, … without gaps, or strings ({why}): number them so, or give `classes`"
            )
    if len(classes) < 2:
        raise FedCalError(f"all labels are {classes[0]!r}: there is nothing to learn from a single class")
    return classes


def _held_out(y: Tensor, owners: Tensor | None, fraction: float, seed: int) -> Tensor:
    """A mask that holds out `fraction` of each client's samples, spread over its classes; one is left at least.

    Samples are drawn at equal distances from a client's samples in the order of their classes: each class gives its share,
    and so do many classes of a sample each.
    """
    held = torch.zeros(len(y), dtype=torch.bool)
    order = np.lexsort((numpy_rng(seed, "own test split").random(len(y)), y.numpy()))
    groups = [order] if owners is None else _groups(order, owners.numpy()[order])
    starts = numpy_rng(seed, "own test split", "starts").random(len(groups))
    for members, start in zip(groups, starts, strict=True):
        n = min(max(round(fraction * len(members)), 1), len(members) - 1)
        held[members[((np.arange(n) + start) * (len(members) / max(n, 1))).astype(np.int64)]] = True
    return held


def _groups(order: np.ndarray, owners: np.ndarray) -> list[np.ndarray]:
    """The samples of each client, in their order."""
    by_owner = np.argsort(owners, kind="stable")
    return np.split(order[by_owner], np.cumsum(np.bincount(owners))[:-1])


def _columns(labels: np.ndarray, classes: list[Any]) -> Tensor:
    return torch.from_numpy(to_columns(labels, classes))


def _owners(train: _Split, test: _Split | None) -> tuple[tuple[str, ...], tuple[Tensor, Tensor] | None]:
    """The natural clients' names, and each training and test sample's client."""
    if train.client is None:
        if test is not None and test.client is not None:
            raise FedCalError("data has test_client, but no client: say who holds each training sample")
        return (), None
    names = np.unique(train.client)
    theirs = np.zeros(0, np.str_) if test is None else test.client
    if theirs is None:
        raise FedCalError("data has client, but no test_client: say who holds each test sample")
    held = np.searchsorted(names, theirs).clip(max=len(names) - 1)
    if (strange := names[held] != theirs).any():
        who = str(theirs[strange.argmax()])
        raise FedCalError(f"client {who!r} has test samples, but no training samples: give it some, or leave it out")
    owners = np.searchsorted(names, train.client)
    return tuple(names.tolist()), (torch.from_numpy(owners.astype(np.int64)), torch.from_numpy(held.astype(np.int64)))


def fingerprint(given: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits that other data would not have: a hash of every array's type, shape and bytes."""
    found = hashlib.sha256()
    for key in PARTS:
        if (value := given.get(key)) is None:
            continue
        array = check_array(value, key) if key in ("x", "test_x") else as_labels(value, key)
        array = np.ascontiguousarray(array)
        found.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        found.update(array.data.cast("B") if array.dtype.kind != "U" else "\0".join(array.tolist()).encode())
    return found.hexdigest()[:16]
