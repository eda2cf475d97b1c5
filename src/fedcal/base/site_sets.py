"""Thresholds for one site: its own curve, shrunk towards the federation's.

Where a set covers 1 − a of the federation's samples, it covers some other share G of a site's. Sites are taken as drawn from
one population: G ~ Beta(κ (1 − a), κ a), where κ tells how alike the sites are. A site with n samples, c of them covered,
has Beta(κ (1 − a) + c, κ a + n − c): an average of federation and site, with the weights κ and n. The site's threshold is
the lowest at which G ≥ 1 − α with the wanted probability. κ is not known: every κ of a grid is weighed by the summed
log-likelihood of the sites' counts (beta-binomial), for each level apart.
"""

from __future__ import annotations

import numpy as np

from fedcal.base.conformal import LEVELS

CONCENTRATIONS = np.logspace(0.5, 4, 15)  # κ, in pseudo-samples


def spread_likelihood(below: np.ndarray, n: int) -> np.ndarray:
    """Return the log-likelihood of a site's counts at every level and every κ, (levels, concentrations).

    Args:
        below: (levels,) how many of its scores the federation's threshold at each level covers.
        n: its scores.
    """
    from scipy.special import betaln

    a, b = CONCENTRATIONS * (1 - LEVELS[:, None]), CONCENTRATIONS * LEVELS[:, None]
    return betaln(a + below[:, None], b + n - below[:, None]) - betaln(a, b)


def weigh(likelihood: np.ndarray) -> np.ndarray:
    """Return the weights of the concentrations at every level; each row adds up to 1."""
    weights = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def site_curve(below: np.ndarray, n: int, weights: np.ndarray, confidence: float, curve: np.ndarray) -> np.ndarray:
    """Return a site's threshold at each level: one of the federation's, at a level that covers enough at the site.

    Args:
        below: as for `spread_likelihood`; zeros for a site that is not known.
        n: its scores.
        weights: what `weigh` gave.
        confidence: the probability with which the site's coverage is at least 1 − α.
        curve: (levels,) the federation's thresholds, and after them the one with which every class is in the set.

    Returns:
        The thresholds, (levels,).
    """
    from scipy.special import betainc

    a = CONCENTRATIONS * (1 - LEVELS[:, None]) + below[:, None]
    b = CONCENTRATIONS * LEVELS[:, None] + n - below[:, None]
    chosen = np.empty(len(LEVELS))
    for i, (alpha, of_level) in enumerate(zip(LEVELS, weights, strict=True)):
        enough = (1 - betainc(a, b, 1 - alpha)) @ of_level >= confidence
        unbroken = int(np.argmin(np.append(enough, False)))  # levels from the lowest on at which it holds
        chosen[i] = curve[unbroken - 1]  # none: the last one, every class
    return np.maximum.accumulate(chosen[::-1])[::-1].copy()
