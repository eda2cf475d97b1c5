"""The interval of the ECE covers, also where the measured value is all noise; paper/studies/ece_interval.py has the grid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from fedcal import FedCalError, Reliability
from fedcal.measure.interval import excess, mean_deviation

EDGES = np.linspace(0, 1, 16)


def flat(rng, n):
    return rng.uniform(0.2, 0.95, n)


def peaked(rng, n):
    return 1 - 10.0 ** -rng.uniform(1.2, 5, n)


@pytest.mark.parametrize(
    ("draw", "n", "gap", "truth"),
    [
        (flat, 200, lambda c: 0 * c, 0.0),
        (flat, 2000, lambda c: 0 * c, 0.0),
        (peaked, 1000, lambda c: 0 * c, 0.0),
        (flat, 1000, lambda c: 0 * c + 0.02, 0.02),
        (flat, 5000, lambda c: 0.1 * np.sign(c - 0.6), 0.1),  # the bin around 0.6 begins there: its gap is of one sign
        (peaked, 200, lambda c: 0 * c + 0.02, 0.02),
        (peaked, 5000, lambda c: 0 * c + 0.2, 0.2),
    ],
)
def test_it_holds_the_true_ece_at_least_as_often_as_it_says(draw, n, gap, truth):
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(300):
        confidence = draw(rng, n)
        bins = Reliability.of_top(confidence, rng.random(n) < confidence - gap(confidence), EDGES)
        low, high = bins.interval()
        assert 0 <= low <= bins.ece() <= high <= 1
        covered += low <= truth <= high
    assert covered >= 0.95 * 300


def test_a_clear_gap_has_the_usual_width():
    """Where all gaps are clear the ECE is a mean of signed errors, whose interval every textbook has."""
    rng = np.random.default_rng(0)
    confidence = flat(rng, 100_000)
    correct = rng.random(100_000) < confidence - 0.15
    low, high = Reliability.of_top(confidence, correct, EDGES).interval()
    usual = 2 * norm.ppf(0.975) * np.std(confidence - correct) / np.sqrt(100_000)
    assert usual < high - low < 1.3 * usual


def test_no_error_seen_is_not_no_error():
    """200 hits at confidence 0.999: the exact binomial interval reaches down to an accuracy of 0.982."""
    low, high = Reliability.of_top(np.full(200, 0.999), np.ones(200), EDGES).interval()
    exact = binomtest(200, 200).proportion_ci(0.95)
    assert low == 0 and 0.999 - exact.low < high < 2 * (0.999 - exact.low)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1e-9, 0.3, 0.5, 0.7, 0.999, 1.0]), st.booleans()), min_size=1, max_size=30
    ),
    st.sampled_from([1, 2, 15]),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
@settings(max_examples=100, deadline=None)
def test_odd_samples(samples, n_bins, level):
    confidence, correct = map(np.array, zip(*samples, strict=True))
    fine = Reliability.of_top(confidence, correct, np.linspace(0, 1, n_bins + 1))
    for bins in (fine, fine.disclosed(5)):
        if bins.n:
            low, high = bins.interval(level)
            assert 0 <= low <= bins.ece() <= high <= 1
            wider = bins.interval(0.5 + level / 2)
            assert wider[0] <= low and high <= wider[1]


def test_none_without_samples_and_no_other_levels():
    assert np.isnan(Reliability.empty().interval()).all()
    with pytest.raises(FedCalError, match="level"):
        Reliability.empty().interval(1.0)


def test_parts_by_other_means():
    x = np.array([0.0, 0.7, 2.5])
    drawn = np.abs(x + np.random.default_rng(0).normal(size=(10**6, 1))).mean(0) - x
    assert excess(x) == pytest.approx(drawn, abs=3e-3)
    rng = np.random.default_rng(1)
    hits = rng.binomial(7, 0.83, 10**6)
    assert mean_deviation(np.array([7]), np.array([0.83]))[0] == pytest.approx(np.abs(hits - 7 * 0.83).mean(), abs=5e-3)


def test_many_sure_samples_half_of_them_wrong():
    """A gap of thousands of standard errors overflows nothing."""
    bins = Reliability.of(np.tile([1.0, 0.0], (60_000, 1)), np.arange(60_000) % 2)
    low, high = bins.interval()
    assert low < 0.5 < high < 0.51
