"""Thresholds for one site: its own curve, shrunk towards the federation's.

Where a set covers the share F of the other sites' samples, it covers some other share G of this site's. Sites are
taken as drawn from one population: G ~ Beta(κ F, κ (1 − F)), where κ says how alike the sites are. A site with n
samples, c of them covered, has Beta(κ F + c, κ (1 − F) + n − c): an average of federation and site, with the weights
κ and n. F is known from m samples only, which makes G as uncertain as a smaller κ would: 1 / (κ' + 1) = 1 / (κ + 1) +
κ / ((κ + 1) (m + 1)). The site's threshold is the lowest at which G ≥ 1 − α with the wanted probability. κ is not
known: every κ of a grid is weighed by the summed log-likelihood of the sites' counts (beta-binomial), for each level
apart.
"""

from __future__ import annotations

import numpy as np

from fedcal.base.conformal import LEVELS

CONCENTRATIONS = np.logspace(0.5, 4, 15)  # κ, in pseudo-samples


def _prior(below: np.ndarray, n: int, total: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the beta distribution of a site's coverage before its own samples, at each level and κ: both parameters."""
    others = max(total - n, 0.0)
    # With no others, nothing is known: the weight is 0, whatever the share.
    share = np.clip((total * (1 - LEVELS) - below) / others, 0.0, 1.0) if others else 1 - LEVELS
    weight = 1 / (1 / (CONCENTRATIONS + 1) + CONCENTRATIONS / (CONCENTRATIONS + 1) / (others + 1)) - 1
    weight = np.maximum(weight, 1e-9)
    share = np.clip(share[:, None], 1e-9, 1 - 1e-9)
    return weight * share, weight * (1 - share)


def spread_likelihood(below: np.ndarray, n: int, total: float) -> np.ndarray:
    """Return the log-likelihood of a site's counts at every level and every κ, (levels, concentrations).

    Args:
        below: (levels,) how many of its scores the federation's threshold at each level covers.
        n: its scores.
        total: the federation's scores, these among them.
    """
    from scipy.special import betaln

    a, b = _prior(below, n, total)
    return betaln(a + below[:, None], b + n - below[:, None]) - betaln(a, b)


def weigh(likelihood: np.ndarray) -> np.ndarray:
    """Return the weights of the concentrations at every level; each row adds up to 1."""
    weights = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def site_curve(
    below: np.ndarray, n: int, total: float, weights: np.ndarray, confidence: float, curve: np.ndarray
) -> np.ndarray:
    """Return a site's threshold at each level: one of the federation's, at a level that covers enough at the site.

    Args:
        below: as for `spread_likelihood`; zeros for a site that is not known.
        n: its scores.
        total: as for `spread_likelihood`.
        weights: what `weigh` gave.
        confidence: the probability with which the site's coverage is at least 1 − α.
        curve: (levels,) the federation's thresholds, and after them the one with which every class is in the set.

    Returns:
        The thresholds, (levels,).
    """
    from scipy.special import betainc

    a, b = _prior(below, n, total)
    # As in n + 1 of the pooled threshold, one more sample is taken as missed; a site bears its part of it.
    a, b = a + below[:, None], b + n - below[:, None] + (n / total if total else 1.0)
    # Lower levels cover more, at the federation and at the site: bisect for how many levels cover enough, for every α.
    low, high = np.zeros(len(LEVELS), np.int64), np.full(len(LEVELS), len(LEVELS))
    while (low < high).any():
        tried = (low + high + 1) // 2
        at = np.maximum(tried - 1, 0)
        enough = ((1 - betainc(a[at], b[at], 1 - LEVELS[:, None])) * weights).sum(axis=1) >= confidence
        low, high = np.where(enough & (low < high), tried, low), np.where(enough | (low >= high), high, tried - 1)
    return np.maximum.accumulate(curve[low - 1][::-1])[::-1].copy()  # no level: the last threshold, every class
