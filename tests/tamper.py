"""Damage for tests: files of fedcal's with some content changed, and a digest that fits it again."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fedcal.base.codec import BLANK, _digest, seal

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**6,
    2**62,
    10**30,
    "",
    "x",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"x": {}},
    ["a", ["b"]],
]


def reseal(data: bytes) -> bytes:
    """The bytes of a message or a tensor file, with the right digest."""
    at = data.find(b'digest\\": \\"') + len(b'digest\\": \\"')
    if at < 20 or at + 32 > len(data):
        return data
    return data[:at] + _digest(data, at, at + len(BLANK)).encode() + data[at + len(BLANK) :]


def with_header(data: bytes, edit: Callable[[dict[str, Any], dict[str, Any]], Any]) -> bytes:
    """The bytes with the header changed by `edit(outer, inner)`, and the digest put right."""
    size = int.from_bytes(data[:8], "little")
    outer = json.loads(data[8 : 8 + size])
    inner = json.loads(outer["__metadata__"]["fedcal"])
    edit(outer, inner)
    outer["__metadata__"]["fedcal"] = json.dumps(inner)
    text = json.dumps(outer, separators=(",", ":")).encode()
    return reseal(struct.pack("<Q", len(text)) + text + data[8 + size :])


def change_somewhere(value: Any, rng: np.random.Generator) -> Any:
    """JSON with one value, at any depth, replaced by an odd one, left out, or put in twice."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = keys[rng.integers(len(keys))]
        changed: Any = dict(value) if isinstance(value, dict) else list(value)
        if rng.random() < 0.15:
            del changed[key]
        else:
            changed[key] = change_somewhere(value[key], rng)
        return changed
    return ODD[rng.integers(len(ODD))]


def mutate_tensors(data: bytes, rng: np.random.Generator) -> bytes:
    """A tensor file or message, damaged: bits flipped, cut short, its header or its numbers changed with a fitting digest."""
    kind = rng.integers(6)
    if kind == 0:
        return flip(data, rng)
    if kind == 1:
        return data[: rng.integers(len(data))]
    if kind == 2:
        return reseal(flip(data, rng))
    if kind == 3:
        end = 8 + int.from_bytes(data[:8], "little")
        numbers = np.frombuffer(data[end : end + (len(data) - end) // 8 * 8], dtype=np.float64).copy()
        if len(numbers):
            numbers[rng.integers(len(numbers))] = [np.nan, np.inf, -1.0, 0.0, 1e300, -1e10][rng.integers(6)]
        return reseal(data[:end] + numbers.tobytes() + data[end + numbers.nbytes :])
    if kind == 4:
        return with_header(data, lambda _, inner: inner.update(about=change_somewhere(inner["about"], rng)))

    def other_tensors(outer: dict[str, Any], inner: dict[str, Any]) -> None:
        names = [name for name in outer if name != "__metadata__"]
        if names:
            outer[names[rng.integers(len(names))]] = change_somewhere(outer[names[0]], rng)

    return with_header(data, other_tensors)


def mutate_json(data: bytes, rng: np.random.Generator) -> bytes:
    """A JSON file of fedcal's, damaged in the same ways."""
    kind = rng.integers(4)
    if kind == 0:
        return flip(data, rng)
    if kind == 1:
        return data[: rng.integers(len(data))]
    deep = {"a": "[" * 10_000 + "]" * 10_000, "b": "9" * 5_000, "c": "NaN", "d": "1e999"}
    content = json.loads(data)
    content.pop("digest", None)
    changed = change_somewhere(content, rng)
    if kind == 2 and isinstance(changed, dict):
        return json.dumps(seal(changed)).encode()
    return data.replace(b": ", b": " + list(deep.values())[rng.integers(4)].encode() + b", ", 1)


def flip(data: bytes, rng: np.random.Generator) -> bytes:
    """One bit is another."""
    at = int(rng.integers(len(data)))
    return data[:at] + bytes([data[at] ^ (1 << int(rng.integers(8)))]) + data[at + 1 :]
