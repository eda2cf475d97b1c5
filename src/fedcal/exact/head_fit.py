"""The server's half of a refitted last layer: fits at several ridges, with and without training samples, and without folds.

The server works in standard units: each feature less its mean, divided by its spread. That is a linear change of the
parameters, so that clients need not know of it, and one ridge serves features of any size.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.folds import FOLDS
from fedcal.base.store import unnest
from fedcal.exact import queries
from fedcal.exact.head import HEAD, HEAD_ALL, n_head_parameters
from fedcal.exact.head_queries import HeadScales, HeadStart, HeadSums
from fedcal.exact.linear import Curvature, between_classes, unpack_symmetric
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.queries import Points, SumQuery
from fedcal.exact.solve import Descent, Inverse, Prior, Sums, changes, lead_first
from fedcal.exact.stages import CHOOSING, FITTING, FOLD_LARGE, Clients, Scores

FULL_MAX_CLASSES = 20  # up to which Hessians hold what couples classes
HESSIAN = 100_000  # numbers of a Hessian that travels: they limit the directions that it is about
BLOCKS = 250_000  # the same where each class is by itself: it travels twice only
HEAD_ROUNDS = 240  # of one fit at most
# Per feature: with a ridge of 1, the logits of a new head deviate by about 1 before samples have spoken.
RIDGES = (10.0, 2.0, 0.4, 0.08, 0.016)
SCALES = 2.0 ** np.linspace(-2, 0.5, 11)
UNSURE = 0.1  # of the model's own head, to start from: where a model is sure and wrong, its loss is too flat
MIN_HEAD_SAMPLES = 75  # to calibrate on: fewer cannot tell whether a head, which fits all of them, is better than a map
CHOOSING_ROUNDS = 12  # of fits to choose among
FOLD_ROUNDS = 12  # of the best ones' fits without a fold
FRESH = 4  # rounds at first, and then every so many, in which a Hessian is asked for
OWN_SPREAD = 0.5  # how much a feature's unit follows its own variance; the rest is the mean variance of all features


def head_curvature_of(k: int) -> Curvature:
    """What of a head's Hessian is worth sending."""
    return "full" if k <= FULL_MAX_CLASSES else "blocks"


def n_directions(k: int, d: int) -> int:
    """In how many directions of the features, and the intercept, a Hessian is asked for."""
    classes, numbers = (k * (k - 1) // 2, HESSIAN) if k <= FULL_MAX_CLASSES else (k, BLOCKS)
    return max(2, min(d + 1, int((2 * numbers / classes) ** 0.5)))


# --- standard units --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Units:
    """Features in standard form: centred, divided by their spread, and turned to the directions in which they vary most.

    The intercept comes first. Directions in which samples vary less come later.
    """

    change: Array  # (d + 1, d + 1): standard inputs, given raw ones, which end in a 1
    variances: Array  # of the standard inputs; of the intercept 1
    k: int
    held_out: float  # samples to calibrate on
    trained: float  # training samples

    @classmethod
    def of(cls, sums: Sums, clients: Clients) -> Units:
        """Read the sums of `HeadStart`."""
        trained = float(sums["trained"].sum())
        moment = unpack_symmetric(sums["moment"]) / (clients.n + trained)
        mean = moment[:-1, -1]
        covariance = moment[:-1, :-1] - np.outer(mean, mean)
        variance = np.maximum(covariance.diagonal(), 0)
        square = OWN_SPREAD * variance + (1 - OWN_SPREAD) * variance.mean()
        rounding = 1e-12 * moment.diagonal()[:-1].max()  # what does not vary more tells nothing
        spread = np.sqrt(np.maximum(np.maximum(square, rounding), 1e-300))
        values, vectors = np.linalg.eigh(covariance / spread / spread[:, None])
        size = len(moment)
        change = np.zeros((size, size))
        change[0, -1] = 1.0
        change[1:, :-1] = vectors[:, ::-1].T / spread
        change[1:, -1] = -change[1:, :-1] @ mean
        variances = np.append(1.0, np.maximum(values[::-1], 0))
        return cls(change, variances, clients.k, clients.n, trained)

    @property
    def d(self) -> int:
        return len(self.change) - 1

    @property
    def basis(self) -> Array:
        """The directions in which Hessians are asked for."""
        return self.change[: n_directions(self.k, self.d)]

    def raw(self, t: Array) -> Array:
        """Heads as clients know them, (…, P), given their standard parameters."""
        return self._turned(t, self.change)

    def standard(self, gradient: Array) -> Array:
        """Gradients by standard parameters, given those by raw ones."""
        return self._turned(gradient, self.change.T)

    def _turned(self, t: Array, by: Array) -> Array:
        rows = t[..., 1:].reshape(*t.shape[:-1], self.k, self.d + 1) @ by
        return np.concatenate([t[..., :1], rows.reshape(*t.shape[:-1], -1)], -1)


# --- curvature -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bend:
    """The curvature of a head's summed loss in standard units: in the directions asked for, and roughly in the others."""

    inside: Array  # (1 + K r, 1 + K r), or (K, r, r) where each class is by itself
    scale: Array
    outside: Array  # (K, d + 1 − r): the diagonal
    units: Units

    @classmethod
    def of(cls, sums: Sums, units: Units) -> Bend:
        """Read the sums of `HeadSums`."""
        hess, k, r = unpack_symmetric(sums["hess"]), units.k, len(units.basis)
        outside = sums["mass"][:, None] * units.variances[r:]
        if head_curvature_of(k) == "blocks":
            return cls(hess, sums["scale"], outside, units)
        inside = np.empty((1 + k * r, 1 + k * r))
        inside[1:, 1:] = between_classes(hess).transpose(0, 2, 1, 3).reshape(k * r, k * r)
        inside[0, 0] = sums["scale"]
        inside[0, 1:] = inside[1:, 0] = sums["cross"].ravel()
        return cls(inside, sums["scale"], outside, units)

    def inverse(self, prior: Prior, share: float = 1.0) -> Inverse:
        """The inverse of that share of it, plus the prior's."""
        k, r = self.units.k, len(self.units.basis)
        precision = prior.precision[1:].reshape(k, -1)
        of_scale = share * self.scale + prior.precision[0]
        below = np.maximum(share * self.outside + precision[:, r:], 1e-300)
        blocks = self.inside.ndim == 3
        if blocks:
            inside = share * self.inside + precision[:, :r, None] * np.eye(r)
        else:
            own = np.append(prior.precision[:1], precision[:, :r])
            inside = share * self.inside + np.diag(own)
        unit = np.sqrt(np.maximum(inside.diagonal(axis1=-2, axis2=-1), 1e-300))
        scaled = inside / unit[..., None] / unit[..., None, :] + 1e-13 * np.eye(inside.shape[-1])

        def solve(gradient: Array) -> Array:
            rows = gradient[1:].reshape(k, -1)
            first = rows[:, :r] if blocks else np.append(gradient[:1], rows[:, :r])
            found = np.linalg.solve(scaled, (first / unit)[..., None])[..., 0] / unit
            scale = gradient[:1] / of_scale if blocks else found[:1]
            lead = found if blocks else found[1:].reshape(k, r)
            return np.append(scale, np.concatenate([lead, rows[:, r:] / below], 1))

        return solve


# --- fits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadPrior(Prior):
    """A ridge alone: ½ Σ precision · (t − identity)². Unlike a temperature, b may come to 0 or below: V is there too."""

    def reach(self, t: Array, move: Array) -> float:
        return 1.0

    def __call__(self, t: Array) -> tuple[float, Array]:
        off = t - self.identity
        return 0.5 * float(self.precision @ off**2), self.precision * off

    def turned(self, t: Array, move: Array) -> Array:
        return self.precision * move


def prior_of_head(ridge: float, units: Units, clients: Clients) -> HeadPrior:
    """Towards the model's own head at about the right temperature.

    A ridge on V, at most a precision of 1 on the intercepts, and on b what one sample is worth.
    """
    row = np.full(units.d + 1, ridge)
    row[0] = min(ridge, 1.0)
    return HeadPrior(own_head(units, clients), np.append(clients.begin**-2, np.tile(row, units.k)))


@dataclass
class HeadGroup:
    """Descents of heads over the samples outside one fold, in standard units; neighbours are alike.

    A group with a `guide` asks for no curvature. The guide is a group over all samples from the same start; its curvature of
    the same round is used here too, less the fold's share. So a group is advanced after its guide, in the same rounds or
    later.
    """

    family: str  # HEAD, or HEAD_ALL with training samples
    descents: list[Descent]
    units: Units
    curvature: Curvature
    fold: int = ALL
    guide: HeadGroup | None = None
    bends: list[Bend] = field(default_factory=list)  # the curvature in each round
    rounds: int = 0
    _asked: list[Descent] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)

    @property
    def live(self) -> bool:
        return not all(descent.done for descent in self.descents)

    @property
    def share(self) -> float:
        """Of the samples, how many lie outside the fold."""
        trained = self.units.trained * (self.family == HEAD_ALL)
        return 1.0 if self.fold == ALL else 1 - self.units.held_out / (self.units.held_out + trained) / FOLDS

    def ask(self) -> Points:
        """What is wanted of the clients: each point once, the lead's first."""
        self._asked = lead_first(self.descents)
        every = np.stack([descent.t for descent in self._asked])
        new = changes(every)
        points, rows = every[new], np.cumsum(new) - 1
        self._rows, self.rounds = rows.tolist(), self.rounds + 1
        fresh = self.rounds <= FRESH or self.rounds % FRESH == 0
        return Points(self.family, self.fold, self.curvature if fresh else "none", self.units.raw(points))

    def receive(self, sums: Sums) -> None:
        """Hand the sums to the descents."""
        known = self.guide.bends[: self.rounds] if self.guide else self.bends
        latest = [Bend.of(sums, self.units)] if "scale" in sums else known[-1:]
        if latest and latest != self.bends[-1:]:
            for descent in self.descents:
                descent.inverse = latest[0].inverse(descent.prior, self.share)
        self.bends += latest
        gradients, whole = self.units.standard(sums["grad"]), len(self.units.basis) > self.units.d
        exact = "scale" in sums and whole and self.curvature == "full"
        for i, descent in zip(self._rows, self._asked, strict=True):
            assert descent.inverse
            descent.receive(float(sums["loss"][i]), gradients[i], descent.inverse, exact and not i)


def head_lockstep(groups: list[HeadGroup]) -> Generator[SumQuery, Sums, None]:
    """Advance groups side by side until all their descents are done, one round of messages for all of them."""
    while live := [group for group in groups if group.live]:
        points = tuple(group.ask() for group in live)
        basis = groups[0].units.basis if any(of.curvature != "none" for of in points) else np.empty((0, 0))
        sums = yield HeadSums(points, basis)
        for i, group in enumerate(live):
            group.receive(unnest(str(i), sums))


def own_head(units: Units, clients: Clients) -> Array:
    """The model's own head at about the right temperature."""
    t = np.zeros(n_head_parameters(units.k, units.d))
    t[0] = clients.begin
    return t


def fit_head(family: str, ridge: float, clients: Clients) -> Generator[SumQuery, Sums, Array]:
    """One head at one ridge, on all samples, to the end; in the units of the features as they are."""
    units = Units.of((yield HeadStart()), clients)
    descent = Descent(UNSURE * own_head(units, clients), prior_of_head(ridge, units, clients), 1e-11, HEAD_ROUNDS)
    yield from head_lockstep([HeadGroup(family, [descent], units, head_curvature_of(units.k))])
    return units.raw(descent.t)


@dataclass
class HeadCandidate:
    """A head at one ridge: its fits without folds, and on all samples."""

    family: str
    ridge: float
    guide: HeadGroup
    folds: dict[int, Descent]  # by fold; ALL is the fit on all samples
    scale: float = 1.0  # by which it is multiplied out of fold, to be neither too sure nor too unsure

    @property
    def fold_map(self) -> FoldMap:
        """Its maps for samples that they were not fitted on; 0 for a fold that no fit has left out yet: the same for all."""
        raw, none = self.guide.units.raw, np.zeros_like(self.guide.descents[0].t)
        return FoldMap(HEAD, {f: self.scale * raw(self.folds[f].t) if f in self.folds else none for f in range(FOLDS)})

    @property
    def trained(self) -> Array:
        """1 if it was fitted on training samples too, else 0."""
        return np.array(float(self.family == HEAD_ALL))

    @property
    def whole(self) -> Array:
        """The head, fitted on all samples."""
        return self.scale * self.guide.units.raw(self.folds[ALL].t)


def begin_head(prior: Prior, fold: int, rounds: int) -> Descent:
    """A fit of a head that has not seen any sample yet.

    A fit without a fold never starts from one that has seen the fold: with many features a weakly shrunk head fits every
    sample, and steps away from it are too short to forget the fold.
    """
    return Descent(UNSURE * prior.identity, prior, CHOOSING if fold == ALL else CHOOSING / FOLDS, rounds)


def folds_to_choose_on(k: int, d: int) -> tuple[int, ...]:
    """The folds on which a ridge is chosen: of large heads the first alone, since gradients at all ridges are large too."""
    sent = 8 * FOLDS * len(RIDGES) * n_head_parameters(k, d)
    return tuple(range(FOLDS)) if sent <= FOLD_LARGE else (0,)


def fit_heads(
    ridges: tuple[float, ...], units: Units, clients: Clients
) -> Generator[SumQuery, Sums, list[HeadCandidate]]:
    """Heads at every ridge, on all samples and without each fold on which a ridge is chosen.

    They are fitted on calibration samples and, where there are any, on training samples too.
    """
    priors = [prior_of_head(ridge, units, clients) for ridge in ridges]
    found: list[HeadCandidate] = []
    groups: list[HeadGroup] = []
    for family in (HEAD, HEAD_ALL) if units.trained else (HEAD,):
        fits = {
            fold: [begin_head(prior, fold, CHOOSING_ROUNDS) for prior in priors]
            for fold in (ALL, *folds_to_choose_on(units.k, units.d))
        }
        guide = HeadGroup(family, fits[ALL], units, head_curvature_of(units.k))
        groups += [guide, *(HeadGroup(family, of, units, "none", f, guide) for f, of in fits.items() if f != ALL)]
        found += [HeadCandidate(family, r, guide, {f: of[i] for f, of in fits.items()}) for i, r in enumerate(ridges)]
    yield from head_lockstep(groups)
    return found


def finish_heads(candidates: list[HeadCandidate]) -> Generator[SumQuery, Sums, None]:
    """Fit the candidates without the other folds, and on all samples to the end."""
    groups: list[HeadGroup] = []
    for of in candidates:
        whole = of.folds[ALL]
        whole.go_on(FITTING, FOLD_ROUNDS)
        groups.append(HeadGroup(of.family, [whole], of.guide.units, "none"))
        for fold in [f for f in range(FOLDS) if f not in of.folds]:
            of.folds[fold] = begin_head(whole.prior, fold, FOLD_ROUNDS)
            groups.append(HeadGroup(of.family, [of.folds[fold]], of.guide.units, "none", fold, of.guide))
    yield from head_lockstep(groups)


# --- choosing --------------------------------------------------------------------------------------------------------


def rescale(candidates: list[HeadCandidate]) -> Generator[SumQuery, Sums, list[float]]:
    """Give every candidate the scale that is best out of fold; returns their losses there.

    Features of training samples are over-fitted, since the model was trained on them: a head that was fitted on them too is
    over-confident, however well it separates the classes. A scale corrects that, so that heads are compared at their best.
    """
    for of in candidates:
        of.scale = 1.0
    losses = (yield HeadScales(tuple(of.fold_map for of in candidates), SCALES))["loss"]
    step = float(SCALES[1] / SCALES[0])
    for of, loss in zip(candidates, losses, strict=True):
        at = min(max(int(loss.argmin()), 1), len(SCALES) - 2)
        low, mid, high = loss[at - 1 : at + 2].tolist()
        bend = low - 2 * mid + high
        of.scale = float(SCALES[at]) * step ** min(max((low - high) / (2 * bend) if bend > 0 else 0.0, -1.0), 1.0)
    return losses.min(1).tolist()


def choose_head(
    plus: FoldMap, is_temperature: bool, clients: Clients
) -> Generator[SumQuery, Sums, HeadCandidate | None]:
    """The best refitted head, if out of fold it beats a linear map of the logits; else None.

    Args:
        plus: that map.
        is_temperature: whether it keeps the model's decisions: to leave those, a head needs two standard errors, and must not
            be right less often.
        clients: their log takes what the head gains.
    """
    if clients.n < MIN_HEAD_SAMPLES:
        return None
    units = Units.of((yield HeadStart()), clients)
    tried = yield from fit_heads(tuple(units.d * ridge for ridge in RIDGES), units, clients)
    losses = yield from rescale(tried)
    families = dict.fromkeys(of.family for of in tried)
    best = [min((i for i, of in enumerate(tried) if of.family == f), key=lambda i: losses[i]) for f in families]
    chosen = [tried[i] for i in best]
    yield from finish_heads(chosen)
    yield from rescale(chosen)
    scores = Scores.of((yield queries.Score((plus, *(of.fold_map for of in chosen)))), clients)
    first = scores.best(range(1, len(chosen) + 1))
    gain, error = scores.paired(0, first)
    as_right = not is_temperature or float(scores.hits[first]) >= float(scores.hits[0])
    enough = gain > max(0.0, (2 if is_temperature else 1) * error)
    return chosen[first - 1] if enough and as_right else None
