"""Stages of an exact fit, as programs that query clients for sums: linear maps, choosing among them, confidence maps."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fedcal.base.folds import FOLDS
from fedcal.base.logits import Params
from fedcal.exact import maps, queries
from fedcal.exact.linear import FAMILIES, Curvature, n_parameters, widen
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.prior_shift import ALPHAS, STRENGTHS
from fedcal.exact.queries import SumQuery
from fedcal.exact.solve import (
    Prior,
    Sums,
    by_blocks,
    by_class,
    in_parallel,
    lbfgs,
    lockstep,
    newton,
    with_share,
)

NEWTON_MAX = 300  # parameters up to which a Hessian is worth sending
BLOCKS_MAX = 128  # classes up to which a matrix's Hessian blocks, about K³ numbers, are worth sending once
# Nats of the whole summed loss that a fit's last step may still gain. Newton squares what is left.
FITTING = 1e-8
TOWARDS = 1e-4  # of a fit that another one is shrunk towards
CHOOSING = 1e-1  # of fits to choose among: standard errors of a choice are some nats
PSEUDO = (1000.0, 300.0, 100.0, 30.0, 10.0)  # histogram map: pseudo-samples per bin at the identity
RIDGES = {  # prior precisions in natural logit units, strong to weak
    "bias": (1e2, 1e1, 1.0, 0.1),
    "vector": (1e3, 1e2, 1e1, 1.0, 0.1),
    "matrix": (1e4, 1e3, 1e2, 1e1, 1.0, 0.1, 0.01),
}

Fits = dict[int, Tensor]  # a map's parameters by fold


@dataclass
class Clients:
    """What the server knows of the clients together."""

    k: int
    n: float
    labels: Tensor  # (K,) how many samples of each class
    mode: float  # of 1/T: 1, or more where the logits are microscopic, and less where they are huge
    begin: float  # a first guess of 1/T
    folds_filled: bool
    blocks: Tensor | None = None  # the matrix family's curvature, once asked for
    log: dict[str, float] = field(default_factory=dict)  # remarks for the report


def start(k: int, folded: bool = False) -> Generator[SumQuery, Sums, Clients]:
    """The first query: how much there is, and whether every fold has some of it."""
    sums = yield queries.Start(folds=folded)
    n, squares, agreement = (float(sums[name]) for name in ("n", "squares", "agreement"))
    rms = (max(squares, 0.0) / max(n * k, 1)) ** 0.5  # noise for privacy may leave it negative
    mode = begin = 1.0
    if rms > 1e-150:  # of less, the squares of some have vanished: nothing is known
        mode = 1 / rms if rms < 1 else min(1.0, 100 / rms)
        # If logits were Gaussian, the true label's would lie b times their variance above the others' mean. Where labels
        # and logits do not agree, b is small: from a large one, where every softmax is 0 or 1, no step could tell.
        guess = k * agreement / squares
        begin = guess if guess * rms > 1e-2 else 0.1 / rms
    return Clients(k, n, sums["labels"], mode, begin, folded and bool((sums["folds"] > 0).all()))


def prior_of(family: str, ridge: float, base: dict[str, Tensor], clients: Clients) -> tuple[Tensor, Prior]:
    """Where a family's fit starts, and what it is shrunk towards: the fit of the family before it (the last in `base`).

    The ridge counts in natural logit units, so that its scale has nothing to do with the net's: a deviation of a scale
    is measured in units of b. Intercepts get at most a precision of 1.
    """
    k = clients.k
    if family == "temperature":
        begin, none = torch.tensor([clients.begin], dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        return begin, Prior(begin, none, g=1.0, m=clients.mode)
    if family == "bias":
        begin = widen("temperature", base.get("temperature", torch.tensor([clients.begin], dtype=torch.float64)), k)
        precision = torch.cat([torch.zeros(1), torch.full((k,), ridge)]).double()
        return begin, Prior(torch.zeros(k + 1, dtype=torch.float64), precision, g=1.0, m=clients.mode)
    before = next(f for f in reversed(FAMILIES) if f in base and FAMILIES.index(f) < FAMILIES.index(family))
    mean = base[before]
    for step in FAMILIES[FAMILIES.index(before) : FAMILIES.index(family)]:
        mean = widen(step, mean, k)
    scale, intercept = ridge / float(base["bias"][0]) ** 2, min(ridge, 1.0)
    if family == "vector":
        precision = torch.cat([torch.full((k,), scale), torch.full((k,), intercept)]).double()
    else:
        precision = torch.cat([torch.full((k, k), scale), torch.full((k, 1), intercept)], dim=1).double().flatten()
    return mean, Prior(mean, precision)


def curvature_of(family: str, k: int) -> Curvature:
    """What of a family's Hessian is worth sending in every round."""
    if n_parameters(family, k) <= NEWTON_MAX:
        return "full"
    return "none" if family == "matrix" and k <= BLOCKS_MAX else "diagonal"


def fit_linear(
    family: str,
    ridge: float,
    base: dict[int, dict[str, Tensor]],
    clients: Clients,
    starts: Fits | None = None,
    tol: float = FITTING,
) -> Generator[SumQuery, Sums, Fits]:
    """One family at one ridge, for each fold in `base` (fold -> fits of the families before).

    By Newton where a Hessian is small enough to send; else by L-BFGS, from messages that grow with the number of
    parameters alone.
    """
    begins = {fold: prior_of(family, ridge, fits, clients) for fold, fits in base.items()}
    at = {fold: starts[fold] if starts else begin for fold, (begin, _) in begins.items()}
    curvature = curvature_of(family, clients.k)
    if curvature == "full":
        solvers = {fold: newton(at[fold], prior, tol) for fold, (_, prior) in begins.items()}
        return (yield from lockstep(partial(queries.LinearSums, family, curvature), solvers))
    if curvature == "diagonal":
        tol = max(tol**2, 1e-14)  # Newton's last step squares what is left; L-BFGS has no such step
        solvers = {fold: lbfgs(at[fold], prior, by_class, tol) for fold, (_, prior) in begins.items()}
        return (yield from lockstep(partial(queries.LinearSums, family, curvature), solvers))
    if clients.blocks is None:  # any fold's map will do to precondition with
        fits = next(iter(base.values()))
        vector = fits.get("vector", widen("bias", fits["bias"], clients.k))
        clients.blocks = (yield queries.MatrixBlocks(vector))["blocks"]
    solvers = {}
    for fold, (_, prior) in begins.items():
        share = 1.0 if fold == ALL else 1 - 1 / FOLDS
        precondition = by_blocks(share * clients.blocks, prior.precision)
        solvers[fold] = lbfgs(at[fold], prior, precondition, max(tol, 1e-4))
    return (yield from lockstep(partial(queries.LinearSums, family, curvature), solvers))


def paired(sums: Sums, n: float, i: int, j: int) -> tuple[float, float]:
    """Mean of (loss of i − loss of j) over samples, and its standard error."""
    total, gram = sums["sum"], sums["gram"]
    mean = float(total[i] - total[j]) / max(n, 1)
    variance = float(gram[i, i] - 2 * gram[i, j] + gram[j, j]) / max(n, 1) - mean**2
    return mean, (max(variance, 0.0) / max(n, 1)) ** 0.5


def choose_ridge(
    family: str, base: dict[int, dict[str, Tensor]], clients: Clients
) -> Generator[SumQuery, Sums, tuple[float, Fits]]:
    """The ridge by out-of-fold NLL: decades from strong to weak, each started from the one before, until the first
    without gain; then the half decade between the best and the better of its neighbours."""
    tried: dict[float, tuple[float, Fits]] = {}

    def attempt(ridge: float, near: float | None) -> Generator[SumQuery, Sums, float]:
        starts = tried[near][1] if near is not None else None
        fits = yield from fit_linear(family, ridge, base, clients, starts, CHOOSING)
        sums = yield queries.Score((FoldMap(family, fits),))
        tried[ridge] = float(sums["sum"][0]), fits
        return tried[ridge][0]

    before: float | None = None
    for ridge in RIDGES[family]:
        loss = yield from attempt(ridge, before)
        if before is not None and loss >= min(value for r, (value, _) in tried.items() if r != ridge):
            break
        before = ridge
    best = min(tried, key=lambda r: tried[r][0])
    beside = [r for r in tried if r != best and 0.09 < r / best < 11]
    if beside:
        yield from attempt((best * min(beside, key=lambda r: tried[r][0])) ** 0.5, best)
    best = min(tried, key=lambda r: tried[r][0])
    return best, tried[best][1]


def fit_beta(view: queries.View, folds: list[int], starts: Fits | None = None) -> Generator[SumQuery, Sums, Fits]:
    """The beta map of the view's confidences, for several folds; a sample's worth of prior at the identity."""
    identity = torch.tensor(maps.IDENTITY, dtype=torch.float64)
    prior = Prior(identity, torch.ones(3, dtype=torch.float64))
    solvers = {fold: newton((starts or {}).get(fold, identity), prior, 1e-9, maps.beta_step) for fold in folds}
    return (yield from lockstep(partial(queries.BetaSums, view), solvers))


def histogram(view: queries.View) -> Generator[SumQuery, Sums, Tensor]:
    """The fine histogram of the view's confidences, (folds, 3, bins)."""
    return (yield queries.Histogram(view))["histogram"]


def choose_map(
    view: queries.View, clients: Clients, share: float = 1.0
) -> Generator[SumQuery, Sums, tuple[Params, Tensor]]:
    """The mean of a beta map and of the best-shrunk histogram map, or none: kept if out of fold it is better.

    Returns the map (empty: none) and the histogram it was made from. In logits, the parametric map's bias and the
    histogram's noise average out: held out, the mean beat either alone, and choosing between them.
    What is chosen on a share of the samples (`clients` are those then) is fitted on all of them.
    """
    pseudo, beta, whole = yield from with_share(share, _compare_maps(view, clients))
    if share < 1:
        again = [histogram(view), *([fit_beta(view, [ALL], {ALL: beta})] if pseudo else [])]
        counts, *betas = yield from in_parallel(*again)
        whole, beta = counts.sum(0), betas[0][ALL] if betas else beta
    return ({"beta": beta, "hist": maps.hist_knots(whole, pseudo)} if pseudo else {}), whole


def _compare_maps(view: queries.View, clients: Clients) -> Generator[SumQuery, Sums, tuple[float, Tensor, Tensor]]:
    """The histogram map's pseudo-samples (0: better no map), the beta map, and the histogram."""
    folds = range(FOLDS)
    counts, betas = yield from in_parallel(histogram(view), fit_beta(view, [*folds, ALL]))
    whole = counts.sum(0)
    hists = tuple({f: maps.hist_knots(whole - counts[f], pseudo) for f in folds} for pseudo in PSEUDO)
    sums = yield queries.CompareMaps(view, {f: betas[f] for f in folds}, hists)
    best = int(sums["sum"][:-1:2].argmin())  # by the histogram maps alone; their means with the beta map lie between
    pseudo = PSEUDO[best]
    gain, error = paired(sums, clients.n, -1, 2 * best + 1)
    clients.log |= {"map_gain": gain, "map_gain_error": error}
    if gain <= (0.0 if clients.n >= 300 else error):  # under 20 samples per bin, chance alone passes "better" too often
        pseudo = 0.0
    return pseudo, betas[ALL], whole


def fit_prior_shift(
    fold_map: FoldMap, confidence_map: Params, labels: Tensor, max_rounds: int = 30
) -> Generator[SumQuery, Sums, Params]:
    """What clients need for their prior shift (prior_shift.py): P, α, and the weights of the strengths, by EM.

    Args:
        fold_map: by which a client gets its out-of-fold logits, with `confidence_map` after it.
        confidence_map: beta and hist, or nothing.
        labels: (K,) how many samples of each class the federation has.
        max_rounds: of EM.
    """
    prior = (labels + 0.5) / (labels + 0.5).sum()
    alpha = ALPHAS[(yield queries.CountsLikelihood(prior))["likelihood"].argmax()]
    weights = torch.full_like(STRENGTHS, 1 / len(STRENGTHS))
    for _ in range(max_rounds):
        sums = yield queries.StrengthWeights(fold_map, confidence_map, prior, alpha, weights)
        updated = (sums["posterior"] + 1 / len(STRENGTHS)) / (sums["n"] + 1)  # with a pseudo-client that knows nothing
        if float((updated - weights).abs().max()) < 1e-3:
            break
        weights = updated
    return {"prior": prior, "alpha": alpha, "strengths": weights}
