"""A client's folds: which of its samples sit out a fit. They follow from the data, so that nothing has to be remembered."""

from __future__ import annotations

import hashlib

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.seeds import numpy_rng

FOLDS = 5
FEWEST = 5  # samples of a client in a fold: what is told of all its folds but one tells of that one too
ROWS = 1 << 12  # samples read at once


def folds(logits: Array, labels: Array, fewest: int = FEWEST) -> Array:
    """The fold of each sample: balanced, random, the same whenever the same samples are given.

    A client of few samples has them in fewer folds, so that none holds fewer than `fewest` (or all samples, where there are
    not as many). Which folds these are is random too: many small clients still fill all of them.
    """
    whole = hashlib.blake2b(digest_size=8)
    for start in range(0, len(logits), ROWS):  # no copy of all of them at once
        whole.update(np.ascontiguousarray(logits[start : start + ROWS], float).data)
    whole.update(np.ascontiguousarray(labels).data)
    rng = numpy_rng(0, "folds", whole.hexdigest())
    order, offset = rng.permutation(len(labels)), int(rng.integers(FOLDS))
    fold = np.empty(len(labels), np.int8)
    used = max(1, min(FOLDS, len(labels) // fewest))
    fold[order] = np.resize((np.arange(used, dtype=np.int8) + offset) % FOLDS, len(labels))
    return fold
