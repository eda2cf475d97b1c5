"""The matrix of how classes go together: it adds, tells the correlations, and refuses what no samples give."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedcal import FedCalError
from fedcal.assess import joint
from fedcal.assess.joint import n_functions, n_products, square, triangle, values
from fedcal.assess.score_bins import log_odds
from fedcal.assess.sums import ScoreSums
from scores import classes, sums


def by_hand(z, labels, first=0.5):
    """The matrix, one sample after the other."""
    k = z.shape[1]
    at, x = joint.knots(k), log_odds(z)
    p = 1 / (1 + np.exp(-x))
    total = np.zeros((n_functions(k),) * 2)
    for row, label in enumerate(labels):
        found = np.zeros((k, 2, len(at) + 1))
        for j in range(k):
            hats = [np.interp(x[row, j], at, np.eye(len(at))[m]) for m in range(len(at))]
            found[j, int(label == j)] = [*hats, p[row, j] >= first]
        total += np.outer(found, found)
    return total


@pytest.mark.parametrize("k", [3, 13, 33])
def test_it_is_the_sum_of_products_of_every_sample(k):
    z, y = classes(60, k)
    np.testing.assert_allclose(square(sums(z, y).joint, k), by_hand(z, y), atol=1e-10)


def test_any_split_gives_the_same():
    z, y = classes(300, 4)
    parts = [sums(z[i:j], y[i:j]) for i, j in itertools.pairwise([0, 1, 120, 120, 300])]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    np.testing.assert_allclose(total.joint, sums(z, y).joint, atol=1e-10)


def test_of_many_samples_some_are_taken_and_weighted(monkeypatch):
    z, y = classes(5000, 3)
    whole = sums(z, y)
    monkeypatch.setattr(joint, "ROWS", 2000)
    part = sums(z, y)
    assert 0 < np.abs(part.joint - whole.joint).max() / 5000 < 0.03
    assert np.array_equal(part.moments, whole.moments) and ScoreSums.from_arrays(part.to_arrays(), 3).n == 5000
    assert np.array_equal(part.joint, sums(z, y).joint)  # the same rows each time


def test_hats_add_up_to_one_and_are_piecewise_linear():
    at = joint.knots(3)
    x = np.linspace(-40, 40, 4001)
    found = values(x, x >= 0, at)
    np.testing.assert_allclose(found[:, :-1].sum(1), 1)
    np.testing.assert_allclose(found[:, :-1] @ at, np.clip(x, at[0], at[-1]))
    assert np.array_equal(found[:, -1], x >= 0)


def test_two_classes_and_very_many_have_none():
    assert n_products(2) == n_products(101) == 0 and len(sums(*classes(50, 2)).joint) == 0
    assert "joint" not in sums(*classes(50, 2)).to_arrays() and "joint" not in sums(*classes(50, 101)).to_arrays()
    assert n_products(100) * 8 < 2.6e6


def hostile():
    """Matrices that no samples give, by what is wrong with them."""
    z, y = classes(200, 3)
    good = square(sums(z, y).joint, 3)
    width = good.shape[0] // 3
    hats = width // 2 - 1
    yield "another length", triangle(good)[:-1]
    yield "not finite", np.where(np.arange(len(triangle(good))) == 5, np.nan, triangle(good))
    yield "float32", triangle(good).astype(np.float32)
    yield "twice as many samples", 2 * triangle(good)
    yield "nothing", 0 * triangle(good)
    yield "of other samples", sums(*classes(200, 3, seed=1)).joint
    yield "negative", -triangle(good)
    bent = good.copy()  # sums stay, but it is no longer positive semidefinite
    step = np.zeros(len(good))
    step[[0, 1]] = 1, -1
    yield "not positive semidefinite", triangle(bent - 500 * np.outer(step, step))
    moved = good.copy()  # a sample of two classes
    moved[width // 2, width + width // 2] = moved[width + width // 2, width // 2] = 3
    yield "samples of two classes", triangle(moved)
    more = good.copy()
    more[hats, :] += 1
    more[:, hats] += 1
    yield "other counts at the threshold", triangle(more)


@pytest.mark.parametrize(("name", "wrong"), list(hostile()), ids=[name for name, _ in hostile()])
def test_a_matrix_that_no_samples_give_is_refused(name, wrong):
    good = sums(*classes(200, 3)).to_arrays()
    assert ScoreSums.from_arrays(good, 3).n == 200
    with pytest.raises(FedCalError, match="not the sums of an evaluation") as error:
        ScoreSums.from_arrays(good | {"joint": wrong}, 3)
    assert "\n" not in str(error.value)


def test_sums_of_other_first_thresholds_do_not_add():
    z, y = classes(20, 3)
    with pytest.raises(FedCalError, match="do not add"):
        _ = ScoreSums.of(z, y, first=0.2) + ScoreSums.of(z, y, first=0.3)


def test_what_it_tells_of_a_single_sample_of_a_class():
    """All of its probabilities, as docs/evaluate.md says: products with the sums of its own class are its functions."""
    rng, k = np.random.default_rng(0), 10
    y = np.append(rng.integers(1, k, size=399), 0)
    z = 1.5 * (rng.normal(size=(400, k)) + np.eye(k)[y])
    at = joint.knots(k)
    matrix = square(sums(z, y).joint, k).reshape(k, 2, len(at) + 1, k, 2, len(at) + 1)
    of_it = matrix[0, 1, :-1].sum(0)  # the hats of its class add up to 1
    found = np.concatenate([of_it[:1, 1], of_it[1:, 0]])[:, :-1] @ at
    np.testing.assert_allclose(found, np.clip(log_odds(z)[-1], at[0], at[-1]), atol=1e-9)
