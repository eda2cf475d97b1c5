"""A site's thresholds: between the federation's and its own, by how alike sites are and how many samples it has."""

import numpy as np
import pytest
from scipy.stats import beta, betabinom, binom

from fedcal.base.conformal import LEVELS, level_of
from fedcal.base.site_sets import CONCENTRATIONS, site_curve, spread_likelihood, weigh

AT = level_of(0.1)
CURVE = np.append(1 - LEVELS, 2.0)  # the federation's scores are uniform


def counts(n, power, seed=0):
    """How many of n scores u^power the federation's thresholds cover; power < 1: the site is harder."""
    scores = np.random.default_rng(seed).random(n) ** power
    return (scores[:, None] <= CURVE[:-1]).sum(0).astype(np.float64)


def alike(k):
    """All weight on one concentration."""
    return np.eye(len(CONCENTRATIONS))[[k] * len(LEVELS)]


def test_the_likelihood_is_the_beta_binomials():
    """Up to the number of orders, which does not depend on κ; with other samples without end, F is known."""
    below = counts(40, 0.7)
    found = spread_likelihood(below, 40, 1e12)
    a, b = CONCENTRATIONS * (1 - LEVELS[AT]), CONCENTRATIONS * LEVELS[AT]
    expected = betabinom.logpmf(below[AT], 40, a, b)
    assert found[AT] - found[AT, 0] == pytest.approx(expected - expected[0], abs=1e-6)
    assert weigh(found).sum(1) == pytest.approx(np.ones(len(LEVELS)))


def test_alike_sites_take_the_federations_threshold_and_unlike_ones_their_own():
    hard = counts(400, 0.5)
    same = site_curve(hard, 400, 1e9, alike(-1), 0.5, CURVE)[AT]
    own = site_curve(hard, 400, 1e9, alike(0), 0.5, CURVE)[AT]
    truth = 0.9**0.5  # the 90 % quantile of u^0.5
    assert same < own and abs(own - truth) < 0.025 and same < truth
    assert site_curve(hard, 400, 1e9, alike(0), 0.95, CURVE)[AT] >= own


def test_by_brute_force():
    """For a site of 30 samples among 300: the posterior written down again, and every level tried."""
    below, rng = counts(30, 0.8), np.random.default_rng(1)
    weights = np.tile(rng.dirichlet(np.ones(len(CONCENTRATIONS))), (len(LEVELS), 1))
    found = site_curve(below, 30, 300, weights, 0.9, CURVE)
    for i in (0, AT, 60, len(LEVELS) - 1):
        best = 2.0
        for j in range(len(LEVELS)):
            share = min((300 * (1 - LEVELS[j]) - below[j]) / 270, 1 - 1e-9)
            chance = 0.0
            for weight, kappa in zip(weights[i], CONCENTRATIONS, strict=True):
                k = 1 / (1 / (kappa + 1) + kappa / (kappa + 1) / 271) - 1
                chance += weight * beta.sf(1 - LEVELS[i], k * share + below[j], k * (1 - share) + 30.1 - below[j])
            best = CURVE[j] if chance >= 0.9 else best
        assert found[i] == best
    assert (np.diff(found) <= 0).all()


def test_a_site_alone_has_what_its_samples_give():
    """No others: Clopper and Pearson's bound of its own counts; and where there are no samples, everything."""
    below = counts(100, 1.0)
    found = site_curve(below, 100, 100, alike(7), 0.9, CURVE)[AT]
    covered = np.array([beta.sf(0.9, max(c, 1e-9), 101 - c) >= 0.9 for c in below])
    assert found == CURVE[:-1][covered].min()
    assert (site_curve(np.zeros(len(LEVELS)), 0, 0, alike(0), 0.9, CURVE) == 2.0).all()


def test_a_new_site_gets_what_most_sites_need():
    """Without samples of its own, G ~ Beta(κ F, κ (1 − F)): the threshold that covers 90 % of such sites."""
    nothing = np.zeros(len(LEVELS))
    found = site_curve(nothing, 0, 1e9, alike(6), 0.9, CURVE)[AT]
    kappa = CONCENTRATIONS[6]
    assert beta.sf(0.9, kappa * found, kappa * (1 - found)) >= 0.9
    lower = CURVE[list(CURVE).index(found) + 1]
    assert beta.sf(0.9, kappa * lower, kappa * (1 - lower)) < 0.9


def test_about_one_site_in_ten_is_under_target():
    """Sites from the model itself: true coverage is known (paper/studies/conformal_coverage.py has other sites too)."""
    rng, under, n, sites, kappa = np.random.default_rng(0), [], 40, 60, 60.0
    shares = rng.beta(kappa * 0.9, kappa * 0.1, size=(20, sites))
    powers = np.log(0.9) / np.log(shares)  # uniform scores to this power: coverage of the threshold 0.9 is the share
    for row in powers:
        below = [(rng.random((n, 1)) ** (1 / p) <= CURVE[:-1]).sum(0).astype(float) for p in 1 / row]
        weights = weigh(np.sum([spread_likelihood(one, n, sites * n) for one in below], axis=0))
        for power, one in zip(1 / row, below, strict=True):
            under.append(min(site_curve(one, n, sites * n, weights, 0.9, CURVE)[AT], 1.0) ** power < 0.9)
    assert np.mean(under) <= 0.1 + 3 * binom.std(len(under), 0.1) / len(under) + 0.02
    assert np.mean(under) > 0.02
