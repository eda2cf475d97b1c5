"""A client's samples, prepared for sums: in the order of their folds, row-centred, a cache-sized chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, as_array
from fedcal.base.folds import FEWEST, FOLDS, folds, held_out
from fedcal.base.logits import BLOCK
from fedcal.exact.linear import apply_linear, centred_columns
from fedcal.exact.temperature import KEPT, temperature_sums

ALL = -1  # in place of a fold's number: no fold is left out


@dataclass(frozen=True)
class FoldMap:
    """A linear map for every fold, fitted without that fold's samples; or one map, under ALL, for all samples."""

    family: str
    at: dict[int, Array]  # parameters by fold


class Prepared:
    """The samples of one client, or of several small ones that reply as one.

    The samples are read, and other forms of them computed, on first use. Everything kept here follows from the samples:
    losing it costs only time.

    Args:
        read: gives logits (N, K) and labels (N,), as arrays or tensors.
        counts: the number of samples of each client, whose samples follow one another; None: all are of one client.
    """

    def __init__(self, read: Callable[[], tuple[Any, Any]], counts: list[int] | None = None) -> None:
        self._read, self._counts = read, counts
        self._latest: tuple[bool, Part] | None = None
        self.fewest = FEWEST  # samples in a fold
        self.min_count = 1  # the policy's limit: a reply reveals nothing about fewer samples of any kind

    @cached_property
    def _samples(self) -> tuple[Array, Array]:
        logits, labels = self._read()
        return as_array(logits), as_array(labels)

    @property
    def logits(self) -> Array:
        return self._samples[0]

    @property
    def scores(self) -> Array:
        """A scaler's input for these samples: the logits, for some methods with features (head_samples.py)."""
        return self.logits

    @property
    def labels(self) -> Array:
        return self._samples[1]

    @property
    def counts(self) -> list[int]:
        return self._counts or [len(self.labels)]

    @cached_property
    def client(self) -> Array:
        """Which of the clients each sample belongs to."""
        if len(self.counts) == 1:
            return np.broadcast_to(np.int64(0), len(self.labels))
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def split(self) -> tuple[Prepared, Prepared]:
        """The samples to fit on, and those held out for conformal sets; each client is split by itself."""
        ends = np.cumsum(self.counts)[:-1]
        pairs = zip(np.split(self.scores, ends), np.split(self.labels, ends), strict=True)
        held = np.concatenate([held_out(scores, labels) for scores, labels in pairs])
        return self._chosen(~held, fitting=True), self._chosen(held, fitting=False)

    def _chosen(self, chosen: Array, fitting: bool) -> Prepared:
        """Some of the samples: those to fit on, or those that are held out."""
        part = Prepared(lambda: (self.logits[chosen], self.labels[chosen]), count_parts(chosen, self.counts))
        part.fewest = self.fewest
        return part

    def part(self, folded: bool = True) -> Part:
        """Return the samples, sorted by fold if `folded`; the latest result is kept."""
        if self._latest is None or self._latest[0] != folded:
            self._latest = folded, Part(self, folded)
        return self._latest[1]


def count_parts(chosen: Array, counts: list[int]) -> list[int]:
    """How many samples of each client are chosen."""
    return [int(part.sum()) for part in np.split(chosen, np.cumsum(counts)[:-1])]


@dataclass(frozen=True)
class Chunk:
    """Samples that are processed at once: row-centred float64 logits, labels, and each fold's number of samples, in order."""

    z: Array  # (n, K), with classes first in memory: sums are fastest then
    y: Array
    sizes: list[int]

    def outside(self, fold: int) -> tuple[Array, Array]:
        """Return logits and labels of the samples outside this fold; all of them for ALL."""
        if fold == ALL or not self.sizes[fold]:
            return self.z, self.y
        first = sum(self.sizes[:fold])
        after = first + self.sizes[fold]
        columns = np.concatenate([self.z.T[:, :first], self.z.T[:, after:]], 1)
        return columns.T, np.concatenate([self.y[:first], self.y[after:]])

    def out_of_fold(self, fold_map: FoldMap) -> Array:
        """Apply to each sample the map that was fitted without its fold."""
        family, at = fold_map.family, fold_map.at
        if ALL in at:
            return apply_linear(family, at[ALL], self.z)
        by_fold = np.split(self.z, np.cumsum(self.sizes)[:-1])
        return np.concatenate([apply_linear(family, at[f], z).T for f, z in enumerate(by_fold)], 1).T


class Part:
    """A client's samples in the order of their folds."""

    def __init__(self, samples: Prepared, folded: bool) -> None:
        self._samples, self._logits, self._rows = samples, samples.logits, None
        self.k, self.sizes = samples.logits.shape[1], [len(samples.labels), *[0] * (FOLDS - 1)]  # samples of each fold
        if folded:
            self._rows, self.sizes = _rows(samples)
        self.y = samples.labels if self._rows is None else samples.labels[self._rows]

    @property
    def logits(self) -> Array:
        return self._logits if self._rows is None else self._logits[self._rows]

    @property
    def client(self) -> Array:
        """Which of the clients each sample belongs to."""
        client = self._samples.client
        alike = self._rows is None or len(self._samples.counts) == 1
        return client[: len(self.y)] if alike else client[self._rows]

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over all samples, in chunks that fit a core's cache; a small client is one chunk, which is kept."""
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

    def _columns(self, start: int, stop: int) -> Array:
        """Return the row-centred logits of these samples."""
        if self.k * len(self.y) <= KEPT:
            return self._all[start:stop]
        rows = slice(start, stop) if self._rows is None else self._rows[start:stop]
        return centred_columns(self._logits[rows])

    @cached_property
    def _all(self) -> Array:
        return centred_columns(self.logits)

    @cached_property
    def slope(self) -> Callable[[float], tuple[float, float]]:
        """The loss's first two derivatives by 1/T."""
        return temperature_sums(self.logits, self.y)


def _rows(samples: Prepared) -> tuple[Array, list[int]]:
    """The samples' numbers in the order of their folds, and the size of each fold; every client has folds of its own."""
    ends = np.cumsum(samples.counts)[:-1]
    pairs = zip(np.split(samples.logits, ends), np.split(samples.labels, ends), strict=True)
    fold = np.concatenate([folds(logits, labels, samples.fewest) for logits, labels in pairs])
    return np.argsort(fold, kind="stable"), np.bincount(fold, minlength=FOLDS).tolist()
