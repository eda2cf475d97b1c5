"""Random streams named by what they are for.

Nothing in FedCal reads a global generator. A stream is a pure function of the run's seed and a key such as
("local", round, client): so a resumed run, a client in another process and a client trained in another order
all draw the same numbers, and there is no generator state to save.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _entropy(seed: int, key: tuple[str | int, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest(), "little")


def numpy_rng(seed: int, *key: str | int) -> np.random.Generator:
    """The NumPy stream of this seed and key."""
    return np.random.default_rng(_entropy(seed, key))


def torch_rng(seed: int, *key: str | int) -> torch.Generator:
    """The torch stream (on the CPU) of this seed and key."""
    import torch

    return torch.Generator().manual_seed(stream_seed(seed, *key))


def stream_seed(seed: int, *key: str | int) -> int:
    """The number from which `torch_rng` makes its stream."""
    return _entropy(seed, key) >> 1
