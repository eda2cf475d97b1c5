"""A client's folds: which of its samples sit out a fit; and the part of them that a large federation chooses on.

Both follow from the data, so that nothing has to be remembered.
"""

from __future__ import annotations

import hashlib
import zlib

import torch
from torch import Tensor

from fedcal.seeds import numpy_rng

FOLDS = 5
LEAST = 200  # samples that a client gives at least (if it has them): few clients are bothered, none for a sample or two


def folds(logits: Tensor, labels: Tensor) -> Tensor:
    """The fold of each sample: balanced, random, the same whenever the same samples are given.

    The offset is random too, so that many clients of fewer samples than folds still fill all of them.
    """
    digest = hashlib.blake2b(logits.numpy().tobytes() + labels.numpy().tobytes(), digest_size=8).hexdigest()
    rng = numpy_rng(0, "folds", digest)
    order, offset = rng.permutation(len(labels)), int(rng.integers(FOLDS))
    fold = torch.empty(len(labels), dtype=torch.int64)
    fold[torch.from_numpy(order)] = (torch.arange(len(labels)) + offset) % FOLDS
    return fold


def part(share: float, logits: Tensor, labels: Tensor) -> Tensor:
    """Indices of about that share of the samples, evenly spaced; on average over clients, exactly that share.

    Where that would be fewer than LEAST samples, the client gives so many, or (more often) none at all.
    """
    n = len(labels)
    count = max(share * n, float(min(LEAST, n)))
    draw = zlib.crc32(labels.numpy().tobytes(), zlib.crc32(logits[:1].double().numpy().tobytes())) / 2**32
    chosen = round(count) if draw * count < share * n else 0
    return torch.arange(chosen) * n // max(chosen, 1)
