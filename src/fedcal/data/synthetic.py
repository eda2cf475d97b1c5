"""A Gaussian mixture whose true posterior is known: the yardstick for everything that measures calibration.

Class k draws x ~ N(mu_k, I) with all classes equally likely, so log P(k | x) = x·mu_k - |mu_k|²/2 up to a
shift: a perfectly calibrated classifier, whose ECE is nothing but the noise of a finite sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedcal.base.seeds import torch_rng

N_CLASSES = 10
N_FEATURES = 16
_SPREAD = 0.65  # of the means: the best possible accuracy is 75 to 83 %, depending on the seed


def means(seed: int = 0) -> Tensor:
    """The class means (N_CLASSES, N_FEATURES) of this seed's mixture."""
    return _SPREAD * torch.randn(N_CLASSES, N_FEATURES, generator=torch_rng(seed, "synthetic", "means"))


def sample(n: int, seed: int = 0, split: str = "train") -> tuple[Tensor, Tensor]:
    """`n` draws (x, y) from this seed's mixture; each split has its own stream."""
    rng = torch_rng(seed, "synthetic", split)
    y = torch.randint(N_CLASSES, (n,), generator=rng)
    return means(seed)[y] + torch.randn(n, N_FEATURES, generator=rng), y


def log_posterior(x: Tensor, seed: int = 0, log_prior: Tensor | None = None) -> Tensor:
    """log P(class | x) for features as `sample` gives them (not standardised).

    The prior is the mixture's own (uniform) unless `log_prior` says otherwise, such as a client's label distribution.
    """
    mu = means(seed)
    logits = x @ mu.T - mu.square().sum(1) / 2
    if log_prior is not None:
        logits = logits + log_prior
    return logits.log_softmax(1)
