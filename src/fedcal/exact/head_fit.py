"""The server's fits of a last layer: at several ridges, with and without training samples, and without folds."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.folds import FOLDS
from fedcal.exact.candidates import CHOOSING, FOLD_LARGE
from fedcal.exact.groups import distinct_points, lockstep
from fedcal.exact.head import HEAD, HEAD_ALL, n_head_parameters
from fedcal.exact.head_queries import HeadSums
from fedcal.exact.head_units import Bend, Units, head_curvature_of, prior_of_head
from fedcal.exact.linear import Curvature
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.queries import Points, SumQuery
from fedcal.exact.solve import Descent, Prior, Sums
from fedcal.exact.stages import FITTING, Clients

# Per feature: with a ridge of 1, the logits of a new head deviate by about 1 before any sample is seen.
RIDGES = (10.0, 2.0, 0.4, 0.08, 0.016)
UNSURE = 0.1  # of the model's own head, to start from: where a model is sure and wrong, its loss is too flat
CHOOSING_ROUNDS = 12  # most rounds of fits to choose among
FOLD_ROUNDS = 12  # most rounds of the best ones' fits without a fold
FRESH = 4  # rounds at first, and then every so many, in which a Hessian is asked for


@dataclass
class HeadGroup:
    """Descents of heads over the samples outside one fold, in standard units, ordered so that neighbours are similar.

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
    _asked: list[tuple[int, Descent]] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of the samples, how many lie outside the fold."""
        trained = self.units.trained * (self.family == HEAD_ALL)
        return 1.0 if self.fold == ALL else 1 - self.units.held_out / (self.units.held_out + trained) / FOLDS

    def ask(self) -> Points:
        """What clients are asked: each point once, the lead's first; in some rounds the Hessian too."""
        points, self._asked = distinct_points(self.descents)
        self.rounds += 1
        fresh = self.rounds <= FRESH or self.rounds % FRESH == 0
        return Points(self.family, self.fold, self.curvature if fresh else "none", self.units.raw(points))

    def receive(self, sums: Sums) -> None:
        """Pass the sums to the descents."""
        known = self.guide.bends[: self.rounds] if self.guide else self.bends
        latest = [Bend.of(sums, self.units)] if "scale" in sums else known[-1:]
        if latest and latest != self.bends[-1:]:
            for descent in self.descents:
                descent.inverse = latest[0].inverse(descent.prior, self.share)
        self.bends += latest
        gradients, whole = self.units.standard(sums["grad"]), len(self.units.basis) > self.units.d
        exact = "scale" in sums and whole and self.curvature == "full"
        for i, descent in self._asked:
            assert descent.inverse
            descent.receive(float(sums["loss"][i]), gradients[i], descent.inverse, exact and not i)


def fit_together(groups: list[HeadGroup]) -> Generator[SumQuery, Sums, int]:
    """Advance the groups in the same rounds; the basis is sent only if a Hessian is asked for."""
    basis, none = groups[0].units.basis, np.empty((0, 0))
    return lockstep(groups, lambda at: HeadSums(at, basis if any(of.curvature != "none" for of in at) else none))


@dataclass
class HeadCandidate:
    """A head at one ridge: its fits without folds, and on all samples."""

    family: str
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
        found += [HeadCandidate(family, guide, {f: of[i] for f, of in fits.items()}) for i in range(len(ridges))]
    yield from fit_together(groups)
    return found


def finish_heads(candidates: list[HeadCandidate]) -> Generator[SumQuery, Sums, None]:
    """Fit the candidates without the other folds, and on all samples to the end.

    A fit on all samples that does not come to its end stays where it was: as far from it as the fits without a fold, by which
    it is judged. With thousands of features it can be hundreds of nats away, and overfit more with every round.
    """
    groups: list[HeadGroup] = []
    judged = [of.folds[ALL].t for of in candidates]
    for of in candidates:
        whole = of.folds[ALL]
        whole.go_on(FITTING, FOLD_ROUNDS)
        groups.append(HeadGroup(of.family, [whole], of.guide.units, "none"))
        for fold in [f for f in range(FOLDS) if f not in of.folds]:
            of.folds[fold] = begin_head(whole.prior, fold, FOLD_ROUNDS)
            groups.append(HeadGroup(of.family, [of.folds[fold]], of.guide.units, "none", fold, of.guide))
    yield from fit_together(groups)
    for of, t in zip(candidates, judged, strict=True):
        if not of.folds[ALL].arrived:
            of.folds[ALL].t = t
