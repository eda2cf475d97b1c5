"""What JSON from a file or a stranger must look like, declared: types, bounds, names. `check` says what is wrong where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedcal.errors import FedCalError


@dataclass(frozen=True)
class Number:
    """A finite number within bounds."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False


@dataclass(frozen=True)
class Text:
    """A string, as long as a name or a sentence; unless `any`, without characters that could steer a terminal."""

    most: int = 10_000
    any: bool = False


@dataclass(frozen=True)
class Truth:
    """True or false."""


@dataclass(frozen=True)
class Exactly:
    """One of these values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Maybe:
    """Null, or what `of` says."""

    of: Shape


@dataclass(frozen=True)
class ListOf:
    """A list; `length` where it is known."""

    of: Shape
    length: int | None = None


@dataclass(frozen=True)
class Tuple:
    """A list with one entry for each of `parts`."""

    parts: tuple[Shape, ...]


@dataclass(frozen=True)
class MapOf:
    """An object with any names; unless `any`, without characters that could steer a terminal."""

    of: Shape
    any: bool = False


@dataclass(frozen=True)
class Record:
    """An object with these names, perhaps with those of `optional`; with any others too, where it is `open`."""

    fields: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)
    open: bool = False


@dataclass(frozen=True)
class Anything:
    """Any JSON: somebody else checks it."""


Shape = Number | Text | Truth | Exactly | Maybe | ListOf | Tuple | MapOf | Record | Anything

COUNT = Number(0, 2**63 - 1, whole=True)
NUMBER = Number()
NAME = Text(1000)


def check(value: Any, shape: Shape, what: str = "it") -> None:
    """Refuse a value that is not as the shape says.

    Args:
        value: from `parse_json`.
        shape: what it must be.
        what: how to call it in an error.

    Raises:
        FedCalError: one line that says where in the value it differs, and how.
    """
    if fault := _fault(value, shape):
        path, words = fault
        raise FedCalError(f"{what}: {path.lstrip('.') or 'the content'} {words}")


def _fault(value: Any, shape: Shape) -> tuple[str, str] | None:
    """Where the value differs, and how; None if it does not."""
    if isinstance(shape, Maybe):
        return None if value is None else _fault(value, shape.of)
    if isinstance(shape, Exactly):
        known = any(type(value) is type(one) and value == one for one in shape.values)
        return None if known else ("", f"should be {' or '.join(map(repr, shape.values))}, not {_shown(value)}")
    if isinstance(shape, Number):
        return _number_fault(value, shape)
    if isinstance(shape, Text):
        if not isinstance(value, str) or len(value) > shape.most:
            return "", f"should be a text of at most {shape.most} characters, not {_shown(value)}"
        return (
            None
            if shape.any or value.isprintable()
            else ("", f"holds characters that cannot be shown: {_shown(value)}")
        )
    if isinstance(shape, Truth):
        return None if isinstance(value, bool) else ("", f"should be true or false, not {_shown(value)}")
    if isinstance(shape, ListOf | Tuple):
        return _list_fault(value, shape)
    if isinstance(shape, MapOf | Record):
        return _object_fault(value, shape)
    return None


def _number_fault(value: Any, shape: Number) -> tuple[str, str] | None:
    kinds = int if shape.whole else int | float
    if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
        return "", f"should be a {'whole ' if shape.whole else ''}number, not {_shown(value)}"
    if not shape.low <= value <= shape.high:
        return "", f"should lie within {shape.low:g} and {shape.high:g}, not {_shown(value)}"
    return None


def _list_fault(value: Any, shape: ListOf | Tuple) -> tuple[str, str] | None:
    if not isinstance(value, list):
        return "", f"should be a list, not {_shown(value)}"
    length = len(shape.parts) if isinstance(shape, Tuple) else shape.length
    if length is not None and len(value) != length:
        return "", f"should have {length} entries, not {len(value)}"
    for number, part in enumerate(value):
        if found := _fault(part, shape.parts[number] if isinstance(shape, Tuple) else shape.of):
            return f"[{number}]{found[0]}", found[1]
    return None


def _object_fault(value: Any, shape: MapOf | Record) -> tuple[str, str] | None:
    if not isinstance(value, dict):
        return "", f"should be an object, not {_shown(value)}"
    if isinstance(shape, MapOf):
        parts = dict.fromkeys(value, shape.of)
        if not shape.any and (odd := [name for name in value if not name.isprintable()]):
            return "", f"has a name that cannot be shown: {_shown(odd[0])}"
    else:
        if missing := [name for name in shape.fields if name not in value]:
            return "", f"has no {missing[0]!r}"
        parts = {**shape.fields, **shape.optional}
        if not shape.open and (odd := [name for name in value if name not in parts]):
            return "", f"should have no {odd[0][:50]!r}"
    for name, part in value.items():
        if name in parts and (found := _fault(part, parts[name])):
            return f".{name}{found[0]}", found[1]
    return None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
