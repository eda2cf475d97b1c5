"""Queries: what a server asks of every client, as typed values that any transport can carry."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from fedcal.base.arrays import Array

Leaf = Array | str | int | float | bool


@dataclass(frozen=True)
class Query:
    """What the server wants to know. Fields are arrays, numbers, strings, and tuples, dicts or dataclasses of them."""


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Leaf]]:
    """Iterate over all arrays, numbers and strings of a query, each under the path that leads to it."""
    if is_dataclass(value):
        yield f"{name}:", type(value).__name__
        parts = [(entry.name, getattr(value, entry.name)) for entry in fields(value)]
    elif isinstance(value, dict):
        parts = list(value.items())
    elif isinstance(value, tuple):
        parts = list(enumerate(value))
    else:
        yield name, value
        return
    for key, part in parts:
        yield from leaves(part, f"{name}/{key}")


def parts(value: Any) -> Iterator[Any]:
    """Iterate over every dataclass within a query, itself included."""
    if is_dataclass(value):
        yield value
        value = [getattr(value, entry.name) for entry in fields(value)]
    if isinstance(value, dict):
        value = list(value.values())
    for part in value if isinstance(value, list | tuple) else ():
        yield from parts(part)


def magnitude(leaf: Leaf) -> float:
    """Return the largest absolute value of an array or a floating-point number; 0 of anything else."""
    if isinstance(leaf, np.ndarray | np.generic):
        return float(np.abs(leaf).max()) if leaf.size else 0.0
    return abs(leaf) if isinstance(leaf, float) else 0.0


def fingerprint(query: Any) -> str:
    """Return a digest of a query's type and of all its values; also of a tuple or dict of arrays and numbers.

    Names come from strangers. They are quoted, so that no name can hold what an array would add to the digest.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, leaf in leaves(query):
        if isinstance(leaf, np.ndarray):
            digest.update(f"{name!r} {leaf.dtype} {tuple(leaf.shape)} ".encode())
            digest.update(leaf.tobytes())
        else:
            digest.update(f"{name!r} {leaf!r} ".encode())
    return digest.hexdigest()


def contiguous(value: Any) -> Any:
    """Copy a query with fresh, contiguous arrays, as a file gives them back: all transports then agree bit for bit."""
    if isinstance(value, np.ndarray | np.generic):  # a sum over all axes is a number of NumPy's: here, an array
        return np.array(value, order="C")
    if isinstance(value, dict):
        return {key: contiguous(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(contiguous(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{entry.name: contiguous(getattr(value, entry.name)) for entry in fields(value)})
    return value
