"""A model's last linear layer: what it multiplies are the model's features.

rows = with_features(model)(x)      # [ logits (K) | features (d) ]
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

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
