"""Fixed-point numbers of 128 bits that add exactly, modulo 2¹²⁸: what masks can hide and sums can keep.

A number v becomes the integer v / 2^e, rounded. A vector of them is an array (2, m) of 64-bit words: the low words, then the
high ones. A node's integers are below 2¹²¹. So 63 nodes stay below 2¹²⁷, where a signed 128-bit integer ends, and 64 could
reach it: that is MOST_NODES.

At e = −64 a node's numbers may reach 2⁵⁷ ≈ 1.4e17, and each is rounded by at most 2⁻⁶⁵ ≈ 2.7e-20. Doubles of at least 2⁻¹²
are not rounded at all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # (2, m)

BITS = 121  # of a node's integers, without the sign
MOST_NODES = 2 ** (127 - BITS) - 1
WORD = 2.0**64


def fits(values: NDArray[np.float64], exponent: int) -> bool:
    """Return whether the values can be encoded in units of 2^exponent."""
    return bool((np.abs(values) < np.ldexp(1.0, BITS + exponent) - np.ldexp(1.0, exponent)).all())


def encode(values: NDArray[np.float64], exponent: int) -> Words:
    """Return the values in units of 2^exponent; they must fit."""
    size = np.rint(np.abs(np.ldexp(values, -exponent)))
    high = np.floor(size / WORD)
    words = np.stack([size - high * WORD, high]).astype(np.uint64)  # exact: both are parts of a double's 53 bits
    return np.where(values < 0, negate(words), words)


def decode(words: Words, exponent: int) -> NDArray[np.float64]:
    """Return the numbers, each rounded to the nearest doubles or so; exact where a double holds them."""
    negative = words[1] >> np.uint64(63) == 1
    size = np.where(negative, negate(words), words).astype(np.float64)
    return np.ldexp(np.where(negative, -1.0, 1.0) * (size[1] * WORD + size[0]), exponent)


def add(a: Words, b: Words) -> Words:
    """Return the sum modulo 2¹²⁸."""
    low = a[0] + b[0]
    return np.stack([low, a[1] + b[1] + (low < a[0])])


def negate(a: Words) -> Words:
    """Return −a modulo 2¹²⁸."""
    low = ~a[0] + np.uint64(1)
    return np.stack([low, ~a[1] + (low == 0)])
