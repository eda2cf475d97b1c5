"""Conditions that sums over n samples satisfy, for every kind of query: what no samples can give is refused.

    Start               whole label counts that add up to n; squares ≥ 0; agreement² ≤ n · squares (Cauchy–Schwarz)
    Slope               curvature ≥ 0
    LinearSums          losses ≥ 0; gradients within Cauchy–Schwarz; Hessians, or their blocks, positive semi-definite
    Score               losses ≥ 0; their inner products a Gram matrix of non-negative numbers; hits whole, at most n
    Histogram           whole counts that add up to n; hits and summed confidences at most the counts; log-odds in their bins
    CountsLikelihood    a log-likelihood ≤ 0
    ShiftEvidence       log-likelihoods ≤ 0 that follow from one another
    NetGradient         n + stop_n samples in all; stop_loss ≥ 0
    FitScaler           temperatures within the limits of a fit
    HeadStart …         sums over features: plausible_head.py
    SetScores           whole counts, the same total by the global and the personal scaler, at most a fifth
    SiteSpread          log-likelihoods ≤ 0

Sums are rounded, so each condition has a tolerance: RELATIVE to the largest value that the sum's terms could have. For
Hessians that follows from the client's squared logits, which it declared in the first round.

Replies under differential privacy are clipped or noised: for them only `check_size` is meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.checks import SPREAD
from fedcal.base.folds import FEWEST
from fedcal.base.query import Query, magnitude
from fedcal.base.store import unnest
from fedcal.exact import maps, prior_shift, queries
from fedcal.exact.head_queries import HeadScales, HeadStart, HeadSums
from fedcal.exact.linear import is_scale, unpack_hessian, unpack_symmetric
from fedcal.exact.temperature import T_MAX, T_MIN
from fedcal.methods.fed_op import NetGradient
from fedcal.methods.fit import FitScaler
from fedcal.methods.sets import SetScores, SiteSpread
from fedcal.protocol.claim import RELATIVE, TINY, Claim, has_root
from fedcal.protocol.messages import MOST_SAMPLES
from fedcal.protocol.plausible_head import check_head_scales, check_head_start, check_head_sums

EXACT_UP_TO = 300  # parameters up to which a Hessian is factorised; beyond, only its 2 × 2 minors are checked
SQUARED = {"squares", "slope", "hess", "diag", "gram", "blocks"}  # sums whose terms are second powers of logits


def check_size(claim: Claim) -> None:
    """Refuse values that are not finite, or larger than sums over n samples can be."""
    told = float(claim.content["trained"].sum()) if "trained" in claim.content else claim.known.trained
    samples = claim.n + (min(told, MOST_SAMPLES) if told > 0 else 0)  # NaN counts as nothing
    most = 4 * SPREAD * claim.n_classes * samples * claim.size
    for name, value in claim.content.items():
        claim.require(np.isfinite(value).all(), name, "is not finite")
        squared = isinstance(claim.query, NetGradient | HeadStart | HeadSums) or name.split("/")[-1] in SQUARED
        largest, limit = magnitude(value), most * most if squared else most
        claim.require(largest <= limit, name, f"reaches {largest:.3g}, beyond all that {claim.n} samples can add up to")


def check_plausible(claim: Claim) -> None:
    """Refuse what no samples can give, as far as the conditions of the query's kind can tell."""
    if check := CHECKS.get(type(claim.query)):
        check(claim)


# --- counts --------------------------------------------------------------------------------------------------------------


def _start(claim: Claim) -> None:
    n, labels, squares, agreement = (claim.content[name] for name in ("n", "labels", "squares", "agreement"))
    _counts(claim, "n", n)
    _counts(claim, "labels", labels)
    claim.require(squares >= 0, "squares", "is negative")
    bound = math.sqrt(float(n)) * math.sqrt(float(squares))
    claim.require(
        abs(float(agreement)) <= (1 + RELATIVE) * bound + TINY,
        "agreement",
        f"is {float(agreement):.3g}, where these squares allow {bound:.3g}",
    )
    if "folds" in claim.content:
        _counts(claim, "folds", claim.content["folds"])


def _histogram(claim: Claim) -> None:
    count, hits, confidence, log_p, log_q = np.moveaxis(claim.content["histogram"], 1, 0)
    _counts(claim, "histogram", count)
    _whole(claim, "histogram", hits)
    claim.require((hits <= count).all(), "histogram", "has more hits than samples in a bin")
    within = (confidence >= 0) & (confidence <= (1 + RELATIVE) * count)
    claim.require(within.all(), "histogram", "has a mean confidence outside [0, 1] in a bin")
    rounding = RELATIVE * (count + np.abs(log_p) + np.abs(log_q))
    claim.require(((log_p <= rounding) & (log_q >= -rounding)).all(), "histogram", "has a probability outside [0, 1]")
    low, high = np.append(-math.inf, maps.GRID), np.append(maps.GRID, math.inf)
    odds, mean = log_p + log_q, np.maximum(count, 1)
    inside = (odds >= np.where(count > 0, low * mean, 0) - rounding) & (
        odds <= np.where(count > 0, high * mean, 0) + rounding
    )
    claim.require(inside.all(), "histogram", "has mean log-odds outside their bin")


def _counts(claim: Claim, name: str, counts: Array) -> None:
    """Whole numbers that add up to the declared samples."""
    _whole(claim, name, counts)
    total = float(counts.sum())
    claim.require(total == claim.n, name, f"counts {total:g} samples, but {claim.n} are declared")


def _whole(claim: Claim, name: str, counts: Array) -> None:
    claim.require((counts >= 0).all(), name, "holds a negative count")
    claim.require((counts == np.rint(counts)).all(), name, "holds a count that is no whole number")


# --- derivatives -----------------------------------------------------------------------------------------------------------


def _slope(claim: Claim) -> None:
    claim.require(claim.content["slope"][1] >= 0, "slope", "has a negative curvature")


def _linear(claim: Claim) -> None:
    """Losses and gradients of linear maps, and what is asked of their Hessians."""
    assert isinstance(claim.query, queries.LinearSums)
    for i, of in enumerate(claim.query.points):
        units, sums = _units(claim, of.family), unnest(str(i), claim.content)
        claim.require((sums["loss"] >= 0).all(), f"{i}/loss", "is negative")
        bound = 2 * math.sqrt(claim.n) * units  # Σ |z| ≤ √n · √Σ z², and likewise for an intercept, whose z is 1
        within = (np.abs(sums["grad"]) <= bound).all()
        claim.require(within, f"{i}/grad", f"is more than {claim.n} samples of such logits can give")
        _no_drift(claim, f"{i}/grad", of.family, sums["grad"])
        if "diag" in sums:
            _diagonal(claim, f"{i}/diag", sums["diag"], units)
        if "cross" in sums:  # each class's scale with its shift
            k, scaled_diagonal = claim.n_classes, np.maximum(sums["diag"] / units / units, 0)
            bound = scaled_diagonal[:k] * scaled_diagonal[k:] + 2 * RELATIVE
            scaled = sums["cross"] / units[:k] / units[k:]
            claim.require((scaled**2 <= bound).all(), f"{i}/cross", "is not positive semi-definite")
        if "blocks" in sums:  # each class of a matrix with itself
            _positive(claim, f"{i}/blocks", unpack_symmetric(sums["blocks"]), units[: claim.n_classes + 1])
        if "hess" in sums:
            _positive(claim, f"{i}/hess", unpack_hessian(of.family, sums["hess"]), units)


def _no_drift(claim: Claim, name: str, family: str, gradients: Array) -> None:
    """Probabilities and labels both add up to 1, so that the gradients of the intercepts add up to 0."""
    if family != "temperature":
        drift = gradients[:, ~is_scale(family, claim.n_classes)].sum(1)
        claim.require((np.abs(drift) <= RELATIVE * claim.n).all(), name, "has intercepts that do not add up to 0")


def _units(claim: Claim, family: str) -> Array:
    """For each parameter, the root of the sum of squares of what it multiplies: logits, or 1 for an intercept."""
    return np.where(is_scale(family, claim.n_classes), max(claim.norm, TINY), math.sqrt(claim.n))


def _positive(claim: Claim, name: str, hessian: Array, units: Array) -> None:
    """A positive semi-definite matrix (or a stack of them), up to rounding; it is symmetric, since half of it travels."""
    _diagonal(claim, name, hessian.diagonal(axis1=-2, axis2=-1), units)
    scaled, size = hessian / units / units[:, None], hessian.shape[-1]
    if size <= EXACT_UP_TO:
        definite = has_root(scaled + size * RELATIVE * np.eye(size))
    else:
        own = np.maximum(scaled.diagonal(), 0)
        definite = (scaled**2 <= own * own[:, None] + 2 * RELATIVE).all()
    claim.require(definite, name, "is not positive semi-definite")


def _diagonal(claim: Claim, name: str, diagonal: Array, units: Array) -> None:
    """Second derivatives: at least 0, and at most what the site's logits allow."""
    scaled = diagonal / units / units
    claim.require((scaled >= -RELATIVE).all(), name, "has a negative second derivative")
    claim.require((scaled <= 1 + RELATIVE).all(), name, f"is more than {claim.n} samples of such logits can give")


# --- comparisons, clients' weights, nets -----------------------------------------------------------------------------------


def _score(claim: Claim) -> None:
    """Each candidate's summed losses, their inner products, and hits."""
    total, gram, hits = (claim.content[field] for field in ("sum", "gram", "hits"))
    claim.require((total >= 0).all(), "sum", "holds a negative loss")
    _whole(claim, "hits", hits)
    claim.require((hits <= claim.n).all(), "hits", f"counts more hits than the {claim.n} samples")
    gram = unpack_symmetric(gram)
    own, slack = gram.diagonal(), 1 + RELATIVE
    # Of n losses that are not negative: (Σ l)² / n ≤ Σ l² ≤ (Σ l)².
    fits = (total * (total / claim.n) <= slack * own + TINY) & (own <= slack * total * total + TINY)
    claim.require(fits.all(), "gram", f"does not fit 'sum': no {claim.n} losses give both")
    claim.require((gram >= 0).all(), "gram", "holds a negative product of losses")
    _positive(claim, "gram", gram, np.maximum(np.sqrt(np.maximum(own, 0)), TINY))


def _likelihood(claim: Claim) -> None:
    likelihood, rounding = claim.content["likelihood"], 1e-6 + RELATIVE * claim.n
    claim.require((likelihood <= rounding).all(), "likelihood", "is positive: no log-likelihood of counts")


def _evidence(claim: Claim) -> None:
    """The strengths alone give a client's log-likelihood at each; all the others follow from these."""
    evidence, rounding = claim.content["evidence"], 1e-6 + RELATIVE * float(np.abs(claim.content["evidence"]).max())
    claim.require((evidence <= rounding).all(), "evidence", "is positive: no log-likelihood of labels")
    if claim.clients > 1:  # what follows of each does not follow of their sum
        return
    follows = prior_shift.evidence(evidence[None, : len(prior_shift.STRENGTHS)])
    claim.require((np.abs(evidence - follows) <= rounding).all(), "evidence", "contradicts itself")


def _net(claim: Claim) -> None:
    """A fifth of the samples is kept back to stop on."""
    for name in ("n", "stop_n"):
        _whole(claim, name, claim.content[name])
    total = float(claim.content["n"] + claim.content["stop_n"])
    claim.require(total == claim.n, "stop_n", f"and 'n' add up to {total:g} samples, but {claim.n} are declared")
    claim.require(claim.content["stop_loss"] >= 0, "stop_loss", "is negative")


def _set_scores(claim: Claim) -> None:
    """A fifth of a client's samples is held out, or FEWEST: no more, and the same whichever scaler scores them."""
    most = claim.n / 4 + FEWEST * claim.clients
    totals = {name: float(counts.sum()) for name, counts in claim.content.items()}
    for name, total in totals.items():
        _whole(claim, name, claim.content[name])
        claim.require(total <= most, name, f"counts {total:g} held-out samples, but {claim.n} are fitted on")
        claim.require(total == max(totals.values()), name, "counts fewer samples than the other scores")


def _temperature(claim: Claim) -> None:
    if "temperature" in claim.content:
        t = float(claim.content["temperature"])
        within = T_MIN / (1 + RELATIVE) <= t <= T_MAX * (1 + RELATIVE)
        claim.require(within, "temperature", f"is {t:g}, where a fit gives {T_MIN:g} to {T_MAX:g}")


CHECKS: dict[type[Query], Callable[[Claim], None]] = {
    queries.Start: _start,
    queries.Slope: _slope,
    queries.LinearSums: _linear,
    queries.Score: _score,
    queries.Histogram: _histogram,
    queries.CountsLikelihood: _likelihood,
    queries.ShiftEvidence: _evidence,
    NetGradient: _net,
    FitScaler: _temperature,
    HeadStart: check_head_start,
    HeadSums: check_head_sums,
    HeadScales: check_head_scales,
    SetScores: _set_scores,
    SiteSpread: _likelihood,
}
