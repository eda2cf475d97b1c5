"""Shamir's secret sharing: a secret is split so that any `threshold` shares give it back, and fewer tell nothing of it.

The secret is a polynomial's value at 0; node i of the group, counted from 1, gets its value at i. The field is that of the
integers modulo a prime: Python's integers do a group of 63 in a millisecond, where the library that Flower uses
(pycryptodome, in the field of 2¹²⁸ elements) takes half a second.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from functools import lru_cache

from fedcal.secure.messages import DoesNotAddUp

PRIME = 2**256 + 297  # the smallest one above all secrets of 32 bytes
SECRET, SHARE = 32, 33  # bytes
FEWEST_NODES = 3  # of two nodes, each could subtract itself from the total


def threshold(nodes: int) -> int:
    """Return how many of a group's nodes must be left at the end: more than two thirds.

    An honest node reveals shares once, if `threshold` nodes were told the same about who is left. For shares by two different
    lists from n nodes, of which c say whatever the server likes, it needs n + c ≥ 2 · threshold: more than a third of them.
    """
    return 2 * nodes // 3 + 1


def split(secret: bytes, least: int, count: int) -> list[bytes]:
    """Return the shares of nodes 1, 2, …, of which `least` are needed.

    Args:
        secret: of 32 bytes.
        least: how many shares give it back.
        count: how many shares to make.
    """
    polynomial = [secrets.randbelow(PRIME) for _ in range(least - 1)] + [int.from_bytes(secret)]
    found = []
    for x in range(1, count + 1):
        value = 0
        for coefficient in polynomial:
            value = value * x + coefficient  # grows by a few bits: one remainder at the end is faster
        found.append((value % PRIME).to_bytes(SHARE))
    return found


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of shares by node; something else if they are too few, or some are not right.

    Raises:
        DoesNotAddUp: where they are no shares of one secret.
    """
    weights = _weights(tuple(shares))
    value = sum(w * int.from_bytes(share) for w, share in zip(weights, shares.values(), strict=True)) % PRIME
    if value >= 2 ** (8 * SECRET):
        raise DoesNotAddUp("the shares do not belong together")
    return value.to_bytes(SECRET)


@lru_cache(maxsize=64)
def _weights(places: tuple[int, ...]) -> list[int]:
    """Lagrange's weights: what each share counts in the polynomial's value at 0."""
    found = []
    for x in places:
        above = below = 1
        for other in places:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found
