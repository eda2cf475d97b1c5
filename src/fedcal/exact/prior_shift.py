"""Local calibration by prior shift: a client's posterior is the global one, reweighed by its own label distribution.

Under label skew P_c(x|y) = P(x|y) (Definition 4.2), so that P_c(y|x) ∝ P(y|x) · P_c(y) / P(y): a globally calibrated model
and a client's label counts are all it takes, also for a client that never took part. In logits:

    u_c = u + s · (log P_c − log P)        0 ≤ s ≤ 1

* P_c is the client's counts, smoothed towards P by α pseudo-samples. α comes from the sum over clients of the likelihood of
  their counts: it finds out how unlike the clients are.
* s is how far the assumption holds. Each client weighs a grid of strengths by the likelihood of its own labels (each label
  left out of the counts that judge it) and by what is common in the federation: one of the beta distributions over
  strengths in `common`, or rather their mean, weighed by the sum over clients of the likelihood that each gives the client's
  labels. Where label shift is not what sets clients apart, s goes to 0 and nothing is done.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch
from torch import Tensor

from fedcal.base.logits import Params

STRENGTHS = torch.linspace(0, 1, 11, dtype=torch.float64)
MEANS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)
CONCENTRATIONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
UNRELEASED = 10.0  # pseudo-samples where clients' counts are private
ALPHAS = torch.logspace(-0.5, 4, 10, dtype=torch.float64)  # pseudo-samples, half a decade apart


def log_ratio(counts: Tensor, prior: Tensor, alpha: Tensor) -> Tensor:
    """log P_c − log P, with P_c the mean of Dirichlet(α P + counts); counts of one client, or a row for each of several."""
    return ((counts + alpha * prior) / (counts.sum(-1, keepdim=True) + alpha)).log() - prior.log()


# --- the halves of a client, or of several that reply as one -----------------------------------------------------------


def label_counts(labels: Tensor, client: Tensor, n_clients: int, k: int) -> Tensor:
    """How often each of the clients has each class, (clients, K)."""
    which = labels if n_clients == 1 else client * k + labels
    return torch.bincount(which, minlength=n_clients * k).double().view(n_clients, k)


def counts_likelihood(counts: Tensor, prior: Tensor) -> Tensor:
    """Log-likelihood of the clients' label counts under a Dirichlet-multinomial around P, for every α of the grid."""
    a = (ALPHAS[:, None] * prior)[:, None]  # (α, client, class)
    total, n = a.sum(-1), counts.sum(-1)
    each = total.lgamma() - (total + n).lgamma() + ((a + counts).lgamma() - a.lgamma()).sum(-1)
    return each.sum(1)


def shift_likelihood(
    chunks: Iterable[tuple[Tensor, Tensor, Tensor]], counts: Tensor, prior: Tensor, alpha: Tensor
) -> Tensor:
    """Log-likelihood of each client's labels at every strength, (clients, strengths).

    The chunks hold logits that were not fitted on these samples, labels, and which client each sample belongs to. A label
    must not vouch for itself: it is left out of the counts. Only its own class's weight changes by that.
    """
    ratio = log_ratio(counts, prior, alpha)
    less = ((counts - 1).clamp_min(0) + alpha * prior).log() - (counts + alpha * prior).log()
    found = torch.zeros(len(counts), len(STRENGTHS), dtype=torch.float64)
    for u, y, client in chunks:
        own = (ratio + less)[client, y][None]
        shift = ratio[client].T.scatter(0, y[None], own)  # classes first: faster
        shifted = torch.addcmul(u.T, STRENGTHS[:, None, None], shift)
        of_label = shifted.gather(1, y.expand(len(STRENGTHS), 1, -1))[:, 0]
        found.index_add_(0, client, (of_label - shifted.logsumexp(1)).T)
    return found


@cache
def common() -> Tensor:
    """Distributions over the strengths that may be common in a federation, (distributions, strengths).

    First each strength alone; then beta distributions of every mean and several concentrations.
    """
    edges = torch.cat([torch.zeros(1), (STRENGTHS[1:] + STRENGTHS[:-1]).float() / 2, torch.ones(1)]).double()
    steps = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    rows = []
    for mean in MEANS:
        for concentration in CONCENTRATIONS:
            a, b = mean * concentration, (1 - mean) * concentration
            density = (a - 1) * steps.log() + (b - 1) * torch.log1p(-steps)
            mass = (density - density.max()).exp()
            rows.append(torch.bincount(torch.bucketize(steps, edges[1:-1]), mass, len(STRENGTHS)))
    beta = torch.stack(rows)
    return torch.cat([torch.eye(len(STRENGTHS), dtype=torch.float64), beta / beta.sum(1, keepdim=True)])


def evidence(likelihood: Tensor) -> Tensor:
    """Log-likelihood of the clients' labels, (clients, strengths), under each of the distributions in `common`, summed."""
    return (common().log() + likelihood[:, None]).logsumexp(-1).sum(0)


def weights_of(evidence: Tensor) -> Tensor:
    """The server's half: what strengths are common, by the mean of the distributions in `common`, weighed by evidence."""
    return evidence.softmax(0) @ common()


def posterior(likelihood: Tensor, weights: Tensor) -> Tensor:
    """The weights of the strengths at each client, given what is common in the federation."""
    return (weights.log() + likelihood).softmax(dim=-1)


def shift(params: Params, labels: Tensor, likelihood: Tensor) -> Tensor:
    """s · (log P_c − log P) for a client with labels."""
    counts = torch.bincount(labels, minlength=len(params["prior"])).double()
    strength = posterior(likelihood, params["strengths"]) @ STRENGTHS
    return strength * log_ratio(counts, params["prior"], params["alpha"])


def without_release(labels: Tensor, noise: float) -> Params:
    """What clients need for their prior shift where only noised label counts were released: every strength is as likely."""
    smooth = labels + 0.5 + noise
    weights = torch.full_like(STRENGTHS, 1 / len(STRENGTHS))
    return {
        "prior": smooth / smooth.sum(),
        "alpha": torch.tensor(UNRELEASED, dtype=torch.float64),
        "strengths": weights,
    }


def shift_unlabelled(params: Params, u: Tensor, steps: int = 500) -> Tensor:
    """The same for a client without labels, at the federation's mean strength.

    Its label distribution is found by EM on calibrated logits (Saerens et al. 2002), smoothed by α.
    """
    prior, alpha = params["prior"], params["alpha"]
    ratio, found = u.log_softmax(dim=1) - prior.log(), prior
    for _ in range(steps):
        expected = (ratio + found.log()).softmax(dim=1).sum(0)
        updated = (expected + alpha * prior) / (len(u) + alpha)
        if float((updated - found).abs().max()) < 1e-7:
            break
        found = updated
    return (params["strengths"] @ STRENGTHS) * (found.log() - prior.log())
