"""JSON and tensors as bytes, with a digest: what is read was written by fedcal, and not one bit of it has changed since.

Whatever comes in is from a stranger, or from a damaged disk. Sizes are looked at before data, and anything odd (numbers that
are not finite or too long, nesting without end, a name given twice) is a FedCalError. A digest finds accidents, not
attacks: whoever changes a file on purpose can write a new one. Readers therefore check what they read (schema.py) as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from fedcal.base.arrays import Params, as_array
from fedcal.base.schema import Anything, Exactly, ListOf, MapOf, Number, Record, Text, Tuple, check
from fedcal.errors import FedCalError, reason_of

DEEPEST = 32  # levels of JSON: ours have about ten
MOST_DIGITS = 20  # of a whole number: 64 bits
MOST_HEADER = 64 << 20  # bytes of a file's header
KINDS = ("BOOL", "U8", "I8", "I16", "I32", "I64", "F16", "F32", "F64")
BLANK = "0" * 32  # stands for the digest while it is computed
_SEAL = re.compile(rb'\{"__metadata__":\{"fedcal":"\{\\"digest\\": \\"([0-9a-f]{32})\\"')  # how every header begins
_LENGTH = Number(0, 2**40, whole=True)
_TENSOR = Record({"dtype": Exactly(KINDS), "shape": ListOf(_LENGTH), "data_offsets": Tuple((_LENGTH, _LENGTH))})
_OUTER = MapOf(_TENSOR, any=True)
_INNER = Record({"digest": Text(32), "about": MapOf(Anything()), "order": ListOf(Text(any=True))})


# --- JSON ------------------------------------------------------------------------------------------------------------


def parse_json(data: bytes | str, what: str) -> Any:
    """Read JSON that a stranger wrote.

    Args:
        data: the text.
        what: how to call it in an error.

    Raises:
        FedCalError: where it is no JSON, or has numbers, names or depths that nothing of fedcal's has.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        found = json.loads(
            text, parse_int=_whole, parse_float=_finite, parse_constant=_finite, object_pairs_hook=_distinct
        )
        _check_depth(found)
        return found
    except RecursionError:
        raise FedCalError(f"{what} cannot be read as JSON (it is nested without end)") from None
    except ValueError as error:
        raise FedCalError(f"{what} cannot be read as JSON ({reason_of(error)})") from None


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content with its digest, for a file."""
    return {**content, "digest": _digest_of(json.loads(json.dumps(content)))}  # as it will be read


def unseal(content: Any, what: str) -> dict[str, Any]:
    """Return what `seal` was given.

    Raises:
        FedCalError: where it is not an object, has no digest, or has been changed.
    """
    if not isinstance(content, dict):
        raise FedCalError(f"{what} should hold a JSON object, not {type(content).__name__}")
    bare = {key: value for key, value in content.items() if key != "digest"}
    if content.get("digest") != _digest_of(bare):
        raise FedCalError(f"{what} is damaged, or was changed by hand: its digest is another one")
    return bare


def _digest_of(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def _whole(text: str) -> int:
    if len(text) > MOST_DIGITS + 1:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text[:20]} is not finite")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            part
            for whole in level
            if isinstance(whole, dict | list)
            for part in (whole.values() if isinstance(whole, dict) else whole)
        ]
        if not level:
            return
    raise ValueError(f"it is nested deeper than {DEEPEST} levels")


# --- arrays ---------------------------------------------------------------------------------------------------------


def pack(tensors: Mapping[str, Any], about: dict[str, Any]) -> bytes:
    """Return arrays, or tensors, and JSON values as safetensors bytes: the same for the same content.

    One entry of the header holds everything, the order of the tensors too: safetensors keeps no order of its own.
    """
    content, order = json.dumps(about, sort_keys=True), json.dumps(list(tensors))
    header = f'{{"digest": "{BLANK}", "about": {content}, "order": {order}}}'
    apart = {name: np.array(as_array(value), order="C") for name, value in tensors.items()}
    data = save(apart, metadata={"fedcal": header})
    found = _SEAL.match(data, 8)
    assert found is not None  # safetensors puts its metadata first
    at, end = found.span(1)
    return b"".join((data[:at], _digest(data, at, end).encode(), data[end:]))


def unpack(data: Any, most_header: int = MOST_HEADER) -> tuple[Params, dict[str, Any]]:
    """Return what `pack` was given.

    Args:
        data: the bytes.
        most_header: bytes that the header may have.

    Raises:
        FedCalError: where the bytes are not what `pack` gave: cut short, changed, or of another program.
    """
    if not isinstance(data, bytes) or len(data) < 8:
        raise FedCalError("it is cut short")
    end = 8 + int.from_bytes(data[:8], "little")
    if end > min(len(data), 8 + most_header):
        raise FedCalError("its header is cut short, or too large")
    sealed = _SEAL.match(data, 8, end)
    if sealed is None:
        raise FedCalError("it has no digest: it was not written by this version of fedcal")
    if _digest(data, *sealed.span(1)).encode() != sealed[1]:
        raise FedCalError("its digest is another one: bytes have changed since it was written")
    outer = parse_json(data[8:end].rstrip(b" "), "its header")
    inner = parse_json(_text(outer), "its header")
    check(inner, _INNER, "its header")
    check({name: of for name, of in outer.items() if name != "__metadata__"}, _OUTER, "its header")
    try:
        tensors = load(data)
        found = {name: tensors.pop(name) for name in inner["order"]}
    except Exception as error:  # whatever odd bytes make a reader raise: assertions, MemoryError, its own errors
        raise FedCalError(f"its tensors cannot be read ({reason_of(error)})") from None
    if tensors:
        raise FedCalError("a tensor of it has no place")
    return found, inner["about"]


def check_finite(tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that hold NaN or infinity.

    Raises:
        FedCalError: which names the first one.
    """
    for name, value in tensors.items():
        array = as_array(value)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise FedCalError(f"{name!r} holds NaN or infinity")


def _digest(data: bytes, at: int, end: int) -> str:
    """Of all bytes, with zeros where the digest itself stands."""
    view, found = memoryview(data), hashlib.blake2b(digest_size=16)
    for part in (view[:at], BLANK.encode(), view[end:]):
        found.update(part)
    return found.hexdigest()


def _text(outer: Any) -> str:
    text = outer.get("__metadata__", {}) if isinstance(outer, dict) else {}
    text = text.get("fedcal") if isinstance(text, dict) else None
    if not isinstance(text, str):
        raise FedCalError("it was not written by fedcal")
    return text
