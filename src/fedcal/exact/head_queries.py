"""Queries of a fit of the last layer: sums over clients' features. Its queries about logits are in queries.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcal.base.arrays import Array, Params, logsumexp
from fedcal.exact.head import HEAD_ALL, head_curvature, head_sums
from fedcal.exact.head_samples import HeadSamples
from fedcal.exact.prepared import FoldMap, Prepared
from fedcal.exact.queries import Points, SumQuery


@dataclass(frozen=True)
class HeadStart(SumQuery):
    """The second moment of the features with a 1 appended, over all samples, and the label counts of training samples."""

    def reply(self, samples: Prepared) -> Params:
        assert isinstance(samples, HeadSamples)
        moment = np.zeros((samples.d + 1, samples.d + 1))
        for blocks in (samples.held_out_blocks(), samples.trained_blocks()):
            for _, x, _, _ in blocks:
                moment += x @ x.T
        trained = np.bincount(samples.trained_labels, minlength=samples.k)
        return _doubles({"moment": moment[np.triu_indices(len(moment))], "trained": trained})


@dataclass(frozen=True)
class HeadSums(SumQuery):
    """Loss and gradient of heads, and the requested parts of Hessians."""

    points: tuple[Points, ...]  # of the families `head` and `head-all`
    basis: Array  # (r, d + 1), directions of the features for the Hessians

    def reply(self, samples: Prepared) -> Params:
        assert isinstance(samples, HeadSamples)
        maps = [len(of.at) for of in self.points]
        at = np.concatenate([of.at for of in self.points])
        without = np.repeat([of.fold for of in self.points], maps)
        both = np.repeat([of.family == HEAD_ALL for of in self.points], maps)
        loss, grad = head_sums(at, without, samples.held_out_blocks())
        if both.any() and len(samples.trained_labels):
            more = head_sums(at[both], without[both], samples.trained_blocks())
            loss[both] += more[0]
            grad[both] += more[1]
        found: dict[str, Array] = {}
        ends = np.cumsum([0, *maps])
        for i, of in enumerate(self.points):
            here = slice(ends[i], ends[i + 1])
            found |= {f"{i}/loss": loss[here], f"{i}/grad": grad[here]}
            if of.curvature != "none":
                found |= {f"{i}/{name}": value for name, value in _curvature(of, self.basis, samples).items()}
        return _doubles(found)


def _curvature(of: Points, basis: Array, samples: HeadSamples) -> dict[str, Array]:
    first = of.at[0]
    found = head_curvature(first, of.fold, of.curvature, basis, samples.held_out_blocks())
    if of.family == HEAD_ALL and len(samples.trained_labels):
        more = head_curvature(first, of.fold, of.curvature, basis, samples.trained_blocks())
        found = {name: value + more[name] for name, value in found.items()}
    return found


@dataclass(frozen=True)
class HeadScales(SumQuery):
    """Out-of-fold losses of several heads, each at several scales: (heads, scales)."""

    candidates: tuple[FoldMap, ...]
    scales: Array

    def reply(self, samples: Prepared) -> Params:
        assert isinstance(samples, HeadSamples)
        found = np.zeros((len(self.candidates), len(self.scales)))
        for chunk in samples.part().chunks():
            for i, candidate in enumerate(self.candidates):
                u = chunk.out_of_fold(candidate)
                scaled = u.T * self.scales[:, None, None]  # (scales, K, n)
                of_label = scaled[:, chunk.y, np.arange(len(chunk.y))]
                found[i] += (logsumexp(scaled, 1) - of_label).sum(1)
        return {"loss": found}


def _doubles(found: dict[str, Array]) -> Params:
    return {name: np.asarray(value, float) for name, value in found.items()}
