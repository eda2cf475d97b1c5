"""Stages of an exact fit, as programs that query clients for sums: linear maps, choosing among them, confidence maps."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.folds import FOLDS
from fedcal.exact import maps, prior_shift, queries
from fedcal.exact.groups import Group, lockstep
from fedcal.exact.linear import Curvature, identity, n_parameters, unpack_symmetric, widen
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.queries import Points, SumQuery
from fedcal.exact.solve import Descent, Prior, Sums, warn_if_stopped

NEWTON_MAX = 110  # parameters up to which a Hessian travels in every round
MATRIX_NEWTON_MAX = 20  # the same of a matrix, in classes
BLOCKS_MAX = 128  # classes up to which a matrix's Hessian blocks, about K³ / 2 numbers, are worth sending once
# Nats of the whole summed loss that a fit's last step may still gain. Newton squares what is left.
FITTING = 1e-8
CHOOSING = 1e-1  # of fits to choose among: standard errors of a choice are some nats
ROUNDS, SLOW_ROUNDS = 60, 240  # of one fit at most, with whole Hessians and without
NEWTON_ROUNDS, OTHER_ROUNDS = 11, 10  # of fits to choose among, with whole Hessians and without
FINISHING_ROUNDS = 3  # of the chosen one
FOLD_LARGE = 200_000  # bytes of a family's gradients without each fold: if they are more, its ridge is chosen first
DIAGONAL = 30.0  # precision of a matrix's diagonal at most; vectors choose 10 to 100
PSEUDO = (1000.0, 300.0, 100.0, 30.0, 10.0)  # histogram map: pseudo-samples per bin at the identity
OCTAVES = 2.0 ** np.arange(-3, 4)  # scales around a first guess
GRIDS = 3  # of such scales at most


@dataclass
class Clients:
    """What the server knows of the clients together."""

    k: int
    n: float
    labels: Array  # (K,) how many samples of each class
    mode: float  # of 1/T: 1, or more where the logits are microscopic, and less where they are huge
    begin: float  # a guess of 1/T
    folds_filled: bool


def start(k: int, folded: bool = False) -> Generator[SumQuery, Sums, Clients]:
    """The first two queries: how much there is, whether every fold has some of it, and about which scale it needs."""
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
    clients = Clients(k, n, sums["labels"], mode, begin, folded and bool((sums["folds"] > 0).all()))
    clients.begin = yield from _near_best_scale(clients)
    return clients


def _near_best_scale(clients: Clients) -> Generator[SumQuery, Sums, float]:
    """1/T to about a per cent, mostly in one round: loss and slope on a grid, a cubic where the slope changes sign."""
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
    """What a family's fit is shrunk towards: the closest temperature's map, with no intercepts.

    The ridge counts in natural logit units, so that it has nothing to do with the net's scale: a deviation of a scale is
    measured in units of b. What a smaller family has too is shrunk by the ridge up to what serves that family: intercepts
    by at most 1, a matrix's diagonal by at most DIAGONAL. A ridge that keeps K² entries in check would else hold K scales
    back, and with them the calibration of whole classes.
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
    """What of a family's Hessian is worth sending."""
    if family == "matrix":
        return "full" if k <= MATRIX_NEWTON_MAX else "blocks" if k <= BLOCKS_MAX else "diagonal"
    return "full" if n_parameters(family, k) <= NEWTON_MAX else "diagonal"


def group_of(
    family: str, ridges: tuple[float, ...], clients: Clients, tol: float, rounds: int, begin: Array | None = None
) -> Group:
    """A family's fits at several ridges, all of which start from one map: if none is given, from a temperature's."""
    begin = clients.begin * identity(family, clients.k) if begin is None else begin
    priors = (prior_of(family, ridge, clients) for ridge in ridges)
    return Group(family, [Descent(begin, prior, tol, rounds) for prior in priors], curvature_of(family, clients.k))


def fit_linear(family: str, ridge: float, clients: Clients) -> Generator[SumQuery, Sums, Array]:
    """One family at one ridge, on all samples; one with too large a Hessian to send starts from the bias fit."""
    curvature, begin = curvature_of(family, clients.k), None
    if curvature != "full" and family != "bias":
        begin = widen((yield from fit_linear("bias", ridge, clients)), family)
    # Newton's last step squares what is left; the others have no such step.
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
        """Nats that its fits, on all samples and without each fold, could still gain; its loss out of fold may be wrong by
        about as much."""
        return self.fit.left + sum(descent.left for descent in self.folds.values())


def in_turn(families: Iterable[str], k: int) -> list[list[str]]:
    """The families to fit first, and those after, if any: the ones that start from the bias fit."""
    small = [family for family in families if curvature_of(family, k) == "full" or family == "bias"]
    return [some for some in (small, [family for family in families if family not in small]) if some]


def rounds_among(family: str, k: int) -> int:
    """Rounds at most of a family's fits to choose among."""
    return NEWTON_ROUNDS if curvature_of(family, k) == "full" else OTHER_ROUNDS


def is_large(family: str, n_ridges: int, k: int) -> bool:
    """Whether the gradients without each fold, at all ridges, are too much to send in every round."""
    return family != "bias" and 8 * FOLDS * n_ridges * n_parameters(family, k) > FOLD_LARGE


def fit_all(ridges: dict[str, tuple[float, ...]], clients: Clients) -> Generator[SumQuery, Sums, list[Candidate]]:
    """Fit every family at each of its ridges, on all samples and without each fold, all in the same rounds.

    A fit without a fold never starts from one that has seen the fold. Where few samples are misclassified, a weakly shrunk
    map fits them all, its loss is flat there, and steps away from it are too short to forget the fold.

    Families with too large a Hessian to send come after the others: from the bias fit they need half the steps. Of a large
    family one ridge is chosen first, on one fold.
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
    """Of each family the ridge that is best on the first fold; on the others all have the map that they began with."""
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
    """Go on with the fits on all samples to their ends."""
    for of in candidates:
        of.fit.go_on(FITTING, FINISHING_ROUNDS)
    yield from lockstep([Group(of.family, [of.fit], of.group.curvature, known=of.group.known) for of in candidates])


def score(candidates: list[Candidate], clients: Clients) -> Generator[SumQuery, Sums, Scores]:
    """Compare the candidates' losses out of fold."""
    return Scores.of((yield queries.Score(tuple(of.fold_map for of in candidates))), clients)


@dataclass(frozen=True)
class Scores:
    """Candidates' summed losses, their inner products, and hits."""

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
    """The mean of a beta map and of the best-shrunk histogram map, or none: kept if out of fold it is better.

    In logits, the parametric map's bias and the histogram's noise average out: held out, the mean beat either alone, and
    choosing between them.

    Args:
        histograms: of out-of-fold confidences, by fold (`maps.fine_histogram`).
        clients: how many samples there are.
    """
    whole = histograms.sum(0)
    betas = [maps.fit_beta(whole - one) for one in histograms]

    def loss_of(pseudo: float, with_beta: bool) -> tuple[float, float]:
        """What a map gains out of fold, summed, and the sum of squares of that."""
        gain = square = 0.0
        for one, beta in zip(histograms, betas, strict=True):
            found = {"hist": maps.hist_knots(whole - one, pseudo)} | ({"beta": beta} if with_beta else {})
            bins = maps.Bins.of(one)
            by_miss, by_hit = (a - b for a, b in zip(bins.losses({}), bins.losses(found), strict=True))
            gain += bins.total(by_miss, by_hit)
            square += bins.total(by_miss**2, by_hit**2)
        return gain, square

    pseudo = max(PSEUDO, key=lambda p: loss_of(p, False)[0])  # their means with the beta map lie between
    total, square = loss_of(pseudo, True)
    gain = total / clients.n
    error = (max(square / clients.n - gain**2, 0.0) / clients.n) ** 0.5
    if gain <= (0.0 if clients.n >= 300 else error):  # under 20 samples per bin, chance alone passes "better" too often
        return {}
    return {"beta": maps.fit_beta(whole), "hist": maps.hist_knots(whole, pseudo)}


def fit_prior_shift(fold_map: FoldMap, confidence_map: Params, labels: Array) -> Generator[SumQuery, Sums, Params]:
    """What clients need for their prior shift (prior_shift.py): P, α, and the weights of the strengths.

    Args:
        fold_map: by which a client gets its out-of-fold logits, with `confidence_map` after it.
        confidence_map: beta and hist, or nothing.
        labels: (K,) how many samples of each class the federation has.
    """
    prior = (labels + 0.5) / (labels + 0.5).sum()
    alpha = prior_shift.ALPHAS[(yield queries.CountsLikelihood(prior))["likelihood"].argmax()]
    evidence = (yield queries.ShiftEvidence(fold_map, confidence_map, prior, alpha))["evidence"]
    return {"prior": prior, "alpha": alpha, "strengths": prior_shift.weights_of(evidence)}
