"""What a client answers: sums over its samples, for every kind of question that an additive method asks.

A question is a flat dict of tensors whose names say what is wanted; the answer carries the same names:

    start                     -> samples, labels, squared logits, logits of the labels
    folds                     -> samples in each fold
    slope                     -> first and second derivative of the loss by 1/T
    newton/FAMILY/FOLD        -> loss, gradient and Hessian of a linear map on the samples outside that fold
    gradient/FAMILY/FOLD      -> the same without the Hessian
    curvature/vector          -> the matrix family's diagonal Hessian blocks
    score/NAME/FAMILY/FOLD    -> out-of-fold losses of each NAME, sorted: their sums, and their inner products
    watch/FAMILY/FOLD         -> (with what follows) look at the top confidences of that map, out of fold
    histogram                 -> their fine histogram, by fold
    beta/FOLD                 -> loss, gradient and Hessian of the beta map outside that fold
    map/beta/FOLD, map/histNAME/FOLD -> out-of-fold losses of each histogram map, of its mean with the beta map (for every
                                 NAME in turn, sorted), and of no map: their sums, and their inner products
    share                     -> (with any of these) only of that share of the samples; a client may then have nothing to say

FOLD is a number, or `all`, which leaves nothing out. No answer names a sample. The client keeps no state: its folds
follow from its data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedcal.calibrate import maps
from fedcal.calibrate.fit import temperature_sums
from fedcal.calibrate.folds import FOLDS, folds, part
from fedcal.calibrate.linear import apply_linear, centre, curvature_sums, linear_sums
from fedcal.calibrate.scalers import Params
from fedcal.errors import FedCalError
from fedcal.store import nest, unnest

ALL = "all"


class Site:
    """One client's samples. They are read, and what answers need of them is worked out, when that is first asked for."""

    def __init__(self, read: Callable[[], tuple[Tensor, Tensor]]) -> None:
        self._read = read
        self._latest: tuple[tuple[float, bool], Part] | None = None

    @cached_property
    def _samples(self) -> tuple[Tensor, Tensor]:
        return self._read()

    @property
    def logits(self) -> Tensor:
        return self._samples[0]

    @property
    def labels(self) -> Tensor:
        return self._samples[1]

    def part(self, share: float = 1.0, folded: bool = True) -> Part:
        """That share of the samples, in the order of their folds if these are asked about; the latest one is kept."""
        key = share, folded
        if self._latest is None or self._latest[0] != key:
            self._latest = key, Part(self.logits, self.labels, share, folded)
        return self._latest[1]


class Part:
    """Samples as answers need them. Their order is free, since sums have none: one fold after the other."""

    def __init__(self, logits: Tensor, labels: Tensor, share: float, folded: bool) -> None:
        rows = part(share, logits, labels) if share < 1 else None
        self.sizes = [0] * FOLDS  # samples in each fold
        if folded and (rows is None or rows.shape[0]):  # a sample's fold is the one that it has among all of them
            fold = folds(centre(logits), labels)
            rows = fold.argsort(stable=True) if rows is None else rows[fold[rows].argsort(stable=True)]
            self.sizes = fold[rows].bincount(minlength=FOLDS).tolist()
        self._logits, self._rows = logits, rows
        self.y = labels if rows is None else labels[rows]
        self.watched: tuple[Params, tuple[Tensor, Tensor, Tensor]] | None = None

    @property
    def logits(self) -> Tensor:
        return self._logits if self._rows is None else self._logits[self._rows]

    @cached_property
    def z(self) -> Tensor:
        """`centre`, with classes first in memory, which is what sums run fastest along."""
        columns = np.array(self.logits.numpy().T, float, order="C")
        columns -= columns.sum(axis=0) / len(columns)
        return torch.from_numpy(columns).T

    @cached_property
    def slope(self) -> Callable[[float], tuple[float, float]]:
        """The loss's first two derivatives by 1/T."""
        return temperature_sums(self.logits, self.y)

    def outside(self, fold: str, *values: Tensor) -> list[Tensor]:
        """What a fit for this fold may see of values that stand along the samples (the last axis)."""
        if fold == ALL:
            return list(values)
        first = sum(self.sizes[: int(fold)])
        after = first + self.sizes[int(fold)]
        return [torch.cat([value[..., :first], value[..., after:]], -1) for value in values]

    def out_of_fold(self, family: str, params: dict[str, Tensor]) -> Tensor:
        """Each sample under the map that was fitted without its fold (or, for `all`, the one fitted on everything)."""
        if ALL in params:
            return apply_linear(family, params[ALL], self.z)
        by_fold = self.z.split(self.sizes)
        return torch.cat([apply_linear(family, params[str(f)], z).T for f, z in enumerate(by_fold)], 1).T


def answer(question: Params, site: Site) -> Params:
    """A client's half of every additive method."""
    kinds = dict.fromkeys(name.split("/")[0] for name in question)
    folded = bool(kinds.keys() & FOLDED) or any(name[-1].isdigit() for name in question)
    samples, found = site.part(float(question.get("share", 1.0)), folded), {}
    if not samples.y.shape[0]:
        return {}
    for kind in kinds:
        if kind not in ANSWERS:
            raise FedCalError(
                f"the server asks for {kind!r}, which this fedcal does not answer: use one version everywhere"
            )
        about = {name: value for name, value in question.items() if name.split("/")[0] == kind}
        found |= ANSWERS[kind](samples, about, question)
    return found


def _start(part: Part, about: Params, question: Params) -> Params:
    columns, labels = part.z.numpy().T, part.y.numpy()
    found = {
        "n": float(len(labels)),
        "labels": np.bincount(labels, minlength=len(columns)).astype(float),
        "squares": np.vdot(columns, columns),
        "agreement": columns[labels, np.arange(len(labels))].sum(),
    }
    return {name: torch.from_numpy(np.asarray(value)) for name, value in found.items()}


def _folds(part: Part, about: Params, question: Params) -> Params:
    return {"folds": torch.tensor(part.sizes, dtype=torch.float64)}


def _slope(part: Part, about: Params, question: Params) -> Params:
    return {"slope": torch.tensor(part.slope(float(about["slope"])), dtype=torch.float64)}


def _linear(part: Part, about: Params, question: Params) -> Params:
    found = {}
    for name, t in about.items():
        kind, family, fold = name.split("/")
        columns, y = part.outside(fold, part.z.T, part.y)
        found |= nest(name, linear_sums(family, t, columns.T, y, hessian=kind == "newton"))
    return found


def _curvature(part: Part, about: Params, question: Params) -> Params:
    return {name: curvature_sums(t, part.z) for name, t in about.items()}


def _score(part: Part, about: Params, question: Params) -> Params:
    losses, hits = [], []
    for candidate in sorted({name.rsplit("/", 1)[0] for name in about}):
        u = part.out_of_fold(candidate.split("/")[2], unnest(candidate, about))
        losses.append(torch.nn.functional.cross_entropy(u, part.y, reduction="none"))
        hits.append(u.argmax(1) == part.y)
    return _compare("score", losses, hits)


def _compare(kind: str, losses: list[Tensor], hits: list[Tensor]) -> Params:
    """Sums and inner products: from them follow the mean *and* the standard error of every paired difference."""
    rows = torch.stack(losses)
    return {
        f"{kind}/sum": rows.sum(1),
        f"{kind}/gram": rows @ rows.T,
        f"{kind}/hits": torch.stack(hits).sum(1).double(),
    }


def _watched(part: Part, question: Params) -> tuple[Tensor, Tensor, Tensor]:
    """log p, −log(1 − p) and hit of the watched label: the map's top one, or (`watch-own`) the model's own top one."""
    if part.watched is None or part.watched[0] is not question:  # several parts of a question may look at them
        kind = "watch-own" if any(name.startswith("watch-own/") for name in question) else "watch"
        family = next(name.split("/")[1] for name in question if name.startswith(f"{kind}/"))
        u = part.out_of_fold(family, unnest(f"{kind}/{family}", question))
        label = (part.z if kind == "watch-own" else u).argmax(1)
        part.watched = question, (*maps.log_odds(u, label), label == part.y)
    return part.watched[1]


def _histogram(part: Part, about: Params, question: Params) -> Params:
    values = (value.split(part.sizes) for value in _watched(part, question))
    return {"histogram": torch.stack([maps.fine_histogram(*of_fold) for of_fold in zip(*values, strict=True)])}


def _beta(part: Part, about: Params, question: Params) -> Params:
    watched, found = _watched(part, question), {}
    for name, t in about.items():
        found |= nest(name, maps.beta_sums(t, *part.outside(name.split("/")[1], *watched)))
    return found


def _map(part: Part, about: Params, question: Params) -> Params:
    log_p, log_q, hit = _watched(part, question)
    by_fold = list(zip(log_p.split(part.sizes), log_q.split(part.sizes), strict=True))
    beta, *hists = (  # in this order
        torch.cat([maps.map_log_odds({name[:4]: about[f"map/{name}/{f}"]}, *v) for f, v in enumerate(by_fold)])
        for name in sorted({name.split("/")[1] for name in about})
    )
    candidates = [v for hist in hists for v in (hist, (hist + beta) / 2)]
    losses = [maps.bernoulli(v, hit) for v in [*candidates, log_p + log_q]]  # no map at all comes last
    return _compare("map", losses, [hit] * len(losses))


def _nothing(part: Part, about: Params, question: Params) -> Params:
    return {}  # said in passing, for another part of the question


FOLDED = {"folds", "histogram", "map"}  # kinds of question that ask about folds, whatever comes after their name

ANSWERS = {
    "start": _start,
    "folds": _folds,
    "slope": _slope,
    "newton": _linear,
    "gradient": _linear,
    "curvature": _curvature,
    "score": _score,
    "watch": _nothing,
    "watch-own": _nothing,
    "histogram": _histogram,
    "beta": _beta,
    "map": _map,
    "share": _nothing,
}
