"""Features and the last layer that takes them, as users give them: checked once, as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.checks import check_array
from fedcal.errors import FedCalError

LARGEST = 1e15  # of a feature: sums of squares of more would lose the digits of the others


def head_of(head: Any) -> tuple[Array, Array]:
    """Return weight (K, d) and bias (K,) of a last layer, in float64.

    Args:
        head: a torch.nn.Linear, or a pair of arrays.

    Raises:
        FedCalError: where it is neither.
    """
    if hasattr(head, "weight") and hasattr(head, "out_features"):
        head = head.weight, np.zeros(head.out_features) if head.bias is None else head.bias
    if not isinstance(head, tuple | list) or len(head) != 2:
        raise FedCalError(f"head must be torch.nn.Linear or a pair (weight, bias), not {type(head).__name__}")
    weight, bias = (check_array(part, "head").astype(float) for part in head)
    if weight.ndim != 2 or len(weight) < 2 or weight.shape[1] < 1:
        raise FedCalError(f"head: its weight must have shape (classes, features), not {tuple(weight.shape)}")
    if bias.shape != weight.shape[:1]:
        raise FedCalError(f"head: its bias has shape {tuple(bias.shape)}, where its weight has {len(weight)} classes")
    if not np.isfinite(weight).all() or not np.isfinite(bias).all():
        raise FedCalError("head must be finite: its weight or bias holds NaN or infinity")
    return weight, bias


def check_features(values: Any, what: str = "features") -> Array:
    """Return (N, d) finite numbers, as they came but for integers.

    Raises:
        FedCalError: which names what is wrong.
    """
    features = check_array(values, what)
    if features.ndim != 2 or features.shape[1] < 1:
        raise FedCalError(f"{what} must have shape (samples, features), not {tuple(features.shape)}")
    if features.dtype.kind != "f":
        features = features.astype(float)
    features = features.astype(np.float32) if features.dtype == np.float16 else features
    largest = float(np.abs(features).max()) if features.size else 0.0
    if not largest <= LARGEST:  # or not a number
        bad = int((~(np.abs(features) <= LARGEST)).any(1).argmax())
        raise FedCalError(f"{what} must be finite and at most {LARGEST:g} in size: row {bad} is not")
    return features
