"""What a drift may look like, and each alternative's log-likelihood ratio: sums, which add over batches and sites.

Each alternative is about one event with a predicted probability p: "the label is class k", or "the predicted class is right".
The null is that the event's true log-odds lie within ±tolerance of those predicted. An alternative lies beyond that on one
side, and is compared with the nearest edge of the null. The likelihood ratio of two Bernoulli distributions is monotone in
the event, so that its mean is at most 1 for every member of the null on its side of the edge, and not only at the edge.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedcal.base.logits import BLOCK

BEYOND = (0.25, 0.75, 2.0)  # log-odds beyond the edge of the null
SHARPER = (1.25, 1.6, 2.5)  # factors of the logits: under-confident by these, over-confident by their inverses
MOST_SHIFT = 2.0  # log-odds by which a confidence is moved at most: what bounds a sample's evidence
FARTHEST = 30.0  # log-odds of a prediction, beyond which it is taken as there
N_TOP = 2 * len(SHARPER)


def n_events(n_classes: int) -> int:
    """Classes that are looked at: of two, one says all."""
    return n_classes if n_classes > 2 else 1


def n_alternatives(n_classes: int) -> int:
    """Of calibration: each class up and down, then over- and under-confidence."""
    return 2 * len(BEYOND) * n_events(n_classes) + N_TOP


def shifts() -> Tensor:
    """(6,) log-odds of the class alternatives beyond the edge, upwards and downwards."""
    return torch.tensor([*BEYOND, *(-b for b in BEYOND)], dtype=torch.float64)


def calibration_prior(n_classes: int) -> Tensor:
    """Log of the alternatives' weights: half for the classes, half for the confidence."""
    n = n_alternatives(n_classes) - N_TOP
    return torch.cat([torch.full((n,), -math.log(2 * n)), torch.full((N_TOP,), -math.log(2 * N_TOP))]).double()


def share_prior(n_classes: int) -> Tensor:
    """The same of a label distribution, whose alternatives are each class up and down."""
    n = n_alternatives(n_classes) - N_TOP
    return torch.full((n,), -math.log(n), dtype=torch.float64)


def class_counts(labels: Tensor, n_classes: int) -> Tensor:
    """(K,) how often each class occurs."""
    return torch.bincount(labels, minlength=n_classes).double()


def calibration_sums(logits: Tensor, labels: Tensor, tolerance: float) -> Tensor:
    """(A,) each alternative's log-likelihood ratio, summed over the samples.

    Args:
        logits: (N, K) calibrated logits.
        labels: (N,) columns.
        tolerance: log-odds by which predictions may be off.
    """
    total = torch.zeros(n_alternatives(logits.shape[1]), dtype=torch.float64)
    rows = max(1, BLOCK // logits.shape[1])
    for u, y in zip(logits.double().split(rows), labels.split(rows), strict=True):
        total += calibration_ratios(u, y, tolerance).sum(0)
    return total


def calibration_ratios(logits: Tensor, labels: Tensor, tolerance: float) -> Tensor:
    """(N, A) each sample's log-likelihood ratios."""
    log_p = logits.log_softmax(1)
    odds = log_odds(log_p)
    first = 0 if logits.shape[1] > 2 else 1
    events = torch.zeros_like(odds).scatter_(1, labels[:, None], 1.0)[:, first:]
    parts = [bernoulli_ratio(odds[:, first:], events, s, math.copysign(tolerance, s)) for s in shifts().tolist()]
    top, predicted = odds.max(1)
    right = (predicted == labels).double()
    for factor in (*(1 / s for s in SHARPER), *SHARPER):
        tempered = log_odds((factor * log_p).log_softmax(1)).gather(1, predicted[:, None])[:, 0]
        away = (tempered - top).clamp(-MOST_SHIFT, MOST_SHIFT)
        parts.append(bernoulli_ratio(top, right, away, math.copysign(tolerance, factor - 1))[:, None])
    return torch.cat(parts, 1)


def bernoulli_ratio(odds: Tensor, event: Tensor, shift: Tensor | float, edge: float) -> Tensor:
    """log P(event; odds + edge + shift) − log P(event; odds + edge): never more than |shift|, whatever the prediction."""
    at = odds + edge
    return event * shift + softplus(at) - softplus(at + shift)


def log_odds(log_p: Tensor) -> Tensor:
    """log p − log(1 − p), within ±FARTHEST. Where p is near 1, the others give 1 − p: a difference loses digits."""
    top = log_p.argmax(1, keepdim=True)
    others = log_p.scatter(1, top, -math.inf).logsumexp(1, keepdim=True)
    rest = torch.log1p(-log_p.exp()).scatter(1, top, others)
    return (log_p - rest).clamp(-FARTHEST, FARTHEST)


def check_sums(sums: Tensor, counts: Tensor, n_classes: int) -> bool:
    """Whether samples with these label counts can have these sums: none gives more than the alternative's shift."""
    first = 0 if n_classes > 2 else 1
    seen, n = counts[first:], counts.sum()
    slack = 1e-6 * (1 + n)
    shift = shifts()[:, None]
    least = torch.where(shift > 0, -shift * (n - seen), shift * seen).flatten()
    most = torch.where(shift > 0, shift * seen, -shift * (n - seen)).flatten()
    classes, top = sums[:-N_TOP], sums[-N_TOP:]
    fine = bool((classes >= least - slack).all()) and bool((classes <= most + slack).all())
    return fine and bool((top.abs() <= MOST_SHIFT * n + slack).all())


# --- label distributions ----------------------------------------------------------------------------------------------


def share_ratios(sums: Tensor, n: Tensor | float, low: Tensor, high: Tensor) -> Tensor:
    """(…, A) log-likelihood ratios of class shares beyond their bounds, for counts or for sums of probabilities.

    With a log-odds shift s beyond the bound b, exp(s x) / (1 − b + b eˢ) has mean at most 1 for any x in [0, 1] whose mean is
    on the null's side of b: eˢˣ is convex, so that a coin, all 0 or 1, is the worst case. x may be "the label is k", or
    the predicted probability of k.

    Args:
        sums: (…, K) of x over the samples.
        n: samples.
        low: (K,) least share of each class under the null.
        high: (K,) greatest share.
    """
    first = 0 if sums.shape[-1] > 2 else 1
    x = sums[..., first:]
    parts = []
    for s in shifts().tolist():
        bound = (high if s > 0 else low)[first:]
        parts.append(s * x - n * torch.log1p(bound * math.expm1(s)))
    return torch.cat(parts, -1)


def share_bounds(share: Tensor, tolerance: float, n: float = math.inf, level: float = 1.0) -> tuple[Tensor, Tensor]:
    """The shares that count as unchanged: within ±tolerance in log-odds, and whatever gives `share` by chance in n samples.

    Args:
        share: (K,) what was assumed, or observed in n samples.
        tolerance: in log-odds.
        n: samples behind `share`; infinite where it is given.
        level: probability that the observed shares' bounds miss (all classes, both sides).
    """
    odds = torch.special.logit(share.clamp(1e-300, 1 - 1e-16))
    low, high = (odds - tolerance).sigmoid() * (share > 0), torch.where(share < 1, (odds + tolerance).sigmoid(), 1.0)
    if math.isfinite(n):
        allowed = math.log(2 * len(share) / level) / n
        low = torch.minimum(low, _chernoff(share, allowed, torch.zeros_like(share)))
        high = torch.maximum(high, _chernoff(share, allowed, torch.ones_like(share)))
    return low, high


def _chernoff(share: Tensor, allowed: float, end: Tensor) -> Tensor:
    """The θ between `share` and `end` with kl(share, θ) = allowed: Chernoff's bound, for means of any x within 0 and 1."""
    near, far = share.clone(), end.clone()
    for _ in range(60):
        middle = (near + far) / 2
        inside = _kl(share, middle) <= allowed
        near, far = torch.where(inside, middle, near), torch.where(inside, far, middle)
    return far


def _kl(a: Tensor, b: Tensor) -> Tensor:
    return torch.special.xlogy(a, a / b.clamp_min(1e-300)) + torch.special.xlogy(
        1 - a, (1 - a) / (1 - b).clamp_min(1e-300)
    )
