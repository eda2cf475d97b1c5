"""A client's folds: which of its samples sit out a fit; and the part of them that a large federation chooses on.

Both follow from the data, so that nothing has to be remembered.
"""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import torch
from torch import Tensor

from fedcal.base.seeds import numpy_rng

FOLDS = 5
FEWEST = 5  # samples of a client in a fold: what is told of all its folds but one tells of that one too
ROWS = 1 << 12  # samples read at once
LEAST = 200  # samples that a client gives at least (if it has them): few clients are bothered, none for a sample or two


def folds(logits: Tensor, labels: Tensor, fewest: int = FEWEST) -> Tensor:
    """The fold of each sample: balanced, random, the same whenever the same samples are given.

    A client of few samples has them in fewer folds, so that none holds fewer than `fewest` (or all samples, where there are
    not as many). Which folds these are is random too: many small clients still fill all of them.
    """
    whole = hashlib.blake2b(digest_size=8)
    for block in logits.split(ROWS):  # no copy of all of them at once
        whole.update(block.double().contiguous().numpy().data)
    whole.update(labels.contiguous().numpy().data)
    rng = numpy_rng(0, "folds", whole.hexdigest())
    order, offset = rng.permutation(len(labels)), int(rng.integers(FOLDS))
    fold = np.empty(len(labels), np.int8)
    used = max(1, min(FOLDS, len(labels) // fewest))
    fold[order] = np.resize((np.arange(used, dtype=np.int8) + offset) % FOLDS, len(labels))
    return torch.from_numpy(fold)


def part(share: float, logits: Tensor, labels: Tensor) -> Tensor:
    """Indices of about that share of the samples, drawn at random; on average over clients, exactly that share.

    Where that would be fewer than LEAST samples, the client gives so many, or (more often) none at all. One sample is drawn
    from each of equal stretches: rows that come in a pattern, class after class, are drawn as fairly as any others.
    """
    n = len(labels)
    count = max(share * n, float(min(LEAST, n)))
    digest = zlib.crc32(labels.numpy().tobytes(), zlib.crc32(logits[:1].double().numpy().tobytes()))
    chosen = round(count) if digest / 2**32 * count < share * n else 0
    edges = np.arange(chosen + 1) * n // max(chosen, 1)
    draws = numpy_rng(0, "part", digest).random(chosen)
    return torch.from_numpy(edges[:-1] + (draws * np.diff(edges)).astype(np.int64))
