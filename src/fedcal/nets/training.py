"""How a scaler net is trained: settings only, so that whoever reads them need not wait for PyTorch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Training:
    """How a scaler net is trained: full-batch Adam, stopped early on a fifth of the client's own samples.

    The K-64-64-K net overfits a few hundred held-out points within a few hundred steps. The fifth is the same in every
    round: a new one would have been trained on in the round before, and could not tell when to stop. Decay pulls
    the weights towards zero, where the order-preserving net is a plain temperature.
    """

    lr: float = 1e-3
    steps: int = 50
    weight_decay: float = 1e-2
    patience: int = 10
    min_samples: int = 8  # fewer cannot be split: the scaler stays as it started
