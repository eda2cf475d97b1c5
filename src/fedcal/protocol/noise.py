"""Discrete Gaussian noise from the operating system's cryptographic generator, exact on the integers.

The sampler is that of Canonne, Kamath and Steinke (2020, Algorithms 1 to 3), on whole arrays. Each coin with probability
exp(−γ) compares 64 random bits with exp(−γ) in float64. Where the two agree to 40 bits, 192 more bits and a decimal
exponential of 80 digits decide, so that the distribution is right to 2⁻²⁰⁰ or better: there is no rounding to attack
(Mironov 2012), and no seed to search.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from os import urandom
from typing import Any

import numpy as np
from numpy.typing import NDArray

Exponent = Callable[[int], Fraction]  # the exact exponent of one of several coins
Integers = NDArray[np.int64]

CLOSE = 2.0**-40  # a comparison of 64 random bits with a float64 is certain beyond this
DIGITS = Context(prec=80)


def discrete_gaussian(variance: int, size: int) -> Integers:
    """Draw integers x with probability proportional to exp(−x² / (2 variance)).

    Args:
        variance: a whole number, at least 0.
        size: how many.
    """
    found = np.zeros(size, np.int64)
    if variance == 0:
        return found
    scale = math.isqrt(variance) + 1
    missing = np.arange(size)
    while len(missing):
        drawn = _discrete_laplace(scale, len(missing))
        off = np.abs(drawn).astype(float) - variance / scale

        def exact(i: int, drawn: Integers = drawn) -> Fraction:
            return Fraction((abs(int(drawn[i])) * scale - variance) ** 2, 2 * variance * scale**2)

        kept = _coins(off * off / (2 * variance), exact)
        found[missing[kept]] = drawn[kept]
        missing = missing[~kept]
    return found


def _discrete_laplace(scale: int, size: int) -> Integers:
    """Integers x with probability proportional to exp(−|x| / scale)."""
    found = np.zeros(size, np.int64)
    missing = np.arange(size)
    while len(missing):
        rest = _below(scale, len(missing))
        kept = _coins(rest / scale, lambda i, rest=rest: Fraction(int(rest[i]), scale))
        size_of = rest + scale * _geometric(len(missing))
        negative = np.frombuffer(urandom(len(missing)), np.uint8) < 128
        kept &= ~(negative & (size_of == 0))  # zero has one sign
        found[missing[kept]] = np.where(negative, -size_of, size_of)[kept]
        missing = missing[~kept]
    return found


def _geometric(size: int) -> Integers:
    """How many coins of probability 1/e come up in a row."""
    found = np.zeros(size, np.int64)
    going = np.arange(size)
    while len(going):
        going = going[_coins(np.ones(len(going)), lambda i: Fraction(1))]
        found[going] += 1
    return found


def _below(limit: int, size: int) -> Integers:
    """Uniform integers from 0 to limit − 1."""
    found = np.zeros(size, np.int64)
    missing = np.arange(size)
    fair = (2**63 // limit) * limit  # beyond it, remainders would not be equally likely
    while len(missing):
        bits = np.frombuffer(urandom(8 * len(missing)), np.uint64) >> np.uint64(1)
        kept = bits < fair
        found[missing[kept]] = (bits[kept] % np.uint64(limit)).astype(np.int64)
        missing = missing[~kept]
    return found


def _coins(exponents: NDArray[Any], exact: Exponent) -> NDArray[np.bool_]:
    """Coins that come up with probability exp(−exponent)."""
    bits = np.frombuffer(urandom(8 * len(exponents)), np.uint64)
    chance, uniform = np.exp(-exponents), bits * 2.0**-64
    up = uniform < chance
    for i in np.flatnonzero(np.abs(uniform - chance) < CLOSE):
        up[i] = _close_call(int(bits[i]), exact(int(i)))
    return up


def _close_call(bits: int, exponent: Fraction) -> bool:
    """Whether a uniform number that begins with these 64 bits is below exp(−exponent)."""
    longer = (bits << 192) | int.from_bytes(urandom(24), "big")
    power = DIGITS.exp(DIGITS.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))
    return DIGITS.divide(Decimal(longer), Decimal(2**256)) < power
