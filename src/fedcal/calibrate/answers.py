"""What a client answers: sums over its samples, for every kind of question that an additive method asks.

A question is a flat dict of tensors whose names say what is wanted; the answer carries the same names:

    start                     -> samples, labels, squared logits, samples a fold
    slope                     -> first and second derivative of the loss by 1/T
    newton/FAMILY/FOLD        -> loss, gradient and Hessian of a linear map on the samples outside that fold
    gradient/FAMILY/FOLD      -> the same without the Hessian
    curvature/vector          -> the matrix family's diagonal Hessian blocks
    score/NAME/FAMILY/FOLD    -> out-of-fold losses of each NAME: their sums, and their inner products
    watch/FAMILY/FOLD         -> (with what follows) look at the top confidences of that map, out of fold
    histogram                 -> their fine histogram, by fold
    beta/FOLD                 -> loss, gradient and Hessian of the beta map outside that fold
    map/NAME/FOLD             -> out-of-fold losses of each candidate map: their sums, and their inner products
    share                     -> (with any of these) only of that share of the samples; a client may then have nothing to say

FOLD is a number, or `all`, which leaves nothing out. No answer names a sample. The client keeps no state: its folds
follow from its data.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from fedcal.calibrate import maps
from fedcal.calibrate.fit import temperature_sums
from fedcal.calibrate.folds import FOLDS, folds, part
from fedcal.calibrate.linear import apply_linear, centre, curvature_sums, linear_sums
from fedcal.calibrate.scalers import Params
from fedcal.errors import FedCalError
from fedcal.store import unnest

ALL = "all"


class Site:
    """One client's samples, as its answers need them."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:
        self.logits, self.y = logits, labels

    @cached_property
    def z(self) -> Tensor:
        return centre(self.logits)

    @cached_property
    def fold(self) -> Tensor:
        return folds(self.z, self.y)

    def only(self, rows: Tensor) -> None:
        """Keep these samples alone, each in the fold that it had."""
        self.fold, self.z, self.logits, self.y = self.fold[rows], self.z[rows], self.logits[rows], self.y[rows]

    def outside(self, fold: str) -> tuple[Tensor, Tensor]:
        """The samples that a fit for this fold may see."""
        if fold == ALL:
            return self.z, self.y
        keep = self.fold != int(fold)
        return self.z[keep], self.y[keep]

    def out_of_fold(self, family: str, params: dict[str, Tensor]) -> Tensor:
        """Each sample under the map that was fitted without its fold (or, for `all`, the one fitted on everything)."""
        if ALL in params:
            return apply_linear(family, params[ALL], self.z)
        u = torch.zeros_like(self.z)
        for f, t in params.items():
            mine = self.fold == int(f)
            u[mine] = apply_linear(family, t, self.z[mine])
        return u


def answer(question: Params, logits: Tensor, labels: Tensor) -> Params:
    """A client's half of every additive method."""
    site, found = Site(logits, labels), {}
    if "share" in question:
        rows = part(float(question["share"]), logits, labels)
        if not len(rows):
            return {}
        site.only(rows)
    for kind in dict.fromkeys(name.split("/")[0] for name in question):
        if kind not in ANSWERS:
            raise FedCalError(
                f"the server asks for {kind!r}, which this fedcal does not answer: use one version everywhere"
            )
        about = {name: value for name, value in question.items() if name.split("/")[0] == kind}
        found |= ANSWERS[kind](site, about, question)
    return found


def _start(site: Site, about: Params, question: Params) -> Params:
    k = site.z.shape[1]
    return {
        "n": torch.tensor(float(len(site.y)), dtype=torch.float64),
        "labels": torch.bincount(site.y, minlength=k).double(),
        "squares": site.z.square().sum(),
        "folds": torch.bincount(site.fold, minlength=FOLDS).double(),
    }


def _slope(site: Site, about: Params, question: Params) -> Params:
    return {"slope": torch.tensor(temperature_sums(site.logits, site.y)(float(about["slope"])), dtype=torch.float64)}


def _linear(site: Site, about: Params, question: Params) -> Params:
    found = {}
    for name, t in about.items():
        kind, family, fold = name.split("/")
        sums = linear_sums(family, t, *site.outside(fold), hessian=kind == "newton")
        found |= {f"{name}/{part}": value for part, value in sums.items()}
    return found


def _curvature(site: Site, about: Params, question: Params) -> Params:
    return {name: curvature_sums(t, site.z) for name, t in about.items()}


def _score(site: Site, about: Params, question: Params) -> Params:
    losses, hits = [], []
    for candidate in dict.fromkeys(name.rsplit("/", 1)[0] for name in about):
        u = site.out_of_fold(candidate.split("/")[2], unnest(candidate, about))
        losses.append(torch.nn.functional.cross_entropy(u, site.y, reduction="none"))
        hits.append(u.argmax(1) == site.y)
    return _compare("score", losses, hits)


def _compare(kind: str, losses: list[Tensor], hits: list[Tensor]) -> Params:
    """Sums and inner products: from them follow the mean *and* the standard error of every paired difference."""
    rows = torch.stack(losses)
    return {
        f"{kind}/sum": rows.sum(1),
        f"{kind}/gram": rows @ rows.T,
        f"{kind}/hits": torch.stack(hits).sum(1).double(),
    }


def _watched(site: Site, question: Params) -> tuple[Tensor, Tensor, Tensor]:
    """log p, −log(1 − p) and hit of the watched label: the map's top one, or (`watch-own`) the model's own top one."""
    kind = "watch-own" if any(name.startswith("watch-own/") for name in question) else "watch"
    names = [name for name in question if name.split("/")[0] == kind]
    family = names[0].split("/")[1]
    u = site.out_of_fold(family, unnest(f"{kind}/{family}", question))
    label = (site.z if kind == "watch-own" else u).argmax(1)
    return *maps.log_odds(u, label), label == site.y


def _histogram(site: Site, about: Params, question: Params) -> Params:
    log_p, log_q, hit = _watched(site, question)
    by_fold = [maps.fine_histogram(*(x[site.fold == f] for x in (log_p, log_q, hit))) for f in range(FOLDS)]
    return {"histogram": torch.stack(by_fold)}


def _beta(site: Site, about: Params, question: Params) -> Params:
    log_p, log_q, hit = _watched(site, question)
    found = {}
    for name, t in about.items():
        fold = name.split("/")[1]
        seen = torch.ones_like(hit) if fold == ALL else site.fold != int(fold)
        found |= {f"{name}/{part}": v for part, v in maps.beta_sums(t, log_p[seen], log_q[seen], hit[seen]).items()}
    return found


def _map(site: Site, about: Params, question: Params) -> Params:
    log_p, log_q, hit = _watched(site, question)
    losses = []
    for name in dict.fromkeys(name.split("/")[1] for name in about):
        loss = torch.zeros_like(log_p)
        for f in range(FOLDS):
            mine, candidate = site.fold == f, unnest(f"map/{name}/{f}", about)
            loss[mine] = maps.bernoulli(maps.map_log_odds(candidate, log_p[mine], log_q[mine]), hit[mine])
        losses.append(loss)
    losses.append(maps.bernoulli(log_p + log_q, hit))  # no map at all comes last
    return _compare("map", losses, [hit] * len(losses))


def _nothing(site: Site, about: Params, question: Params) -> Params:
    return {}  # said in passing, for another part of the question


ANSWERS = {
    "start": _start,
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
