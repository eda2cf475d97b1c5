"""What exact fits ask of clients: sums over their samples, one class per kind of sum.

A query's `sums` is the client's half. Its reply is a flat dict of tensors that the server adds up over clients; no reply
names a sample. Every query carries all that its reply needs, so that a client keeps nothing from one to the next: even its
folds follow from its samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedcal.base.logits import BLOCK, Params, keep_order
from fedcal.base.query import Query, fingerprint
from fedcal.base.store import nest
from fedcal.exact import maps, prior_shift
from fedcal.exact.linear import Curvature, curvature_sums, linear_sums
from fedcal.exact.prepared import ALL, FoldMap, Part, Prepared, outside


@dataclass(frozen=True)
class SumQuery(Query, ABC):
    """A query whose replies are added up."""

    @abstractmethod
    def reply(self, samples: Prepared) -> Params:
        """Return the client's sums: the client's half of an exact fit."""

    def about(self, share: float) -> SumQuery:
        """Return the same query about that share of the samples, where it may be about a share."""
        return self


@dataclass(frozen=True)
class SampleQuery(SumQuery):
    """A query whose reply is a sum over samples, or over a share of them.

    A client of which the share holds nothing replies with nothing.
    """

    share: float = field(default=1.0, kw_only=True)

    @property
    def folded(self) -> bool:
        """Whether the samples must be sorted by fold."""
        return False

    def reply(self, samples: Prepared) -> Params:
        part = samples.part(self.share, self.folded)
        return self.sums(part) if part.y.shape[0] else {}

    @abstractmethod
    def sums(self, part: Part) -> Params:
        """Return the sums over these samples."""

    def about(self, share: float) -> SampleQuery:
        return replace(self, share=share)


@dataclass(frozen=True)
class Start(SampleQuery):
    """How many samples, of which classes, and how large their logits are; with `folds`, how many are in each fold."""

    folds: bool = False

    @property
    def folded(self) -> bool:
        return self.folds

    def sums(self, part: Part) -> Params:
        squares = agreement = 0.0
        for chunk in part.chunks():
            columns, labels = chunk.z.numpy().T, chunk.y.numpy()
            squares += float(np.vdot(columns, columns))
            agreement += float(columns[labels, np.arange(len(labels))].sum())
        found = {
            "n": torch.tensor(float(len(part.y)), dtype=torch.float64),
            "labels": torch.bincount(part.y, minlength=part.k).double(),
            "squares": torch.tensor(squares, dtype=torch.float64),
            "agreement": torch.tensor(agreement, dtype=torch.float64),
        }
        return found | ({"folds": torch.tensor(part.sizes, dtype=torch.float64)} if self.folds else {})


@dataclass(frozen=True)
class Slope(SampleQuery):
    """First and second derivative of the loss by 1/T."""

    b: float  # 1/T

    def sums(self, part: Part) -> Params:
        return {"slope": torch.tensor(part.slope(self.b), dtype=torch.float64)}


@dataclass(frozen=True)
class LinearSums(SampleQuery):
    """Loss, gradient and Hessian (or parts of it) of a linear map on the samples outside each of these folds."""

    family: str
    curvature: Curvature
    at: dict[int, Tensor]  # parameters by fold

    @property
    def folded(self) -> bool:
        return any(fold != ALL for fold in self.at)

    def sums(self, part: Part) -> Params:
        found: Params = {}
        for chunk in part.chunks():
            for fold, t in self.at.items():
                z, y = chunk.outside(fold)
                if not len(y) and f"{fold}/loss" in found:
                    continue
                for key, value in nest(str(fold), linear_sums(self.family, t, z, y, self.curvature)).items():
                    found[key] = found[key] + value if key in found else value
        return found


@dataclass(frozen=True)
class MatrixBlocks(SampleQuery):
    """The matrix family's Hessian, each class with itself, where the vector family's map is `vector`."""

    vector: Tensor

    def sums(self, part: Part) -> Params:
        return {"blocks": sum_of(curvature_sums(self.vector, chunk.z) for chunk in part.chunks())}


@dataclass(frozen=True)
class Score(SampleQuery):
    """Out-of-fold losses of several maps: their sums, their inner products, and how often each map is right."""

    candidates: tuple[FoldMap, ...]

    @property
    def folded(self) -> bool:
        return True

    def sums(self, part: Part) -> Params:
        found: list[Params] = []
        for chunk in part.chunks():
            losses, hits = [], []
            for candidate in self.candidates:
                u = chunk.out_of_fold(candidate)
                losses.append(torch.nn.functional.cross_entropy(u, chunk.y, reduction="none"))
                hits.append(u.argmax(1) == chunk.y)
            found.append(_compare(losses, hits))
        return {name: sum_of(one[name] for one in found) for name in found[0]}


def _compare(losses: list[Tensor], hits: list[Tensor]) -> Params:
    """Sums and inner products: from them follow the mean *and* the standard error of every paired difference."""
    rows = torch.stack(losses)
    return {"sum": rows.sum(1), "gram": rows @ rows.T, "hits": torch.stack(hits).sum(1).double()}


# --- confidence maps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """A label of each sample, and how confident a linear map is of it out of fold."""

    fold_map: FoldMap
    model_top: bool = False  # the model's own top label; else the map's

    @property
    def folded(self) -> bool:
        return ALL not in self.fold_map.at

    def look(self, part: Part) -> tuple[Tensor, Tensor, Tensor]:
        """Return log p, −log(1 − p) and whether the label is right, for each sample."""
        n, first = len(part.y), 0
        log_p, log_q, hit = (torch.empty(n, dtype=d) for d in (torch.float64, torch.float64, torch.bool))
        for chunk in part.chunks():
            u, here = chunk.out_of_fold(self.fold_map), slice(first, first + len(chunk.y))
            label = (chunk.z if self.model_top else u).argmax(1)
            log_p[here], log_q[here] = maps.log_odds(u, label)
            hit[here] = label == chunk.y
            first = here.stop
        return log_p, log_q, hit


@dataclass(frozen=True)
class Histogram(SampleQuery):
    """The fine histogram of the view's confidences, by fold: (folds, 3, bins)."""

    view: View

    @property
    def folded(self) -> bool:
        return True

    def sums(self, part: Part) -> Params:
        values = (value.split(part.sizes) for value in self.view.look(part))
        return {"histogram": torch.stack([maps.fine_histogram(*of_fold) for of_fold in zip(*values, strict=True)])}


@dataclass(frozen=True)
class BetaSums(SampleQuery):
    """Loss, gradient and Hessian of the beta map of the view's confidences, outside each of these folds."""

    view: View
    at: dict[int, Tensor]  # parameters by fold

    @property
    def folded(self) -> bool:
        return self.view.folded or any(fold != ALL for fold in self.at)

    def sums(self, part: Part) -> Params:
        looked, found = self.view.look(part), {}
        for fold, t in self.at.items():
            seen = outside(part.sizes, fold, *looked)
            sums = [maps.beta_sums(t, *some) for some in zip(*(value.split(BLOCK) for value in seen), strict=True)]
            found |= nest(str(fold), {kind: sum_of(one[kind] for one in sums) for kind in sums[0]})
        return found


@dataclass(frozen=True)
class CompareMaps(SampleQuery):
    """Out-of-fold losses of confidence maps: each histogram map, its mean with the beta map (in turn), and no map at all."""

    view: View
    beta: dict[int, Tensor]  # by fold
    hists: tuple[dict[int, Tensor], ...]  # knots by fold

    @property
    def folded(self) -> bool:
        return True

    def sums(self, part: Part) -> Params:
        found = []
        for fold, log_p, log_q, hit in self._by_fold(part):
            beta = maps.map_log_odds({"beta": self.beta[fold]}, log_p, log_q)
            hists = [maps.map_log_odds({"hist": hist[fold]}, log_p, log_q) for hist in self.hists]
            candidates = [v for hist in hists for v in (hist, (hist + beta) / 2)]
            losses = [maps.bernoulli(v, hit) for v in [*candidates, log_p + log_q]]
            found.append(_compare(losses, [hit] * len(losses)))
        return {name: sum_of(one[name] for one in found) for name in found[0]}

    def _by_fold(self, part: Part) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        by_fold = (value.split(part.sizes) for value in self.view.look(part))
        for fold, values in enumerate(zip(*by_fold, strict=True)):
            for some in zip(*(value.split(BLOCK) for value in values), strict=True):
                yield fold, *some


# --- prior shift ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountsLikelihood(SumQuery):
    """Log-likelihood of each client's label counts, for every α of the grid (prior_shift.py)."""

    prior: Tensor

    def reply(self, samples: Prepared) -> Params:
        return {"likelihood": prior_shift.counts_likelihood(client_counts(samples), self.prior)}


@dataclass(frozen=True)
class StrengthWeights(SumQuery):
    """Each client's weights of the strengths of its prior shift, given what is common in the federation."""

    fold_map: FoldMap
    confidence_map: Params
    prior: Tensor
    alpha: Tensor
    weights: Tensor

    def reply(self, samples: Prepared) -> Params:
        return self.weigh(self.likelihood(samples))

    def weigh(self, likelihood: Tensor) -> Params:
        """Return the reply that follows from `likelihood`."""
        weights = prior_shift.posterior(likelihood, self.weights).sum(0)
        return {"posterior": weights, "n": torch.tensor(float(len(likelihood)), dtype=torch.float64)}

    def likelihood(self, samples: Prepared) -> Tensor:
        """Return the log-likelihood of each client's labels at every strength, (clients, strengths)."""
        counts = client_counts(samples)
        return prior_shift.shift_likelihood(self._out_of_fold(samples.part()), counts, self.prior, self.alpha)

    def key(self) -> Tensor:
        """Return a fingerprint of all that the likelihood depends on: the weights alone change from round to round."""
        return torch.frombuffer(
            bytearray.fromhex(fingerprint(replace(self, weights=self.weights[:0]))), dtype=torch.uint8
        )

    def _out_of_fold(self, part: Part) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        client, first = part.client, 0
        for chunk in part.chunks():
            after = first + len(chunk.y)
            u = apply_confidence_map(chunk.out_of_fold(self.fold_map), self.confidence_map)
            yield u, chunk.y, client[first:after]
            first = after


def client_counts(samples: Prepared) -> Tensor:
    """Return how many samples of each class each client has, (clients, K)."""
    return prior_shift.label_counts(samples.labels, samples.client, len(samples.counts), samples.logits.shape[1])


def apply_confidence_map(u: Tensor, confidence_map: Params) -> Tensor:
    """Recalibrate the top label's confidence and keep the order of the classes; unchanged if there is no map."""
    if "beta" not in confidence_map and "hist" not in confidence_map:
        return u
    _, log_p, log_q = maps.top(u)
    return keep_order(maps.lift(u, maps.map_log_odds(confidence_map, log_p, log_q)), u)


# --- several at once -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Several(SumQuery):
    """Queries that travel in one request."""

    queries: tuple[SumQuery, ...]

    def reply(self, samples: Prepared) -> Params:
        replies = (nest(str(i), query.reply(samples)) for i, query in enumerate(self.queries))
        return {name: value for reply in replies for name, value in reply.items()}

    def about(self, share: float) -> Several:
        return Several(tuple(query.about(share) for query in self.queries))


def about_a_share(query: Query) -> bool:
    """Return whether a query, or one of several, is about a share of the samples: a client may then have none of them."""
    if isinstance(query, Several):
        return any(about_a_share(part) for part in query.queries)
    return isinstance(query, SampleQuery) and query.share < 1


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Add up tensors of one shape."""
    first, *others = tensors
    for other in others:
        first = first + other
    return first
