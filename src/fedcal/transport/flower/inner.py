"""An inner strategy: the metric that it weighs nodes by, and its state, such as FedAdam's moments or a clipping norm.

Flower's strategies keep their state in attributes and have no way to save it. Here attributes are found by their type
(numbers, arrays, and lists or dicts of arrays; also those of a strategy within the strategy) and restored by it: nothing
that is read runs code. Numbers that did not change since the strategy was made are its settings: the app sets them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedcal.base.arrays import Params
from fedcal.errors import FedCalError

Told = dict[str, Any]  # by attribute: a number, or the kind and the names of its arrays
WEIGHT = "num-examples"  # the metric that strategies weigh nodes by, unless they say otherwise
BETWEEN = "."  # a strategy within a strategy, and its attribute


def weight_of(strategy: Strategy) -> str:
    """Return the metric that a strategy, or the innermost one that it wraps, weighs nodes by."""
    inner: Any = strategy
    while hasattr(inner, "strategy"):  # a wrapper
        inner = inner.strategy
    return getattr(inner, "weighted_by_key", WEIGHT)


def numbers_of(strategy: Strategy) -> dict[str, int | float]:
    """Return a strategy's numbers, by attribute."""
    return {name: value for name, value in _attributes(strategy).items() if _is_number(value)}


def state_of(strategy: Strategy, at_first: dict[str, int | float]) -> tuple[Params, Told]:
    """Return a strategy's state.

    Args:
        strategy: the inner strategy.
        at_first: its numbers when it was made (`numbers_of`).

    Returns:
        Its arrays; and by attribute the numbers that have changed, and the kind and names of arrays.
    """
    arrays, numbers = dict[str, np.ndarray](), numbers_of(strategy)
    told: Told = {name: value for name, value in numbers.items() if at_first.get(name) != value}
    for name, value in _attributes(strategy).items():
        if name in numbers or (found := _arrays(value)) is None:
            continue
        kind, parts = found
        try:
            copies = [np.array(part) for part in parts.values()]
        except (TypeError, ValueError):  # no arrays after all: no reason to end a run
            continue
        if any(copy.dtype.kind not in "biuf" or copy.dtype.itemsize > 8 for copy in copies):  # no file can hold them
            continue
        told[name] = {"kind": kind, "names": list(parts)}
        arrays |= {f"{name}/{i}": copy for i, copy in enumerate(copies)}
    return arrays, told


def put_back(strategy: Strategy, arrays: Params, told: Told) -> None:
    """Restore the state of a strategy that was made in the same way.

    Args:
        strategy: to restore.
        arrays: from `state_of`.
        told: from `state_of`.

    Raises:
        FedCalError: where the state is damaged, or of another strategy.
    """
    has = _attributes(strategy)
    for name, value in told.items():
        if name not in has:
            raise FedCalError(f"the checkpoint is of another strategy, which has {name!r}: delete it")
        if isinstance(value, dict):
            try:
                parts = {key: arrays[f"{name}/{i}"] for i, key in enumerate(value["names"])}
                value = _MADE[value["kind"]](parts)
            except (KeyError, TypeError, ValueError):
                raise FedCalError(_DAMAGED) from None
        elif not _is_number(value) or not (has[name] is None or _is_number(has[name])):
            raise FedCalError(_DAMAGED)
        *within, last = name.split(BETWEEN)
        owner: Any = strategy
        for one in within:
            owner = getattr(owner, one)
        setattr(owner, last, value)


_MADE: dict[str, Any] = {
    "array": lambda parts: parts["0"],
    "list": lambda parts: list(parts.values()),
    "dict": lambda parts: parts,
    "record": lambda parts: ArrayRecord({name: Array(value) for name, value in parts.items()}),
}


_DAMAGED = "the checkpoint is damaged or of another strategy: delete it"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _attributes(strategy: Strategy) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            found |= {f"{name}{BETWEEN}{inner}": v for inner, v in _attributes(value).items()}
        else:
            found[name] = value
    return found


def _arrays(value: Any) -> tuple[str, dict[str, Any]] | None:
    """The kind of a value that holds arrays, and its arrays by name; None if it holds none."""
    if isinstance(value, ArrayRecord):
        kind, parts = "record", {name: array.numpy() for name, array in value.items()}
    elif isinstance(value, dict):
        kind, parts = "dict", value
    elif isinstance(value, list):
        kind, parts = "list", {str(i): part for i, part in enumerate(value)}
    else:
        kind, parts = "array", {"0": value}
    numeric = all(
        isinstance(k, str) and isinstance(part, np.ndarray | np.generic) and part.dtype.kind in "biuf"
        for k, part in parts.items()
    )
    return (kind, parts) if parts and numeric else None
