"""No member of the null gives an alternative a mean likelihood ratio above 1; sums add; sums of strangers are bounded."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import bernoulli

from fedcal.monitor.alternatives import (
    BEYOND,
    N_TOP,
    calibration_prior,
    calibration_ratios,
    calibration_sums,
    check_sums,
    class_counts,
    log_odds,
    n_alternatives,
    share_bounds,
    share_prior,
    share_ratios,
)

ODDS = st.floats(-12, 12).map(lambda value: round(value, 6))  # of near-ties, rounding decides which class is bet on


def samples(n: int, k: int, seed: int = 0, scale: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(scale * rng.normal(size=(n, k))), torch.from_numpy(rng.integers(k, size=n))


@example([0.0, 1e-16, 0.0], 0.25, -1.0, 1)
@example([11.0, -7.0], 0.0, 0.0, 0)
@example([12.0, -12.0], 0.0, 0.0, 0)
@example([0.0, 1e-16, 0.0], 0.25, 1.0, 1)
@given(st.lists(ODDS, min_size=2, max_size=5), st.floats(0, 2), st.floats(-1, 1), st.integers(0, 4))
@settings(max_examples=200, deadline=None)
def test_the_mean_likelihood_ratio_is_at_most_1_within_the_tolerance(logits, tolerance, where, event):
    """Each alternative is about one event: its true log-odds may lie anywhere within ±tolerance of those predicted."""
    k = len(logits)
    u = torch.tensor([logits], dtype=torch.float64)
    every = torch.stack([calibration_ratios(u, torch.tensor([y]), tolerance)[0] for y in range(k)])  # (labels, A)
    event %= k
    n = n_alternatives(k) - N_TOP
    columns = torch.arange(n) % (n // (2 * len(BEYOND)))
    of_class = (columns == event) if k > 2 else torch.ones(n, dtype=torch.bool)
    for which, subject in (
        (of_class, event if k > 2 else 1),
        (None, int(log_odds(u.log_softmax(1)).argmax())),
    ):  # of near-ties, the one that is bet on
        rest = torch.cat([u[0, :subject], u[0, subject + 1 :]]).logsumexp(0)  # 1 - p would lose digits
        odds = u[0, subject] - rest + where * tolerance
        true, false = odds.sigmoid(), (-odds).sigmoid()
        other = (subject + 1) % k  # all that is not the event counts alike
        ratios = every[:, :n][:, which] if which is not None else every[:, n:]
        mean = true * ratios[subject].exp() + false * ratios[other].exp()
        assert float(mean.max()) <= 1 + 1e-7  # rounding of exponentials


def test_ratios_are_those_of_bernoulli_distributions():
    u, y = samples(40, 4)
    ratios = calibration_ratios(u, y, 0.3).view(40, -1)
    p = u.softmax(1).numpy()
    for j, shift in enumerate((*BEYOND, *(-b for b in BEYOND))):
        edge = np.log(p / (1 - p)) + math.copysign(0.3, shift)
        null, other = 1 / (1 + np.exp(-edge)), 1 / (1 + np.exp(-edge - shift))
        event = np.eye(4)[y]
        expected = bernoulli.logpmf(event, other) - bernoulli.logpmf(event, null)
        np.testing.assert_allclose(ratios[:, 4 * j : 4 * j + 4], expected, atol=1e-9)


@pytest.mark.parametrize("k", [2, 3, 1000])
def test_sums_add_over_any_split(k):
    u, y = samples(150, k)
    whole = calibration_sums(u, y, 0.25)
    assert whole.shape == (n_alternatives(k),) == calibration_prior(k).shape
    assert torch.allclose(whole, calibration_sums(u[:7], y[:7], 0.25) + calibration_sums(u[7:], y[7:], 0.25))
    assert torch.allclose(whole, calibration_ratios(u, y, 0.25).sum(0))
    assert float(calibration_sums(u[:0], y[:0], 0.25).abs().sum()) == 0
    assert check_sums(whole, class_counts(y, k), k)
    for prior in (calibration_prior(k), share_prior(k)):
        assert float(prior.exp().sum()) == pytest.approx(1)


def test_certain_predictions_give_bounded_evidence():
    """A probability of 1 in all its digits, and the label is another one: evidence, but finite."""
    u = torch.tensor([[800.0, 0.0, -800.0]] * 3, dtype=torch.float64)
    wrong, right = torch.tensor([2, 2, 1]), torch.tensor([0, 0, 0])
    for y in (wrong, right):
        sums = calibration_sums(u, y, 0.25)
        assert bool(sums.isfinite().all()) and check_sums(sums, class_counts(y, 3), 3)
    assert float(calibration_sums(u, wrong, 0.25).max()) > 1


def test_impossible_sums_are_found():
    u, y = samples(50, 3)
    sums, counts = calibration_sums(u, y, 0.25), class_counts(y, 3)
    for at in range(len(sums)):
        for value in (-1e3, 1e3):
            other = sums.clone()
            other[at] = value
            assert not check_sums(other, counts, 3)


@given(st.floats(0.001, 0.999), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1))
@settings(max_examples=200, deadline=None)
def test_shares_within_their_bounds_have_a_mean_of_at_most_1(share, one, other, chance, where):
    """Of any x within 0 and 1 (here: of two values) whose mean lies within the bounds."""
    assumed = torch.tensor([1 - share, share], dtype=torch.float64)
    low, high = share_bounds(assumed, 0.25)
    mean = chance * one + (1 - chance) * other
    target = float(low[1] + (where + 1) / 2 * (high[1] - low[1]))
    scale = min(1.0, target / mean) if mean > 0 else 1.0  # shrink x until its mean is at most the target
    ratios = torch.stack(
        [
            share_ratios(torch.tensor([1 - x, x], dtype=torch.float64), 1, low, high)
            for x in (one * scale, other * scale)
        ]
    ).exp()
    found = chance * ratios[0] + (1 - chance) * ratios[1]
    up = found[: len(BEYOND)]
    assert float(up.max()) <= 1 + 1e-9
    if mean * scale >= float(low[1]):
        assert float(found.max()) <= 1 + 1e-9


@pytest.mark.parametrize("n", [20, 500])
def test_bounds_of_observed_shares_cover(n):
    """At a level of 10 % (all classes, both sides), fewer than 10 % of samples give bounds that miss the true shares."""
    truth = torch.tensor([0.6, 0.3, 0.08, 0.02], dtype=torch.float64)
    rng = np.random.default_rng(1)
    missed = 0
    for counts in rng.multinomial(n, truth.numpy(), size=200):
        low, high = share_bounds(torch.from_numpy(counts / n), 0.0, n, 0.1)
        missed += bool(((truth < low) | (truth > high)).any())
    assert missed <= 20
    low, high = share_bounds(truth, 0.0, 10**9, 0.1)
    assert torch.allclose(low, truth, atol=1e-3) and torch.allclose(high, truth, atol=1e-3)
    assert bool((low <= truth).all()) and bool((high >= truth).all())


def test_bounds_of_a_class_that_was_never_seen():
    low, high = share_bounds(torch.tensor([1.0, 0.0], dtype=torch.float64), 0.25, 100, 0.01)
    assert float(low[1]) == 0 and 0.03 < float(high[1]) < 0.1 and float(high[0]) == 1
    ratios = share_ratios(torch.tensor([100.0, 0.0], dtype=torch.float64), 100, low, high)
    assert bool(ratios.isfinite().all()) and float(ratios.max()) <= 0
