"""The samples of a client that has the model: features in addition to logits, and training samples.

Every transport carries a matrix and labels. For a method that takes features, a row of the matrix is

    [ logits (K) | features (d) | 1 for a training sample, else 0 ]

and `HeadSamples` splits it. Queries about logits see the calibration samples only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.folds import FOLDS
from fedcal.exact.head import HEAD, Block, apply_head, blocks_of
from fedcal.exact.prepared import ALL, Chunk, FoldMap, Part, Prepared, count_parts

SOME = 256  # samples on which the size of a head's logits is measured
TRAINED = -2  # the fold of a training sample: no fit leaves it out


def join(logits: Array, features: Array, trained: bool = False) -> Array:
    """The rows of samples that are all of one kind."""
    return np.concatenate([logits, features, np.full_like(features[:, :1], float(trained))], 1)


class HeadSamples(Prepared):
    """The samples of one client, or of several small ones that reply as one; logits and labels are of calibration samples.

    Args:
        rows: the samples as given.
        d: number of features.
    """

    def __init__(self, rows: Prepared, d: int) -> None:
        super().__init__(self._read_held_out)
        self.rows, self.d, self.fewest = rows, d, rows.fewest
        self._latest_part: tuple[bool, HeadPart] | None = None

    @property
    def k(self) -> int:
        """The number of classes."""
        return self.rows.logits.shape[1] - self.d - 1

    @property
    def scores(self) -> Array:
        """The rows of the samples to calibrate on."""
        return self.rows.logits[self._split[0]]

    @cached_property
    def _split(self) -> tuple[slice | Array, slice | Array]:
        """Which rows are held out, and which are training samples; slices if they come in that order, to avoid a copy."""
        trained = self.rows.logits[:, -1] > 0
        held_out = len(trained) - int(trained.sum())
        if 0 < len(trained) - held_out < self.min_count:  # heads with and without them would reveal these few
            return np.flatnonzero(~trained), np.zeros(0, np.int64)
        if not bool(trained[:held_out].any()):
            return slice(0, held_out), slice(held_out, len(trained))
        return np.flatnonzero(~trained), np.flatnonzero(trained)

    def _read_held_out(self) -> tuple[Array, Array]:
        here = self._split[0]
        return self.rows.logits[here, : self.k], self.rows.labels[here]

    @property
    def counts(self) -> list[int]:
        counts = self.rows.counts
        if len(counts) == 1:
            return [len(self.labels)]
        trained = self.rows.logits[:, -1] > 0
        return [len(part) - int(part.sum()) for part in np.split(trained, np.cumsum(counts)[:-1])]

    def _chosen(self, chosen: Array, fitting: bool) -> HeadSamples:
        """Some of the samples to calibrate on; training samples are among those to fit on."""
        calibrating, trained = self._split
        kept = np.zeros(len(self.rows.labels), bool)
        kept[calibrating] = chosen
        kept[trained] = fitting
        rows = Prepared(lambda: (self.rows.logits[kept], self.rows.labels[kept]), count_parts(kept, self.rows.counts))
        part = HeadSamples(rows, self.d)
        part.fewest, part.min_count = self.fewest, self.min_count
        return part

    @cached_property
    def features(self) -> Array:
        """(N, d), of the samples to calibrate on."""
        return self._features(self._split[0])

    def _features(self, which: slice | Array) -> Array:
        return self.rows.logits[which, self.k : self.k + self.d]

    @cached_property
    def trained_labels(self) -> Array:
        return self.rows.labels[self._split[1]]

    @cached_property
    def fold(self) -> Array:
        """The fold of each sample to calibrate on."""
        part = self.part()
        found = np.empty(len(part.y), np.int64)
        found[part.order] = np.repeat(np.arange(FOLDS), part.sizes)
        return found

    def largest(self, t: Array) -> float:
        """The root mean square of the row-centred logits that a head gives on some of the samples."""
        z, x = self.logits[:SOME].astype(float), self.features[:SOME].astype(float)
        u = apply_head(t.astype(float), z - z.mean(axis=1, keepdims=True), x)
        return float(np.sqrt(np.square(u - u.mean(axis=1, keepdims=True)).mean())) if u.size else 0.0

    def held_out_blocks(self) -> Iterator[Block]:
        """The samples to calibrate on, with their folds."""
        return blocks_of(self.logits, self.features, self.labels, self.fold, self.k)

    def trained_blocks(self) -> Iterator[Block]:
        """The training samples."""
        which, labels = self._split[1], self.trained_labels
        logits = self.rows.logits[which, : self.k]
        return blocks_of(logits, self._features(which), labels, np.full(len(labels), TRAINED), self.k)

    def part(self, folded: bool = True) -> HeadPart:
        if self._latest_part is None or self._latest_part[0] != folded:
            self._latest_part = folded, HeadPart(self, folded)
        return self._latest_part[1]


@dataclass(frozen=True)
class HeadChunk(Chunk):
    """Samples that are processed at once, with their features."""

    features: Array  # (n, d)

    def out_of_fold(self, fold_map: FoldMap) -> Array:
        if fold_map.family != HEAD:
            return super().out_of_fold(fold_map)
        at = [fold_map.at[ALL]] if ALL in fold_map.at else [fold_map.at[f] for f in range(FOLDS)]
        cuts = np.cumsum(self.sizes)[: len(at) - 1]
        parts = zip(at, np.split(self.z, cuts), np.split(self.features, cuts), strict=True)
        return np.ascontiguousarray(np.concatenate([apply_head(t, z, x.astype(float)) for t, z, x in parts]))


class HeadPart(Part):
    """Samples in the order of their folds, with their features."""

    def __init__(self, samples: HeadSamples, folded: bool) -> None:
        super().__init__(samples, folded)
        self._features = samples.features

    @property
    def order(self) -> Array:
        """The number of each sample, in the order of their folds."""
        return np.arange(len(self.y)) if self._rows is None else self._rows

    def chunks(self) -> Iterator[HeadChunk]:
        first, order = 0, self.order
        for chunk in super().chunks():
            after = first + len(chunk.y)
            yield HeadChunk(chunk.z, chunk.y, chunk.sizes, self._features[order[first:after]])
            first = after
