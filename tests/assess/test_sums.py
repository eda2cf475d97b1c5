"""Sums of scores: they add over any split, travel, refuse what no samples give, and stand for the samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, log_softmax

from fedcal import FedCalError
from fedcal.assess.score_bins import LIMIT, grid, log_odds, n_bins
from fedcal.assess.sums import CURVE, ScoreSums, all_thresholds
from fedcal.base.arrays import softmax
from fedcal.base.checks import as_logits
from scores import classes, draw, sums


def close(a, b):
    assert a.n == b.n and np.array_equal(a.above, b.above) and a.bins == b.bins
    assert np.array_equal(a.moments[..., 0], b.moments[..., 0])
    np.testing.assert_allclose(a.moments, b.moments, atol=1e-9)
    np.testing.assert_allclose(a.samples, b.samples, rtol=1e-12)


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=4), k=st.sampled_from([2, 3]))
def test_any_split_adds_up_to_the_whole(cuts, k):
    z, y = classes(300, k)
    edges = [0, *sorted(cuts), 300]
    parts = [sums(z[i:j], y[i:j]) for i, j in itertools.pairwise(edges)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    close(total, sums(z, y))


def test_points_stand_for_the_samples():
    x, y = draw(50_000)
    points = sums(x, y).points(0)
    assert points.w.sum() == len(x) and points.w @ points.y == y.sum()
    for function in (lambda x: x, np.square, expit, lambda x: np.logaddexp(0, 0.7 * x)):
        assert points.w @ function(points.x) == pytest.approx(function(x).sum(), rel=1e-10)
    few = sums(x[:50], y[:50]).points(0)  # alone in their bins: the samples themselves
    np.testing.assert_allclose(np.sort(np.repeat(few.x, few.w.astype(int))), np.sort(x[:50]), atol=1e-5)


def test_means_are_those_of_the_samples():
    z, y = classes(500, 4)
    found = sums(z, y).samples
    log_p = log_softmax(z, axis=1)
    nll, brier = -log_p[np.arange(500), y], ((np.exp(log_p) - np.eye(4)[y]) ** 2).sum(1)
    expected = [500, (z.argmax(1) == y).sum(), *((v**i).sum() for v in (nll, brier) for i in (1, 2, 3))]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_counts_above_thresholds_are_exact():
    p = np.array([0.1, 0.5, 0.5, 0.9, 0.2])
    y = np.array([0, 1, 0, 1, 1])
    found = ScoreSums.of(torch.from_numpy(np.log(np.stack([1 - p, p], axis=1))), torch.from_numpy(y))
    for i, t in enumerate(CURVE):
        if abs(t - p).min() > 1e-9:
            assert found.above[0, :, i].tolist() == [((p >= t) & (y == 0)).sum(), ((p >= t) & (y == 1)).sum()]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_rounded_probabilities_reach_the_thresholds_they_equal(kind):
    p = np.repeat(np.arange(1, 100) / 100, 2)
    y = np.tile([0, 1], 99)
    found = ScoreSums.of(as_logits(p.astype(kind), True), y)
    for i, t in enumerate(CURVE[:97]):
        assert found.above[0, :, i].tolist() == [99 - i] * 2, f"at {t}"
    k3 = np.array([[0.35, 0.43, 0.22], [0.8, 0.1, 0.1], [0.2, 0.37, 0.43]], kind)
    several = ScoreSums.of(as_logits(k3, True), np.array([0, 1, 2]), first=0.43)
    at = {t: several.above[:, :, i].sum(1).tolist() for i, t in enumerate(CURVE)}
    assert (at[0.35], at[0.37], at[0.43], at[0.8]) == ([2, 2, 1, 3], [1, 2, 1, 3], [1, 1, 1, 3], [1, 0, 0, 1])
    ScoreSums.from_arrays(several.to_arrays(), 3, first=0.43)  # the matrix says the same


def test_log_odds_keep_their_digits():
    z = np.array([[0.0, 50.0, -20.0], [1.0, 2.0, 3.0], [1e3, 0.0, 0.0]])
    odds = log_odds(z)
    assert float(odds[0, 1]) == pytest.approx(50 - np.log1p(np.exp(-20.0)), rel=1e-14)
    p = softmax(z[1], 0)
    np.testing.assert_allclose(odds[1], np.log(p / (1 - p)), rtol=1e-12)
    assert sums(z, [0, 0, 0]).points(0).x.max() == pytest.approx(LIMIT, abs=0.1)


def test_bins_of_many_classes_are_few():
    assert len(grid(2).middle) == len(grid(10).middle) == 4096 and len(grid(1000).middle) == 128
    assert n_bins(10**6) == 128
    for k in (2, 100):
        x = np.linspace(-LIMIT, LIMIT, 10_001)
        at = grid(k).find(x)
        inside = (grid(k).edges[at] <= x + 1e-9) & (x - 1e-9 <= grid(k).edges[at + 1])
        assert inside.all()


def test_over_the_wire_and_back():
    for k in (2, 3):
        whole = sums(*classes(200, k))
        sent = whole.to_arrays()
        back = ScoreSums.from_arrays(sent, k)
        assert np.array_equal(back.moments, whole.moments) and np.array_equal(back.samples, whole.samples)
        assert back.bins == whole.bins and np.array_equal(back.above, whole.above)
        assert sum(value.nbytes for value in sent.values()) < 60_000 * k
        with pytest.raises(FedCalError, match=r"shape|beyond|missing"):
            ScoreSums.from_arrays(sent, 5)


@pytest.mark.parametrize("name", ["samples", "cells", "moments", "above", "bins"])
def test_sums_that_no_samples_give_are_refused(name):
    good = sums(*classes(200, 2)).to_arrays()
    changes = (
        lambda v: v + (100_000 if name == "cells" else 1),
        lambda v: -v - 1,
        lambda v: v[:0],
        lambda v: v.astype(np.float32),
    )
    for change in changes:
        with pytest.raises(FedCalError, match="not the sums of an evaluation"):
            ScoreSums.from_arrays(good | {name: change(good[name])}, 2)
    with pytest.raises(FedCalError, match="missing"):
        ScoreSums.from_arrays({key: value for key, value in good.items() if key != name}, 2)


def test_sums_that_contradict_each_other_are_refused():
    for k in (2, 3):
        good = sums(*classes(200, k)).to_arrays()
        other = sums(*classes(200, k, seed=1)).to_arrays()
        for name in ("above", "bins", "moments"):  # of other samples, as many
            changed = good | ({"cells": other["cells"]} if name == "moments" else {}) | {name: other[name]}
            with pytest.raises(FedCalError, match="contradict"):
                ScoreSums.from_arrays(changed, k)
        for at, value in {1: 201, 2: 1e30, 3: 1e-3, 4: 0.0, 5: 1e9, 7: 1e300}.items():
            changed = good["samples"].copy()
            changed[at] = value
            with pytest.raises(FedCalError, match="not the sums of an evaluation"):
                ScoreSums.from_arrays(good | {"samples": changed}, k)


def test_other_classes_do_not_add_and_odd_logits_are_refused():
    with pytest.raises(FedCalError, match="do not add"):
        _ = sums(*classes(9, 2)) + sums(*classes(9, 3))
    with pytest.raises(FedCalError, match="not finite"):
        sums(np.array([0.0, np.nan]), [0, 1])


@pytest.mark.parametrize("wrong", [[0.0], [1.0], [1.5], [-0.1], [np.nan], [], ["a"], [[0.1, 0.2]]])
def test_thresholds_outside_are_refused(wrong):
    with pytest.raises(FedCalError, match="threshold"):
        all_thresholds(wrong)
