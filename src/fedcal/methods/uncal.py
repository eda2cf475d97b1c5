"""Uncal.: the federated model as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedcal.base.logits import Params
from fedcal.methods.method import Averaged, Draw, Update


@dataclass(frozen=True)
class Uncal(Averaged):
    leaves = "nothing"

    name: str = "uncal"
    summary: str = "no calibration"
    rounds: int = 0
    schedule: Literal["post-hoc"] = "post-hoc"  # nothing is fitted, so that this and the rest are no options
    logits_of: Literal["local"] = "local"
    fit_on: Literal["held-out"] = "held-out"
    average: Literal["round"] = "round"

    def init(self, n_classes: int, rng: torch.Generator) -> Params:
        return {}

    def fit(self, params: Params, memory: Params, logits: Tensor, labels: Tensor, draw: Draw) -> Update:
        return Update({}, n=len(labels))

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return params

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return logits.clone()  # a result of its own, as every method gives
