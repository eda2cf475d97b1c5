"""What a calibration method is: two halves and a function.

    init(n_classes, rng)                          -> params     the server's starting scaler
    client(params, own, logits, labels, rng)      -> Update     runs where the data is
    server(params, updates)                       -> params     sees updates only: never a logit, never a label
    apply(params, logits)                         -> calibrated logits

`params`, `own` and an update's content are flat dicts of tensors. One definition serves the simulator (Algorithm 1,
interleaved with training), rounds on a frozen model, and users' own logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedcal.calibrate.scalers import Params


@dataclass(frozen=True)
class Update:
    """What leaves a client (`content`, `n`), what stays there (`own`), and remarks for the log (`notes`)."""

    content: Params
    n: int
    own: Params = field(default_factory=dict)  # the client's own scaler, for `apply`; empty: the global one serves
    notes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Method(ABC):
    """A method's shape. Subclasses are final; their fields are the method's options."""

    leaves: ClassVar[str]  # what leaves a client
    additive: ClassVar[bool] = False  # the server only adds updates up: secure aggregation can do that
    needs_pooled_data: ClassVar[bool] = False  # an upper bound, not a federated method

    summary: str = ""
    schedule: Literal["interleaved", "post-hoc"] = "post-hoc"  # within Algorithm 1, or on the frozen final model only
    rounds: int = 1  # rounds over all clients on the frozen final model (after an interleaved run: additional ones)
    logits_of: Literal["local", "received"] = "local"  # interleaved: the model whose logits a client fits on
    fit_on: Literal["held-out", "train"] = "held-out"  # the client's samples to fit on
    average: Literal["round", "latest"] = "round"  # the server hears this round's clients, or each one's latest word

    @abstractmethod
    def init(self, n_classes: int, rng: torch.Generator) -> Params:
        """The server's starting scaler."""

    @abstractmethod
    def client(self, params: Params, own: Params, logits: Tensor, labels: Tensor, rng: torch.Generator) -> Update:
        """One client's half: the server's params, its own last scaler (empty at first), its samples (at least one)."""

    @abstractmethod
    def server(self, params: Params, updates: list[Update]) -> Params:
        """The server's half: the next params."""

    @abstractmethod
    def apply(self, params: Params, logits: Tensor) -> Tensor:
        """Calibrated logits."""


def mean(updates: list[Update], weighted: bool = False) -> Params:
    """The average of the updates' tensors, of equal weight or by sample count, summed in float64."""
    weights = torch.tensor([float(u.n) if weighted else 1.0 for u in updates], dtype=torch.float64)
    weights /= weights.sum()
    first = updates[0].content
    return {
        name: torch.tensordot(weights, torch.stack([u.content[name].double() for u in updates]), dims=1).to(value.dtype)
        for name, value in first.items()
    }


def n_bytes(params: Params) -> int:
    """The size of params on the wire."""
    return sum(value.numel() * value.element_size() for value in params.values())
