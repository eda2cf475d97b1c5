"""A client's folds: which of its samples sit out a fit; and the part of them that a large federation chooses on.

Both follow from the data, so that nothing has to be remembered.
"""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import torch
from torch import Tensor

from fedcal.seeds import numpy_rng

FOLDS = 5
ROWS = 1 << 12  # samples read at once
LEAST = 200  # samples that a client gives at least (if it has them): few clients are bothered, none for a sample or two


def folds(logits: Tensor, labels: Tensor, centred: bool = False) -> Tensor:
    """The fold of each sample: balanced, random, the same whenever the same samples are given.

    With `centred`, also the same for logits that differ by a constant in each row: log-probabilities, for instance. The
    offset is random too, so that many clients of fewer samples than folds still fill all of them.
    """
    whole = hashlib.blake2b(digest_size=8)
    for block in logits.split(ROWS):  # no copy of all of them at once
        block = block.double()
        whole.update((block - block.mean(dim=1, keepdim=True) if centred else block).contiguous().numpy().data)
    whole.update(labels.contiguous().numpy().data)
    rng = numpy_rng(0, "folds", whole.hexdigest())
    order, offset = rng.permutation(len(labels)), int(rng.integers(FOLDS))
    fold = np.empty(len(labels), np.int8)
    fold[order] = np.resize((np.arange(FOLDS, dtype=np.int8) + offset) % FOLDS, len(labels))
    return torch.from_numpy(fold)


def part(share: float, logits: Tensor, labels: Tensor) -> Tensor:
    """Indices of about that share of the samples, evenly spaced; on average over clients, exactly that share.

    Where that would be fewer than LEAST samples, the client gives so many, or (more often) none at all.
    """
    n = len(labels)
    count = max(share * n, float(min(LEAST, n)))
    draw = zlib.crc32(labels.numpy().tobytes(), zlib.crc32(logits[:1].double().numpy().tobytes())) / 2**32
    chosen = round(count) if draw * count < share * n else 0
    return torch.arange(chosen) * n // max(chosen, 1)
