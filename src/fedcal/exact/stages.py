"""Stages of an exact fit, as programs that query clients for sums: linear maps, choosing among them, confidence maps."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.folds import FOLDS
from fedcal.exact import maps, prior_shift, queries
from fedcal.exact.linear import Curvature, identity, n_parameters, unpack_symmetric, widen
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.queries import Points, SumQuery
from fedcal.exact.solve import Descent, Group, Prior, Sums, lockstep, warn_if_stopped

NEWTON_MAX = 110  # parameters up to which a Hessian is sent in every round
MATRIX_NEWTON_MAX = 20  # the same for a matrix, in classes
BLOCKS_MAX = 128  # classes up to which a matrix's Hessian blocks, about K³ / 2 numbers, are worth sending once
# Nats of the whole summed loss that the last step may still gain. Newton's method squares the remaining error.
FITTING = 1e-8
CHOOSING = 1e-1  # for fits to choose among: standard errors of a choice are some nats
ROUNDS, SLOW_ROUNDS = 60, 240  # most rounds of a single fit, with whole Hessians and without
NEWTON_ROUNDS, OTHER_ROUNDS = 11, 10  # most rounds of fits to choose among, with whole Hessians and without
FINISHING_ROUNDS = 3  # most further rounds of the chosen fit
FOLD_LARGE = 200_000  # bytes of a family's gradients without each fold; if there are more, its ridge is chosen first
DIAGONAL = 30.0  # largest precision of a matrix's diagonal; vectors choose 10 to 100
PSEUDO = (1000.0, 300.0, 100.0, 30.0, 10.0)  # histogram map: pseudo-samples per bin that shrink it to the identity
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
    for _ in range(GRIDS):
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
        begin = widen((yield from fit_linear("bias", ridge, clients)), family)
    # Newton's last step squares the remaining error; the others have no such step.
    tol = {"full": FITTING, "blocks": 1e-4}.get(curvature, 1e-14)
    group = group_of(family, (ridge,), clients, tol, ROUNDS if curvature == "full" else SLOW_ROUNDS, begin)
    yield from lockstep([group])
    warn_if_stopped(group.descents[0])
    return group.descents[0].t


# --- choosing among them ---------------------------------------------------------------------------------------------


@dataclass
class Candidate:
    """A family at one ridge: its fit on all samples, and the fits without each fold."""

    family: str
    ridge: float
    group: Group
    fit: Descent
    folds: dict[int, Descent]

    @property
    def fold_map(self) -> FoldMap:
        return FoldMap(self.family, {fold: descent.t for fold, descent in self.folds.items()})

    @property
    def left(self) -> float:
        """Nats that its fits, on all samples and without each fold, could still gain. Its out-of-fold loss may be wrong by
        about as much."""
        return self.fit.left + sum(descent.left for descent in self.folds.values())


def in_turn(families: Iterable[str], k: int) -> list[list[str]]:
    """The families to fit first, then those that start from the bias fit, if any."""
    small = [family for family in families if curvature_of(family, k) == "full" or family == "bias"]
    return [some for some in (small, [family for family in families if family not in small]) if some]


def rounds_among(family: str, k: int) -> int:
    """The most rounds of a family's fits to choose among."""
    return NEWTON_ROUNDS if curvature_of(family, k) == "full" else OTHER_ROUNDS


def is_large(family: str, n_ridges: int, k: int) -> bool:
    """Whether the gradients at all ridges, without each fold, are too large to send in every round."""
    return family != "bias" and 8 * FOLDS * n_ridges * n_parameters(family, k) > FOLD_LARGE


def fit_all(ridges: dict[str, tuple[float, ...]], clients: Clients) -> Generator[SumQuery, Sums, list[Candidate]]:
    """Fit every family at each of its ridges, on all samples and without each fold, all in the same rounds.

    A fit without a fold never starts from one that has seen the fold. If few samples are misclassified, a weakly shrunk map
    fits them all and its loss is flat there, so that steps away from it are too short to forget the fold.

    Families whose Hessian is too large to send come after the others and start from the bias fit, which halves their steps.
    For a large family, one ridge is chosen first, on one fold.
    """
    groups: dict[tuple[str, int], Group] = {}
    begins: dict[str, dict[int, Array]] = {}
    large = {family: of for family, of in ridges.items() if is_large(family, len(of), clients.k)}
    for some in in_turn(ridges, clients.k):
        now: list[Group] = []
        for family in some:
            of = {fold: groups.get(("bias", fold)) for fold in (ALL, *range(FOLDS))}
            begins[family] = {fold: _begin(family, bias, clients) for fold, bias in of.items()}
            groups_of = _without_one_fold if family in large else _with_and_without_folds
            now += groups_of(family, ridges[family], begins[family], clients)
        yield from lockstep(now)
        groups |= {(group.family, group.fold): group for group in now}
    if large:
        chosen = yield from _choose_ridges(large, groups, begins)
        now = []
        for family, of in chosen.items():
            now += _with_and_without_folds(family, of, begins[family], clients, groups[family, ALL].known)
        yield from lockstep(now)
        ridges, groups = ridges | chosen, groups | {(group.family, group.fold): group for group in now}
    return [
        Candidate(family, ridge, groups[family, ALL], *_one_of_each(groups, family, i))
        for family, of in ridges.items()
        for i, ridge in enumerate(of)
    ]


def _begin(family: str, bias: Group | None, clients: Clients) -> Array:
    return widen(bias.descents[-1].t, family) if bias else clients.begin * identity(family, clients.k)


def _with_and_without_folds(
    family: str, ridges: tuple[float, ...], begins: dict[int, Array], clients: Clients, known: Sums | None = None
) -> list[Group]:
    """Fits on all samples, and without each fold."""
    guide = group_of(family, ridges, clients, CHOOSING, rounds_among(family, clients.k), begins[ALL])
    guide.known = known or {}
    return [guide, *(_without_fold(fold, guide, begins, ridges, clients) for fold in range(FOLDS))]


def _without_one_fold(
    family: str, ridges: tuple[float, ...], begins: dict[int, Array], clients: Clients
) -> list[Group]:
    """Fits without the first fold, and one on all samples for their curvature."""
    middle = ridges[len(ridges) // 2 :][:1]
    guide = group_of(family, middle, clients, CHOOSING, rounds_among(family, clients.k), begins[ALL])
    return [guide, _without_fold(0, guide, begins, ridges, clients)]


def _without_fold(
    fold: int, guide: Group, begins: dict[int, Array], ridges: tuple[float, ...], clients: Clients
) -> Group:
    rounds = rounds_among(guide.family, clients.k)
    fits = group_of(guide.family, ridges, clients, CHOOSING / FOLDS, rounds, begins[fold]).descents
    return Group(guide.family, fits, "none", fold, guide)


def _choose_ridges(
    large: dict[str, tuple[float, ...]], groups: dict[tuple[str, int], Group], begins: dict[str, dict[int, Array]]
) -> Generator[SumQuery, Sums, dict[str, tuple[float, ...]]]:
    """The ridge of each family that is best on the first fold; on the other folds all use the map that they started from."""
    candidates = [(family, i) for family, of in large.items() for i in range(len(of))]
    maps_of = (
        FoldMap(family, {fold: begins[family][fold] for fold in range(FOLDS)} | {0: groups[family, 0].descents[i].t})
        for family, i in candidates
    )
    losses = (yield queries.Score(tuple(maps_of)))["sum"]
    best = {
        family: min((float(loss), i) for loss, (of, i) in zip(losses, candidates, strict=True) if of == family)[1]
        for family in large
    }
    return {family: large[family][i : i + 1] for family, i in best.items()}


def _one_of_each(groups: dict[tuple[str, int], Group], family: str, i: int) -> tuple[Descent, dict[int, Descent]]:
    return groups[family, ALL].descents[i], {fold: groups[family, fold].descents[i] for fold in range(FOLDS)}


def finish(candidates: list[Candidate]) -> Generator[SumQuery, Sums, None]:
    """Continue the candidates' fits on all samples until they converge."""
    for of in candidates:
        of.fit.go_on(FITTING, FINISHING_ROUNDS)
    yield from lockstep([Group(of.family, [of.fit], of.group.curvature, known=of.group.known) for of in candidates])


def score(candidates: list[Candidate], clients: Clients) -> Generator[SumQuery, Sums, Scores]:
    """Compare the candidates' losses out of fold."""
    return Scores.of((yield queries.Score(tuple(of.fold_map for of in candidates))), clients)


@dataclass(frozen=True)
class Scores:
    """The candidates' summed losses, inner products of losses, and hits."""

    total: Array
    gram: Array
    hits: Array
    n: float

    @classmethod
    def of(cls, sums: Sums, clients: Clients) -> Scores:
        """Read the sums of `queries.Score`."""
        return cls(sums["sum"], unpack_symmetric(sums["gram"]), sums["hits"], clients.n)

    def paired(self, i: int, j: int) -> tuple[float, float]:
        """Mean of (loss of i − loss of j) over samples, and its standard error."""
        mean = float(self.total[i] - self.total[j]) / max(self.n, 1)
        square = float(self.gram[i, i] - 2 * self.gram[i, j] + self.gram[j, j]) / max(self.n, 1)
        return mean, (max(square - mean**2, 0.0) / max(self.n, 1)) ** 0.5

    def best(self, numbers: Iterable[int]) -> int:
        """Which of these candidates has the least loss."""
        return min(numbers, key=lambda i: float(self.total[i]))


# --- confidence maps and the prior shift -----------------------------------------------------------------------------


def choose_map(histograms: Array, clients: Clients) -> Params:
    """The mean of a beta map and the best histogram map, if it is better than no map out of fold; else nothing.

    In log-odds, the bias of the beta map and the noise of the histogram average out. On held-out data their mean was better
    than either alone, and than a choice between them.

    Args:
        histograms: of out-of-fold confidences, by fold (`maps.fine_histogram`).
        clients: how many samples there are.
    """
    whole = histograms.sum(0)
    betas = [maps.fit_beta(whole - one) for one in histograms]

    def loss_of(pseudo: float, with_beta: bool) -> tuple[float, float]:
        """The summed out-of-fold gain of a map, and the sum of its squares."""
        gain = square = 0.0
        for one, beta in zip(histograms, betas, strict=True):
            found = {"hist": maps.hist_knots(whole - one, pseudo)} | ({"beta": beta} if with_beta else {})
            bins = maps.Bins.of(one)
            by_miss, by_hit = (a - b for a, b in zip(bins.losses({}), bins.losses(found), strict=True))
            gain += bins.total(by_miss, by_hit)
            square += bins.total(by_miss**2, by_hit**2)
        return gain, square

    pseudo = max(PSEUDO, key=lambda p: loss_of(p, False)[0])  # judged without the beta map
    total, square = loss_of(pseudo, True)
    gain = total / clients.n
    error = (max(square / clients.n - gain**2, 0.0) / clients.n) ** 0.5
    if gain <= (0.0 if clients.n >= 300 else error):  # with under 20 samples per bin, chance looks better too often
        return {}
    return {"beta": maps.fit_beta(whole), "hist": maps.hist_knots(whole, pseudo)}


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
