"""What one aggregation's four stages send: JSON values, and for the masked vector bytes. All of it comes from strangers."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from fedcal.errors import FedCalError

Stage = Literal["keys", "shares", "mask", "unmask"]
Part = dict[str, Any]  # a request of one stage to one node, or the reply to it
# By node: its public keys as hex, to seal for it and to mask with it; then, if nodes have identities, whose they are, signed.
Directory = dict[str, list[str]]


class DoesNotAddUp(FedCalError):
    """Some node did not follow the protocol, and the total is lost: the aggregation begins again."""


def text_of(values: Any, length: int) -> str:
    """Return hex digits that are as many bytes as they should be.

    Raises:
        FedCalError: where they are not.
    """
    try:
        if len(bytes.fromhex(values)) == length:
            return values.lower()
    except (TypeError, ValueError):
        pass
    raise FedCalError(f"the message cannot be read: {length} bytes were expected")


def table_of(values: Any, length: int, what: str) -> dict[str, str]:
    """Return hex digits by node.

    Raises:
        FedCalError: where they are something else.
    """
    if not isinstance(values, dict) or not all(type(node) is str for node in values):
        raise FedCalError(f"the message cannot be read: it holds no {what} by node")
    return {node: text_of(text, length) for node, text in values.items()}


def entry_of(values: Any) -> list[str]:
    """Return a node's entry in the directory.

    Raises:
        FedCalError: where it is something else.
    """
    if not isinstance(values, list) or len(values) not in (2, 4) or not all(type(text) is str for text in values):
        raise FedCalError("the message cannot be read: a node has two public keys")
    return [text_of(key, 32) for key in values[:2]] + values[2:]


def digest(session: str, directory: Directory) -> bytes:
    """Return a fingerprint of who is in an aggregation, with which keys: what is sealed is bound to it."""
    return hashlib.sha256(json.dumps([session, directory], sort_keys=True).encode()).digest()
