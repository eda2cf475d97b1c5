"""Local calibration by prior shift: a client's posterior is the global one, reweighted by its own label distribution.

Under label skew P_c(x|y) = P(x|y) (Definition 4.2), so that P_c(y|x) ∝ P(y|x) · P_c(y) / P(y). A globally calibrated model
and a client's label counts are enough, also for a client that did not take part. In logits:

    u_c = u + s · (log P_c − log P)        0 ≤ s ≤ 1

* P_c is the client's label counts, smoothed towards P by α pseudo-samples. α maximises the likelihood of all clients' counts:
  it measures how different the clients are.
* The strength s says how far the assumption holds. Each client weights a grid of strengths by the likelihood of its own
  labels (each label is left out of the counts that judge it) and by the federation's distribution of strengths. That is the
  mean of the distributions in `common`, weighted by the likelihood that each gives to all clients' labels. If clients do not
  differ by their label distributions, s goes to 0 and nothing is changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np

from fedcal.base.arrays import Array, Params, log_softmax, logsumexp, softmax

STRENGTHS = np.linspace(0, 1, 11)
MEANS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)
CONCENTRATIONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
UNRELEASED = 10.0  # pseudo-samples α if clients' counts are private
ALPHAS = np.logspace(-0.5, 4, 10)  # pseudo-samples, half a decade apart


def log_ratio(counts: Array, prior: Array, alpha: Array) -> Array:
    """log P_c − log P, with P_c the mean of Dirichlet(α P + counts); counts of one client, or a row for each of several."""
    return np.log((counts + alpha * prior) / (counts.sum(-1, keepdims=True) + alpha)) - np.log(prior)


# --- the part of a client, or of several that reply as one -------------------------------------------------------------


def label_counts(labels: Array, client: Array, n_clients: int, k: int) -> Array:
    """How often each of the clients has each class, (clients, K)."""
    which = labels if n_clients == 1 else client * k + labels
    return np.bincount(which, minlength=n_clients * k).astype(float).reshape(n_clients, k)


def counts_likelihood(counts: Array, prior: Array) -> Array:
    """Log-likelihood of the clients' label counts under a Dirichlet-multinomial around P, for every α of the grid."""
    client, of_class = np.nonzero(counts)  # a class that a client does not have adds nothing
    a, total = ALPHAS[:, None] * prior[of_class], (ALPHAS * prior.sum())[:, None]
    by_class = (_log_gamma(a + counts[client, of_class]) - _log_gamma(a)).sum(1)
    return (_log_gamma(total) - _log_gamma(total + counts.sum(-1))).sum(1) + by_class


def _log_gamma(x: Array) -> Array:
    """log Γ: SciPy has it too, but takes longer to import than a reply takes."""
    return np.array([math.lgamma(value) for value in x.ravel().tolist()]).reshape(x.shape)


def shift_likelihood(chunks: Iterable[tuple[Array, Array, Array]], counts: Array, prior: Array, alpha: Array) -> Array:
    """Log-likelihood of each client's labels at every strength, (clients, strengths).

    The chunks contain logits of maps that were not fitted on these samples, labels, and each sample's client. Each label is
    left out of the counts that judge it, which changes the weight of its class only.
    """
    ratio = log_ratio(counts, prior, alpha)
    less = np.log(np.maximum(counts - 1, 0) + alpha * prior) - np.log(counts + alpha * prior)
    found = np.zeros((len(counts), len(STRENGTHS)))
    for u, y, client in chunks:
        rows = np.arange(len(y))
        shift = np.array(ratio.T[:, client], order="C")  # classes first: faster
        shift[y, rows] = (ratio + less)[client, y]
        shifted = u.T + STRENGTHS[:, None, None] * shift
        likelihood = shifted[:, y, rows] - logsumexp(shifted, 1)
        for strength, of_samples in enumerate(likelihood):
            found[:, strength] += np.bincount(client, of_samples, len(counts))
    return found


@cache
def common() -> Array:
    """The distributions over strengths that a federation may have, (distributions, strengths).

    First each strength alone; then beta distributions of several means and concentrations.
    """
    between = ((STRENGTHS[1:] + STRENGTHS[:-1]) / 2).astype(np.float32).astype(float)
    steps = (np.arange(400) + 0.5) / 400
    rows = []
    for mean in MEANS:
        for concentration in CONCENTRATIONS:
            a, b = mean * concentration, (1 - mean) * concentration
            density = (a - 1) * np.log(steps) + (b - 1) * np.log1p(-steps)
            mass = np.exp(density - density.max())
            rows.append(np.bincount(np.searchsorted(between, steps), mass, len(STRENGTHS)))
    beta = np.stack(rows)
    return np.concatenate([np.eye(len(STRENGTHS)), beta / beta.sum(1, keepdims=True)])


@cache
def _log_common() -> Array:
    with np.errstate(divide="ignore"):  # some strengths have probability 0
        return np.log(common())


def evidence(likelihood: Array) -> Array:
    """The summed log-likelihood of clients' labels under each distribution in `common`, given it by (client, strength)."""
    return logsumexp(_log_common() + likelihood[:, None], -1).sum(0)


def weights_of(evidence: Array) -> Array:
    """The server part: the mean of the distributions in `common`, weighted by their evidence."""
    return softmax(evidence, 0) @ common()


def posterior(likelihood: Array, weights: Array) -> Array:
    """The weights of the strengths at each client, given the federation's weights."""
    with np.errstate(divide="ignore"):
        return softmax(np.log(weights) + likelihood, -1)


def shift(params: Params, labels: Array, likelihood: Array) -> Array:
    """s · (log P_c − log P) for a client with labels."""
    counts = np.bincount(labels, minlength=len(params["prior"])).astype(float)
    strength = posterior(likelihood, params["strengths"]) @ STRENGTHS
    return strength * log_ratio(counts, params["prior"], params["alpha"])


def without_release(labels: Array, noise: float) -> Params:
    """The parameters of prior shift if only noised label counts were released: all strengths are equally likely."""
    smooth = labels + 0.5 + noise
    weights = np.full_like(STRENGTHS, 1 / len(STRENGTHS))
    return {"prior": smooth / smooth.sum(), "alpha": np.array(UNRELEASED), "strengths": weights}


def shift_unlabelled(params: Params, u: Array) -> Array:
    """The shift for a client without labels, at the federation's mean strength.

    Its label distribution is estimated by EM on calibrated logits (Saerens et al. 2002), smoothed by α.
    """
    prior, alpha = params["prior"], params["alpha"]
    ratio, found = log_softmax(u, 1) - np.log(prior), prior
    for _ in range(500):
        expected = softmax(ratio + np.log(found), 1).sum(0)
        updated = (expected + alpha * prior) / (len(u) + alpha)
        if float(np.abs(updated - found).max()) < 1e-7:
            break
        found = updated
    return (params["strengths"] @ STRENGTHS) * (np.log(found) - np.log(prior))
