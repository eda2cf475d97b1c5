"""Fixed-point numbers of two or more 64-bit words that add exactly: what masks can hide and sums can keep.

A number v becomes the integer v · 2⁶⁴, rounded. A vector of m numbers is an array (words, m), the lowest words first, and
adds modulo 2^(64 words). A node's integers are below 2^(64 words − 7). So those of 63 nodes stay below 2^(64 words − 1),
where a signed integer ends, and those of 64 could reach it: that is MOST_NODES.

Every number is rounded by at most 2⁻⁶⁵ ≈ 2.7e-20, and doubles of at least 2⁻¹² not at all. With two words a node's numbers
may reach 2⁵⁷ ≈ 1.4e17; a third word makes that 2¹²¹ ≈ 2.7e36, a fourth one 2¹⁸⁵.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # (words, m)

SPARE = 7  # bits: the sign's, and room for the sum
MOST_NODES = 2 ** (SPARE - 1) - 1
POINT = 64  # bits after the binary point
ROUNDING = 2.0 ** -(POINT + 1)  # of a number, at most


def most(words: int) -> float:
    """Return the bound of a node's numbers."""
    return 2.0 ** (64 * words - SPARE - POINT)


def encode(values: NDArray[np.float64], words: int) -> Words:
    """Return numbers below `most` as integers."""
    size, found = np.rint(np.ldexp(np.abs(values), POINT)), np.empty((words, len(values)), np.uint64)
    for place in reversed(range(words)):
        part = np.floor(np.ldexp(size, -64 * place))
        found[place] = part
        size = size - np.ldexp(part, 64 * place)  # exact: both are parts of a double's 53 bits
    return np.where(values < 0, negate(found), found)


def decode(words: Words) -> NDArray[np.float64]:
    """Return the numbers: exactly where a double can hold them, else rounded."""
    negative = words[-1] >> np.uint64(63) == 1
    size = np.where(negative, negate(words), words).astype(np.float64)
    total = np.zeros(words.shape[1])
    for place in reversed(range(len(words))):
        total += np.ldexp(size[place], 64 * place - POINT)
    return np.where(negative, -total, total)


def add(a: Words, b: Words) -> Words:
    """Return the sum, modulo 2^(64 words)."""
    found, carry = np.empty_like(a), np.zeros(a.shape[1], np.uint64)
    for place in range(len(a)):
        low = a[place] + b[place]
        found[place] = low + carry
        carry = ((low < a[place]) | (found[place] < low)).astype(np.uint64)
    return found


def negate(a: Words) -> Words:
    """Return −a, modulo 2^(64 words)."""
    one = np.zeros_like(a)
    one[0] = 1
    return add(~a, one)
