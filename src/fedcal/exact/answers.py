"""What a client answers: sums over its samples, for every kind of question that an additive method asks.

A question is a flat dict of tensors whose names say what is wanted; the answer carries the same names:

    start                     -> samples, labels, squared logits, logits of the labels
    folds                     -> samples in each fold
    slope                     -> first and second derivative of the loss by 1/T
    newton/FAMILY/FOLD        -> loss, gradient and Hessian of a linear map on the samples outside that fold
    diagonal/FAMILY/FOLD      -> loss and gradient, and of the Hessian only what couples a class with itself
    gradient/FAMILY/FOLD      -> loss and gradient
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

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedcal.base.folds import FOLDS, folds, part
from fedcal.base.logits import BLOCK, Params
from fedcal.base.store import nest, unnest
from fedcal.errors import FedCalError
from fedcal.exact import maps
from fedcal.exact.linear import Curvature, apply_linear, centred_columns, curvature_sums, linear_sums
from fedcal.exact.temperature import KEPT, temperature_sums

ALL = "all"


class Site:
    """The samples of a client, or of several small ones that answer as one (`counts`: how many each of them has).

    They are read, and what answers need of them is worked out, when that is first asked for.
    """

    def __init__(self, read: Callable[[], tuple[Tensor, Tensor]], counts: list[int] | None = None) -> None:
        self._read, self._counts = read, counts
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

    @property
    def counts(self) -> list[int]:
        return self._counts or [len(self.labels)]

    @cached_property
    def client(self) -> Tensor:
        """Which of the clients each sample belongs to."""
        if len(self.counts) == 1:
            return torch.zeros((), dtype=torch.int64).expand(len(self.labels))
        return torch.repeat_interleave(torch.arange(len(self.counts)), torch.tensor(self.counts))

    def part(self, share: float = 1.0, folded: bool = True) -> Part:
        """That share of the samples, in the order of their folds if these are asked about; the latest one is kept."""
        key = share, folded
        if self._latest is None or self._latest[0] != key:
            self._latest = key, Part(self, share, folded)
        return self._latest[1]


@dataclass(frozen=True)
class Chunk:
    """Samples that are handled at once: row-centred logits in float64, labels, and how many are of each fold, in order."""

    z: Tensor  # (n, K), with classes first in memory, which is what sums run fastest along
    y: Tensor
    sizes: list[int]

    def outside(self, fold: str) -> tuple[Tensor, Tensor]:
        """What a fit for this fold may see."""
        columns, y = outside(self.sizes, fold, self.z.T, self.y)
        return columns.T, y

    def out_of_fold(self, family: str, params: dict[str, Tensor]) -> Tensor:
        """Each sample under the map that was fitted without its fold (or, for `all`, the one fitted on everything)."""
        if ALL in params:
            return apply_linear(family, params[ALL], self.z)
        by_fold = self.z.split(self.sizes)
        return torch.cat([apply_linear(family, params[str(f)], z).T for f, z in enumerate(by_fold)], 1).T


class Part:
    """Samples as answers need them. Their order is free, since sums have none: one fold after the other."""

    def __init__(self, site: Site, share: float, folded: bool) -> None:
        self._site, self._logits, self._rows = site, site.logits, None
        self.k, self.sizes = site.logits.shape[1], [len(site.labels), *[0] * (FOLDS - 1)]  # samples of each fold
        if folded or share < 1:
            self._rows, self.sizes = _rows(site, share, folded)
        self.y = site.labels if self._rows is None else site.labels[self._rows]
        self.watched: tuple[Params, tuple[Tensor, Tensor, Tensor]] | None = None

    @property
    def logits(self) -> Tensor:
        return self._logits if self._rows is None else self._logits[self._rows]

    @property
    def client(self) -> Tensor:
        """Which of the site's clients each sample belongs to."""
        client = self._site.client
        alike = self._rows is None or len(self._site.counts) == 1
        return client[: len(self.y)] if alike else client[self._rows]

    def chunks(self) -> Iterator[Chunk]:
        """All samples, a core's cache full at a time; of a small client that is one chunk, and it is kept."""
        if self.k * len(self.y) <= BLOCK:
            yield self._small
            return
        rows, first = max(1, BLOCK // self.k), 0
        for fold, size in enumerate(self.sizes):
            for start in range(first, first + size, rows):
                stop = min(start + rows, first + size)
                sizes = [stop - start if f == fold else 0 for f in range(FOLDS)]
                yield Chunk(self._columns(start, stop), self.y[start:stop], sizes)
            first += size

    @cached_property
    def _small(self) -> Chunk:
        return Chunk(self._columns(0, len(self.y)), self.y, self.sizes)

    def _columns(self, start: int, stop: int) -> Tensor:
        """The row-centred logits of these samples."""
        if self.k * len(self.y) <= KEPT:
            return self._all[start:stop]
        rows = slice(start, stop) if self._rows is None else self._rows[start:stop]
        return centred_columns(self._logits[rows])

    @cached_property
    def _all(self) -> Tensor:
        return centred_columns(self.logits)

    @cached_property
    def slope(self) -> Callable[[float], tuple[float, float]]:
        """The loss's first two derivatives by 1/T."""
        return temperature_sums(self.logits, self.y)


def _rows(site: Site, share: float, folded: bool) -> tuple[Tensor, list[int]]:
    """The samples of that share in the order of their folds, and how many are of each; every client has folds of its own.

    A sample's fold is the one that it has among all samples of its client.
    """
    if len(site.counts) == 1 and share == 1:  # the general case below would hold several arrays of the samples' length
        own = folds(site.logits, site.labels)
        return own.argsort(stable=True), own.bincount(minlength=FOLDS).tolist()
    rows, fold, first = [], [], 0
    for count in site.counts:
        logits, labels = site.logits[first : first + count], site.labels[first : first + count]
        mine = part(share, logits, labels) if share < 1 else torch.arange(count)
        rows.append(first + mine)
        fold.append(folds(logits, labels)[mine] if folded and len(mine) else torch.zeros_like(mine).char())
        first += count
    found = torch.cat(fold)
    return torch.cat(rows)[found.argsort(stable=True)], found.bincount(minlength=FOLDS).tolist()


def outside(sizes: list[int], fold: str, *values: Tensor) -> list[Tensor]:
    """What a fit for this fold may see of values that stand along the samples (the last axis), fold after fold."""
    if fold == ALL or not sizes[int(fold)]:
        return list(values)
    first = sum(sizes[: int(fold)])
    after = first + sizes[int(fold)]
    return [torch.cat([value[..., :first], value[..., after:]], -1) for value in values]


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
    samples.watched = None  # of use within one request only, and as long as the samples
    return found


def _start(part: Part, about: Params, question: Params) -> Params:
    squares = agreement = 0.0
    for chunk in part.chunks():
        columns, labels = chunk.z.numpy().T, chunk.y.numpy()
        squares += float(np.vdot(columns, columns))
        agreement += float(columns[labels, np.arange(len(labels))].sum())
    return {
        "n": torch.tensor(float(len(part.y)), dtype=torch.float64),
        "labels": torch.bincount(part.y, minlength=part.k).double(),
        "squares": torch.tensor(squares, dtype=torch.float64),
        "agreement": torch.tensor(agreement, dtype=torch.float64),
    }


def _folds(part: Part, about: Params, question: Params) -> Params:
    return {"folds": torch.tensor(part.sizes, dtype=torch.float64)}


def _slope(part: Part, about: Params, question: Params) -> Params:
    return {"slope": torch.tensor(part.slope(float(about["slope"])), dtype=torch.float64)}


def _linear(part: Part, about: Params, question: Params) -> Params:
    found: Params = {}
    for chunk in part.chunks():
        for name, t in about.items():
            kind, family, fold = name.split("/")
            z, y = chunk.outside(fold)
            if not len(y) and name in found:
                continue
            for key, value in nest(name, linear_sums(family, t, z, y, CURVATURE[kind])).items():
                found[key] = found[key] + value if key in found else value
    return found


def _curvature(part: Part, about: Params, question: Params) -> Params:
    return {name: sum_of(curvature_sums(t, chunk.z) for chunk in part.chunks()) for name, t in about.items()}


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Tensors of one shape added up."""
    first, *others = tensors
    for other in others:
        first = first + other
    return first


def _score(part: Part, about: Params, question: Params) -> Params:
    candidates = sorted({name.rsplit("/", 1)[0] for name in about})
    found: list[Params] = []
    for chunk in part.chunks():
        losses, hits = [], []
        for candidate in candidates:
            u = chunk.out_of_fold(candidate.split("/")[2], unnest(candidate, about))
            losses.append(torch.nn.functional.cross_entropy(u, chunk.y, reduction="none"))
            hits.append(u.argmax(1) == chunk.y)
        found.append(_compare("score", losses, hits))
    return {name: sum_of(one[name] for one in found) for name in found[0]}


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
        params, n, first = unnest(f"{kind}/{family}", question), len(part.y), 0
        log_p, log_q, hit = (torch.empty(n, dtype=d) for d in (torch.float64, torch.float64, torch.bool))
        for chunk in part.chunks():
            u, here = chunk.out_of_fold(family, params), slice(first, first + len(chunk.y))
            label = (chunk.z if kind == "watch-own" else u).argmax(1)
            log_p[here], log_q[here] = maps.log_odds(u, label)
            hit[here] = label == chunk.y
            first = here.stop
        part.watched = question, (log_p, log_q, hit)
    return part.watched[1]


def _histogram(part: Part, about: Params, question: Params) -> Params:
    values = (value.split(part.sizes) for value in _watched(part, question))
    return {"histogram": torch.stack([maps.fine_histogram(*of_fold) for of_fold in zip(*values, strict=True)])}


def _beta(part: Part, about: Params, question: Params) -> Params:
    watched, found = _watched(part, question), {}
    for name, t in about.items():
        seen = outside(part.sizes, name.split("/")[1], *watched)
        sums = [maps.beta_sums(t, *some) for some in zip(*(value.split(BLOCK) for value in seen), strict=True)]
        found |= nest(name, {kind: sum_of(one[kind] for one in sums) for kind in sums[0]})
    return found


def _map(part: Part, about: Params, question: Params) -> Params:
    names, found = sorted({name.split("/")[1] for name in about}), []
    for fold, log_p, log_q, hit in _watched_by_fold(part, question):
        beta, *hists = (  # in this order
            maps.map_log_odds({name[:4]: about[f"map/{name}/{fold}"]}, log_p, log_q) for name in names
        )
        candidates = [v for hist in hists for v in (hist, (hist + beta) / 2)]
        losses = [maps.bernoulli(v, hit) for v in [*candidates, log_p + log_q]]  # no map at all comes last
        found.append(_compare("map", losses, [hit] * len(losses)))
    return {name: sum_of(one[name] for one in found) for name in found[0]}


def _watched_by_fold(part: Part, question: Params) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """What is watched of the samples of each fold, some at a time."""
    by_fold = (value.split(part.sizes) for value in _watched(part, question))
    for fold, values in enumerate(zip(*by_fold, strict=True)):
        for some in zip(*(value.split(BLOCK) for value in values), strict=True):
            yield fold, *some


def _nothing(part: Part, about: Params, question: Params) -> Params:
    return {}  # said in passing, for another part of the question


CURVATURE: dict[str, Curvature] = {"newton": "full", "diagonal": "diagonal", "gradient": "none"}
FOLDED = {"folds", "histogram", "map"}  # kinds of question that ask about folds, whatever comes after their name

ANSWERS = {
    "start": _start,
    "folds": _folds,
    "slope": _slope,
    "newton": _linear,
    "diagonal": _linear,
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
