"""What one aggregation's five stages send: JSON values, and for the masked vector bytes. All of it comes from strangers."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from fedcal.errors import FedCalError
from fedcal.secure import crypto

VERSION = 3  # of the stages, and of how keys are derived: nodes of two versions share no keys

Stage = Literal["keys", "shares", "mask", "agree", "unmask"]
Part = dict[str, Any]  # a request of one stage to one node, or the reply to it
LONGEST = 1000  # characters of a name or a signature: every node's entry is sent to all others
# By node: its public keys as hex, to seal for it and to mask with it; then, if nodes have identities, whose they are, signed.
Directory = dict[str, list[str]]


class DoesNotAddUp(FedCalError):
    """Some node did not follow the protocol, and the total is lost: the aggregation begins again."""


def text_of(values: Any, length: int, what: str) -> str:
    """Return hex digits that are as many bytes as they should be, in the one form that `bytes.hex` gives.

    Raises:
        FedCalError: where they are not.
    """
    try:
        found = bytes.fromhex(values)
        if found.hex() == values and len(found) == length:  # `fromhex` also takes blanks and upper case
            return values
    except (TypeError, ValueError):
        pass
    raise FedCalError(f"the message cannot be read: {length} bytes were expected as lower-case hex digits ({what})")


def table_of(values: Any, length: int, what: str) -> dict[str, str]:
    """Return hex digits by node.

    Raises:
        FedCalError: where they are something else.
    """
    if not isinstance(values, dict) or not all(type(node) is str for node in values):
        raise FedCalError(f"the message cannot be read: it holds no {what} by node")
    return {node: text_of(text, length, f"{what} of node {node}") for node, text in values.items()}


def entry_of(node: str, values: Any) -> list[str]:
    """Return a node's entry in the directory.

    Args:
        node: whose entry it is.
        values: what it sent.

    Raises:
        FedCalError: where it is something else, or its keys cannot be used.
    """
    if (
        not isinstance(values, list)
        or len(values) not in (2, 4)
        or not all(type(text) is str and len(text) <= LONGEST for text in values)
    ):
        raise FedCalError(f"the message cannot be read: a node has two public keys (node {node})")
    keys = [text_of(key, crypto.KEY, f"a public key of node {node}") for key in values[:2]]
    try:
        for key in keys:
            crypto.check_public_key(bytes.fromhex(key))
    except FedCalError as error:
        raise FedCalError(f"the keys of node {node} cannot be used: {error}") from None
    if keys[0] == keys[1]:
        raise FedCalError(f"the keys of node {node} cannot be used: they are the same key twice")
    return keys + values[2:]


def digest(session: str, directory: Directory) -> bytes:
    """Return a fingerprint of who is in an aggregation, with which keys: all keys are bound to it."""
    return hashlib.sha256(json.dumps([session, directory], sort_keys=True).encode()).digest()


def purpose(what: str, about: bytes, one: str, other: str) -> bytes:
    """Return what a key that two nodes share is for: the same for both, and another one for any other two.

    Two public keys can look different and still share the same secrets: adding a point of low order to a key changes nothing
    that X25519 computes from it. Keys that are bound to the two names differ all the same.

    Args:
        what: it is used for.
        about: the `digest` of the aggregation.
        one: of the two nodes.
        other: of the two nodes.
    """
    return json.dumps(["fedcal", VERSION, what, about.hex(), *sorted((one, other))]).encode()
