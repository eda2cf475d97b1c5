"""Queries of exact fits: sums over clients' samples, one class per kind of sum.

A query's `reply` is the client part. It returns a flat dict of arrays, which the server adds up over clients. A query
contains all that its reply needs besides the samples, so that a client keeps nothing from one reply to the next: even its
folds follow from its samples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedcal.base.arrays import Array, Params, logsumexp, sum_of
from fedcal.base.query import Query
from fedcal.base.store import nest
from fedcal.exact import maps, prior_shift
from fedcal.exact.linear import Curvature, linear_sums, pack_symmetric
from fedcal.exact.prepared import ALL, FoldMap, Part, Prepared


@dataclass(frozen=True)
class SumQuery(Query, ABC):
    """A query whose replies are added up."""

    @abstractmethod
    def reply(self, samples: Prepared) -> Params:
        """Return the client's sums."""


@dataclass(frozen=True)
class Start(SumQuery):
    """Number of samples, label counts, size of the logits and their agreement with labels; with `folds`, the folds' sizes."""

    folds: bool = False

    def reply(self, samples: Prepared) -> Params:
        part, squares, agreement = samples.part(self.folds), 0.0, 0.0
        for chunk in part.chunks():
            columns, labels = chunk.z.T, chunk.y
            squares += float(np.vdot(columns, columns))
            agreement += float(columns[labels, np.arange(len(labels))].sum())
        found = {
            "n": np.array(float(len(part.y))),
            "labels": np.bincount(part.y, minlength=part.k).astype(float),
            "squares": np.array(squares),
            "agreement": np.array(agreement),
        }
        return found | ({"folds": np.array(part.sizes, float)} if self.folds else {})


@dataclass(frozen=True)
class Slope(SumQuery):
    """First and second derivative of the loss with respect to 1/T."""

    b: float  # 1/T

    def reply(self, samples: Prepared) -> Params:
        return {"slope": np.array(samples.part(folded=False).slope(self.b))}


# --- linear maps ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Points:
    """Maps of one family at which sums over the samples outside a fold are wanted, and which part of the first's Hessian."""

    family: str
    fold: int  # or ALL: over all samples
    curvature: Curvature
    at: Array  # (maps, parameters)


@dataclass(frozen=True)
class LinearSums(SumQuery):
    """Loss and gradient of linear maps, and the requested parts of Hessians."""

    points: tuple[Points, ...]

    def reply(self, samples: Prepared) -> Params:
        found: Params = {}
        for chunk in samples.part(any(of.fold != ALL for of in self.points)).chunks():
            for i, of in enumerate(self.points):
                z, y = chunk.outside(of.fold)
                if not len(y) and f"{i}/loss" in found:
                    continue
                for key, value in nest(str(i), linear_sums(of.family, of.at, z, y, of.curvature)).items():
                    found[key] = found[key] + value if key in found else value
        return found


@dataclass(frozen=True)
class Score(SumQuery):
    """Out-of-fold losses of several maps: their sums, their inner products, and how often each map is right.

    From sums and inner products follow the mean *and* the standard error of every paired difference.
    """

    candidates: tuple[FoldMap, ...]

    def reply(self, samples: Prepared) -> Params:
        found: list[Params] = []
        for chunk in samples.part().chunks():
            losses, hits = [], []
            for candidate in self.candidates:
                columns = np.ascontiguousarray(chunk.out_of_fold(candidate).T)  # classes first, which is much faster
                losses.append(logsumexp(columns, 0) - columns[chunk.y, np.arange(len(chunk.y))])
                hits.append(float((columns.argmax(0) == chunk.y).sum()))
            rows = np.stack(losses)
            found.append({"sum": rows.sum(1), "gram": pack_symmetric(rows @ rows.T), "hits": np.array(hits)})
        return {name: sum_of(one[name] for one in found) for name in found[0]}


# --- confidence maps -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Histogram(SumQuery):
    """A fine histogram of a linear map's out-of-fold confidence in one label of each sample: (folds, 5, bins)."""

    fold_map: FoldMap
    model_top: bool = False  # whether that is the model's top label; else it is the map's

    def reply(self, samples: Prepared) -> Params:
        part = samples.part()
        by_fold = np.zeros((len(part.sizes), 5, maps.N_FINE))
        for chunk in part.chunks():
            u = chunk.out_of_fold(self.fold_map)
            label = (chunk.z if self.model_top else u).argmax(1)
            ends = np.cumsum(chunk.sizes)[:-1]
            values = (np.split(value, ends) for value in (*maps.log_odds(u, label), label == chunk.y))
            for fold, of_fold in enumerate(zip(*values, strict=True)):
                if chunk.sizes[fold]:
                    by_fold[fold] += maps.fine_histogram(*of_fold)
        return {"histogram": by_fold}


# --- prior shift ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CountsLikelihood(SumQuery):
    """Log-likelihood of each client's label counts, for every α of the grid (prior_shift.py)."""

    prior: Array

    def reply(self, samples: Prepared) -> Params:
        return {"likelihood": prior_shift.counts_likelihood(client_counts(samples), self.prior)}


@dataclass(frozen=True)
class ShiftEvidence(SumQuery):
    """Log-likelihood of each client's labels after its prior shift, for each distribution of strengths (prior_shift.py)."""

    fold_map: FoldMap
    confidence_map: Params
    prior: Array
    alpha: Array

    def reply(self, samples: Prepared) -> Params:
        out_of_fold, counts = self._out_of_fold(samples.part()), client_counts(samples)
        likelihood = prior_shift.shift_likelihood(out_of_fold, counts, self.prior, self.alpha)
        return {"evidence": prior_shift.evidence(likelihood)}

    def _out_of_fold(self, part: Part) -> Iterator[tuple[Array, Array, Array]]:
        client, first = part.client, 0
        for chunk in part.chunks():
            after = first + len(chunk.y)
            u = maps.apply_confidence_map(chunk.out_of_fold(self.fold_map), self.confidence_map)
            yield u, chunk.y, client[first:after]
            first = after


def client_counts(samples: Prepared) -> Array:
    """Return how many samples of each class each client has, (clients, K)."""
    return prior_shift.label_counts(samples.labels, samples.client, len(samples.counts), samples.logits.shape[1])
