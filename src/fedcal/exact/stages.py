"""Stages of an exact fit, as programs that query clients for sums: the start, linear maps, confidence maps."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from fedcal.base.arrays import Array, Params, softmax, sum_of
from fedcal.exact import maps, prior_shift, queries
from fedcal.exact.groups import Group, lockstep
from fedcal.exact.linear import Curvature, identity, n_parameters, widen
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.queries import Points, SumQuery
from fedcal.exact.solve import Descent, Prior, Sums, warn_if_stopped

NEWTON_MAX = 110  # parameters up to which a Hessian is sent in every round
MATRIX_NEWTON_MAX = 20  # the same for a matrix, in classes
BLOCKS_MAX = 128  # classes up to which a matrix's Hessian blocks, about K³ / 2 numbers, are worth sending once
# Nats of the whole summed loss that the last step may still gain. Newton's method squares the remaining error.
FITTING = 1e-8
ROUNDS, SLOW_ROUNDS = 60, 240  # most rounds of a single fit, with whole Hessians and without
DIAGONAL = 30.0  # largest precision of a matrix's diagonal; vectors choose 10 to 100
PSEUDO = (1000.0, 300.0, 100.0, 30.0, 10.0)  # histogram map: pseudo-samples per bin that shrink it to the identity
SHARES = (0.0, 0.5, 1.0)  # of the way from no confidence map to a whole one
TRUST = 0.5  # in what a map gains out of fold, which is partly chance; 1 was slightly worse on development data
OCTAVES = 2.0 ** np.arange(-3, 4)  # scales around a first guess
GRIDS = 3  # most grids of such scales


@dataclass
class Clients:
    """What the server knows about all clients together."""

    k: int
    n: float
    labels: Array  # (K,) how many samples of each class
    mode: float  # of the prior of 1/T: 1, or more if the logits are tiny, or less if they are huge
    begin: float  # a guess of 1/T
    folds_filled: bool
    late: int = 0  # rounds that the start took beyond the usual two


def start(k: int, folded: bool = False) -> Generator[SumQuery, Sums, Clients]:
    """The first queries: number of samples, whether every fold has some, and about which scale the logits need."""
    sums = yield queries.Start(folds=folded)
    n, squares, agreement = (float(sums[name]) for name in ("n", "squares", "agreement"))
    rms = (max(squares, 0.0) / max(n * k, 1)) ** 0.5  # noise for privacy may leave it negative
    mode = begin = 1.0
    if rms > 1e-150:  # below, some squares have underflowed: nothing is known
        mode = 1 / rms if rms < 1 else min(1.0, 100 / rms)
        # If logits were Gaussian, that of the true label would be b times their variance above the mean of the others. If
        # labels and logits do not agree, b starts small: at a large b every softmax is 0 or 1, and steps learn nothing.
        guess = k * agreement / squares
        begin = guess if guess * rms > 1e-2 else 0.1 / rms
    clients = Clients(k, n, sums["labels"], mode, begin, folded and bool((sums["folds"] > 0).all()))
    clients.begin = yield from _near_best_scale(clients)
    return clients


def _near_best_scale(clients: Clients) -> Generator[SumQuery, Sums, float]:
    """1/T to about one per cent, usually in one round: loss and slope on a grid, a cubic where the slope changes sign."""
    prior, begin = prior_of("temperature", 0.0, clients), clients.begin
    for late in range(GRIDS):
        clients.late = late
        grid = begin * OCTAVES
        sums = yield queries.LinearSums((Points("temperature", ALL, "none", grid[:, None]),))
        of_prior = [prior(b[None]) for b in grid]
        losses = sums["0/loss"] + np.array([value for value, _ in of_prior])
        slopes = sums["0/grad"][:, 0] + np.concatenate([slope for _, slope in of_prior])
        slopes = slopes * grid * math.log(2)  # per octave
        falling = int((slopes <= 0).sum())
        if 0 < falling < len(grid):
            below = slice(falling - 1, falling + 1)
            return float(grid[falling - 1]) * 2.0 ** _lowest(*losses[below].tolist(), *slopes[below].tolist())
        begin = float(grid[-1 if falling else 0])
    return begin


def _lowest(value: float, value_at_1: float, slope: float, slope_at_1: float) -> float:
    """Where in [0, 1] the cubic with these values and slopes at both ends is lowest; it falls at first and rises at last."""
    bend = slope + slope_at_1 - 3 * (value_at_1 - value)
    root = math.sqrt(max(bend * bend - slope * slope_at_1, 0.0))
    return min(max(1 - (slope_at_1 + root - bend) / max(slope_at_1 - slope + 2 * root, 1e-300), 0.0), 1.0)


# --- linear maps -----------------------------------------------------------------------------------------------------


def prior_of(family: str, ridge: float, clients: Clients) -> Prior:
    """The prior of a family: it shrinks a map towards the closest temperature without intercepts.

    Deviations of scales are measured in units of b, so that the ridge does not depend on the net's scale. Parameters that a
    smaller family has too get a limited precision: intercepts of vectors and matrices at most 1, a matrix's diagonal at most
    DIAGONAL. Otherwise a ridge for K² entries would hold back K class scales, and with them the calibration of whole classes.
    """
    k, none = clients.k, identity(family, clients.k)
    scale, intercept = ridge / clients.begin**2, ridge if family == "bias" else min(ridge, 1.0)
    if family == "temperature":
        precision = np.zeros(1)
    elif family == "bias":
        precision = np.array([0.0] + [intercept] * k)
    elif family == "vector":
        precision = np.array([scale] * k + [intercept] * k)
    else:
        precision = np.tile([scale] * k + [intercept], k)
        precision[none > 0] = min(ridge, DIAGONAL) / clients.begin**2
    return Prior(none, precision, clients.mode)


def curvature_of(family: str, k: int) -> Curvature:
    """Which part of a family's Hessian is sent."""
    if family == "matrix":
        return "full" if k <= MATRIX_NEWTON_MAX else "blocks" if k <= BLOCKS_MAX else "diagonal"
    return "full" if n_parameters(family, k) <= NEWTON_MAX else "diagonal"


def group_of(
    family: str, ridges: tuple[float, ...], clients: Clients, tol: float, rounds: int, begin: Array | None = None
) -> Group:
    """A family's fits at several ridges, which all start from `begin`, or from a temperature if it is not given."""
    begin = clients.begin * identity(family, clients.k) if begin is None else begin
    priors = (prior_of(family, ridge, clients) for ridge in ridges)
    return Group(family, [Descent(begin, prior, tol, rounds) for prior in priors], curvature_of(family, clients.k))


def fit_linear(family: str, ridge: float, clients: Clients) -> Generator[SumQuery, Sums, Array]:
    """Fit one family at one ridge, on all samples. If its Hessian is too large to send, it starts from the bias fit."""
    curvature, begin = curvature_of(family, clients.k), None
    if curvature != "full" and family != "bias":
        begin = widen("bias", (yield from fit_linear("bias", ridge, clients)), family, clients.k)
    # Newton's last step squares the remaining error; the others have no such step.
    tol = {"full": FITTING, "blocks": 1e-4}.get(curvature, 1e-14)
    group = group_of(family, (ridge,), clients, tol, ROUNDS if curvature == "full" else SLOW_ROUNDS, begin)
    yield from lockstep([group])
    warn_if_stopped(group.descents[0])
    return group.descents[0].t


# --- confidence maps and the prior shift -----------------------------------------------------------------------------


def average_map(histograms: Array) -> Params:
    """A mean of confidence maps that go more or less far from the identity, weighted by what each gains out of fold.

    Where none gains more than the others, the mean goes half of the way to the fitted maps. Where one gains many nats more,
    the mean is nearly that one. On development data, a mean was better than a choice (docs/log.md).

    Args:
        histograms: of out-of-fold confidences, by fold (`maps.fine_histogram`).
    """
    whole, gains = histograms.sum(0), np.zeros(len(PSEUDO) * len(SHARES))
    for one in histograms:
        bins = maps.Bins.of(one)
        gains += [bins.loss({}) - bins.loss(tried) for tried in _maps_to_average(whole - one)]
    weights, tried = softmax(TRUST * gains, 0), _maps_to_average(whole)
    return {name: sum_of(w * of[name] for w, of in zip(weights, tried, strict=True)) for name in tried[0]}


def _maps_to_average(histogram: Array) -> list[Params]:
    """Pairs of a beta map and a histogram map, each a share of the way from the identity.

    A pair is used by its mean (`maps.map_log_odds`): in log-odds, the bias of the one and the noise of the other average out.
    A third of the pairs are the identity, so that it counts as much as going half or all of the way.
    """
    beta, hists = maps.fit_beta(histogram), [maps.hist_knots(histogram, pseudo) for pseudo in PSEUDO]
    return [maps.shrunk(beta, hist, share) for hist in hists for share in SHARES]


def fit_prior_shift(fold_map: FoldMap, confidence_map: Params, labels: Array) -> Generator[SumQuery, Sums, Params]:
    """The parameters of prior shift (prior_shift.py): P, α, and the weights of the strengths.

    Args:
        fold_map: gives a client its out-of-fold logits, together with `confidence_map`.
        confidence_map: beta and hist, or nothing.
        labels: (K,) how many samples of each class the federation has.
    """
    prior = (labels + 0.5) / (labels + 0.5).sum()
    alpha = prior_shift.ALPHAS[(yield queries.CountsLikelihood(prior))["likelihood"].argmax()]
    evidence = (yield queries.ShiftEvidence(fold_map, confidence_map, prior, alpha))["evidence"]
    return {"prior": prior, "alpha": alpha, "strengths": prior_shift.weights_of(evidence)}
