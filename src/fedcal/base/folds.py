"""A client's folds: which of its samples sit out a fit. They follow from the data, so that nothing has to be remembered."""

from __future__ import annotations

import hashlib

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.seeds import numpy_rng

FOLDS = 5
FEWEST = 5  # samples of a client in a fold: sums over all its folds but one reveal that one too
ROWS = 1 << 12  # samples read at once


def folds(logits: Array, labels: Array, fewest: int = FEWEST) -> Array:
    """The fold of each sample: balanced, random, the same whenever the same samples are given.

    A client of few samples has them in fewer folds, so that none holds fewer than `fewest` (or all samples, where there are
    not as many). Which folds these are is random too: many small clients still fill all of them.
    """
    rng = numpy_rng(0, "folds", _digest(logits, labels))
    order, offset = rng.permutation(len(labels)), int(rng.integers(FOLDS))
    fold = np.empty(len(labels), np.int8)
    used = max(1, min(FOLDS, len(labels) // fewest))
    fold[order] = np.resize((np.arange(used, dtype=np.int8) + offset) % FOLDS, len(labels))
    return fold


def held_out(logits: Array, labels: Array) -> Array:
    """Which samples are held out to set the thresholds of conformal sets: a random fifth, the same for the same samples.

    A client with few samples holds out FEWEST of them; one with fewer than twice as many holds out none.
    """
    held = np.zeros(len(labels), bool)
    if len(labels) >= 2 * FEWEST:
        order = numpy_rng(0, "held out", _digest(logits, labels)).permutation(len(labels))
        held[order[: max(round(len(labels) / FOLDS), FEWEST)]] = True
    return held


def _digest(logits: Array, labels: Array) -> str:
    """A fingerprint of a client's samples."""
    whole = hashlib.blake2b(digest_size=8)
    for start in range(0, len(logits), ROWS):  # no copy of all of them at once
        whole.update(np.ascontiguousarray(logits[start : start + ROWS], float).data)
    whole.update(np.ascontiguousarray(labels).data)
    return whole.hexdigest()
