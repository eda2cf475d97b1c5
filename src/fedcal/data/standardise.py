"""Zero mean and unit variance, from sums over the clients' training data.

The statistics are those of the pooled training splits. Each is a quotient of sums over clients (first counts
and totals, then squared deviations from the common mean), so a real federation can get them by secure
aggregation in two rounds. Calibration and test samples never enter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedcal.errors import FedCalError


def statistics(parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean and deviation (float64) of each feature of (n, d) tables or each channel of (n, c, h, w) images.

    Missing values (NaN) are left out. A feature that never varies gets deviation 1, one never seen mean 0.
    """
    count = _total([_present(part) for part in parts]).clamp(min=1)
    mean = _total([_sum(_zero_nan(_real(part))) for part in parts]) / count
    if not mean.isfinite().all():
        raise FedCalError("training inputs contain infinite values: replace them, or mark them missing with NaN")
    squares = _total([_sum(_zero_nan(_centred(part, mean)).square_()) for part in parts])
    std = (squares / count).sqrt()
    # below the resolution of float32 a spread is only rounding: dividing by it would blow that up
    varies = std > torch.finfo(torch.float32).eps * mean.abs()
    return mean, torch.where(varies, std, 1.0)


def standardise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """float32 (x - mean) / std; missing values become 0, which is to say the training mean."""
    z = _centred(x, mean)
    return _zero_nan(z.div_(_wide(std, z))).float()


def _real(x: Tensor) -> Tensor:
    """A copy to compute in: pixels are exact in float32, and many; tables get float64."""
    return x.to(torch.float32 if x.dtype == torch.uint8 else torch.float64, copy=True)


def _centred(x: Tensor, mean: Tensor) -> Tensor:
    z = _real(x)
    return z.sub_(_wide(mean, z))


def _wide(values: Tensor, x: Tensor) -> Tensor:
    """One value a feature or channel, shaped and typed to broadcast against x."""
    return values.to(x.dtype).view(-1, *[1] * (x.ndim - 2))


def _zero_nan(x: Tensor) -> Tensor:
    return x.nan_to_num_(nan=0.0, posinf=math.inf, neginf=-math.inf)


def _present(x: Tensor) -> Tensor:
    """How many values of each feature or channel are not missing."""
    n = torch.full((x.shape[1],), len(x) * math.prod(x.shape[2:]), dtype=torch.float64)
    return n - _sum(x.isnan()) if x.is_floating_point() else n


def _sum(x: Tensor) -> Tensor:
    """Sum of each feature or channel: within an image as it comes, over samples in float64."""
    return x.reshape(*x.shape[:2], -1).sum(2).double().sum(0)


def _total(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)
