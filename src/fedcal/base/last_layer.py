"""A model's last linear layer: what it multiplies are the model's features.

rows = with_features(model)(x)      # [ logits (K) | features (d) ]
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from fedcal.base.checks import as_tensor
from fedcal.errors import FedCalError


class LinearAndInput(nn.Module):
    """A linear layer that returns its output and, beside it, its input."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        return torch.cat([out, x.to(out.dtype)], dim=1)


def last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return the name and the layer that a model ends with.

    Raises:
        FedCalError: where it ends with another kind of layer.
    """
    leaves = [(name, part) for name, part in model.named_modules() if not list(part.children())]
    ends = [(name, part) for name, part in leaves if not isinstance(part, nn.Identity | nn.Dropout)]
    name, last = ends[-1] if ends else ("", model)
    if not isinstance(last, nn.Linear):
        kind = type(last).__name__
        raise FedCalError(
            f"the model ends with {kind}, not with torch.nn.Linear: its last layer cannot be refitted; use fedcal-plus"
        )
    return name, last


def with_features(model: nn.Module) -> nn.Module:
    """Return a copy of a model that returns its logits and, beside them, the features that they are made of.

    Raises:
        FedCalError: where its last layer is not linear.
    """
    whole = copy.deepcopy(model)
    name, last = last_linear(whole)
    if not name:
        return LinearAndInput(last)
    parent, _, own = name.rpartition(".")
    setattr(whole.get_submodule(parent), own, LinearAndInput(last))
    return whole


def head_of(head: Any) -> tuple[Tensor, Tensor]:
    """Return weight (K, d) and bias (K,) of a last layer, in float64.

    Args:
        head: a torch.nn.Linear, or a pair of arrays.

    Raises:
        FedCalError: where it is neither.
    """
    if isinstance(head, nn.Linear):
        head = head.weight, torch.zeros(head.out_features) if head.bias is None else head.bias
    if not isinstance(head, tuple | list) or len(head) != 2:
        raise FedCalError(f"head must be torch.nn.Linear or a pair (weight, bias), not {type(head).__name__}")
    weight, bias = (as_tensor(part, "head").double() for part in head)
    if weight.ndim != 2 or len(weight) < 2 or weight.shape[1] < 1:
        raise FedCalError(f"head: its weight must have shape (classes, features), not {tuple(weight.shape)}")
    if bias.shape != weight.shape[:1]:
        raise FedCalError(f"head: its bias has shape {tuple(bias.shape)}, where its weight has {len(weight)} classes")
    if not bool(torch.isfinite(weight).all() & torch.isfinite(bias).all()):
        raise FedCalError("head must be finite: its weight or bias holds NaN or infinity")
    return weight, bias


def check_features(values: Any, what: str = "features") -> Tensor:
    """Return (N, d) finite numbers, as they came but for integers.

    Raises:
        FedCalError: which names what is wrong.
    """
    features = as_tensor(values, what)
    if features.ndim != 2 or features.shape[1] < 1:
        raise FedCalError(f"{what} must have shape (samples, features), not {tuple(features.shape)}")
    if not features.is_floating_point():
        features = features.double()
    features = features.float() if features.dtype in (torch.bfloat16, torch.float16) else features
    largest = float(features.abs().max()) if features.numel() else 0.0
    if not largest <= LARGEST:  # or not a number
        bad = int((~(features.abs() <= LARGEST)).any(dim=1).nonzero()[0])
        raise FedCalError(f"{what} must be finite and at most {LARGEST:g} in size: row {bad} is not")
    return features


LARGEST = 1e15  # of a feature: sums of squares of more would lose the digits of the others
