"""Fixed-point numbers against Python's integers and fractions, which are exact."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal.secure.fixed import MOST_NODES, ROUNDING, add, decode, encode, most, negate

quick = settings(max_examples=50, deadline=None)
words_of_a_number = st.integers(2, 4)


def integer(words: np.ndarray) -> int:
    """One number as the signed integer that it stands for."""
    found = sum(int(word) << (64 * place) for place, word in enumerate(words))
    bits = 64 * len(words)
    return found - 2**bits if found >= 2 ** (bits - 1) else found


@quick
@given(st.lists(st.floats(-1e16, 1e16), min_size=1, max_size=MOST_NODES), words_of_a_number)
def test_a_sum_is_exact_but_for_each_numbers_rounding(values, words):
    total = np.zeros((words, 1), np.uint64)
    for value in values:
        total = add(total, encode(np.array([value]), words))
    rounded = sum(round(Fraction(value) * 2**64) for value in values)
    assert integer(total[:, 0]) == rounded
    assert abs(Fraction(rounded, 2**64) - sum(map(Fraction, values))) <= len(values) * Fraction(ROUNDING)
    assert float(decode(total)[0]) == pytest.approx(rounded / 2**64, rel=3e-16, abs=0)


@quick
@given(st.integers(-(2**191) + 1, 2**191 - 1), st.integers(-(2**191) + 1, 2**191 - 1))
def test_arithmetic_is_that_of_integers(a, b):
    def words(value):
        return np.array([[(value >> (64 * place)) % 2**64] for place in range(3)], np.uint64)

    assert integer(add(words(a), words(b))[:, 0]) % 2**192 == (a + b) % 2**192
    assert integer(negate(words(a))[:, 0]) == -a


@quick
@given(st.floats(-1e30, 1e30).filter(lambda v: v == 0 or abs(v) >= 2**-12))
def test_doubles_that_are_not_tiny_come_back_as_they_were(value):
    assert decode(encode(np.array([value]), 3))[0] == value


def test_sums_on_a_grid_are_exact():
    """Noise of distributed privacy lies on a grid: its multiples add up without any rounding."""
    spacing, rng = 2.0**-20, np.random.default_rng(0)
    steps = rng.integers(-(2**30), 2**30, size=(MOST_NODES, 50))
    total = np.zeros((2, 50), np.uint64)
    for one in steps:
        total = add(total, encode(one * spacing, 2))
    assert (decode(total) == steps.sum(0) * spacing).all()


@pytest.mark.parametrize("words", [2, 3, 4])
def test_the_largest_numbers_of_63_nodes_add_and_those_of_64_would_not(words):
    largest = np.nextafter(most(words), 0)
    total = np.zeros((words, 1), np.uint64)
    for nodes in range(1, MOST_NODES + 1):
        total = add(total, encode(np.array([-largest]), words))
        assert decode(total)[0] == pytest.approx(-nodes * largest)
    assert MOST_NODES == 63
    total = np.zeros((words, 1), np.uint64)
    for _ in range(64):
        total = add(total, encode(np.array([most(words)]), words))
    assert decode(total)[0] < 0  # what 64 nodes could reach is read as a negative number
