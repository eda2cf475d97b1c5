"""Uncal.: the federated model as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedcal.base.arrays import Array, Params, copy_of
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

    def init(self, n_classes: int, draw: Draw) -> Params:
        return {}

    def fit(self, params: Params, memory: Params, logits: Array, labels: Array, draw: Draw) -> Update:
        return Update({}, n=len(labels))

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return params

    def apply(self, params: Params, logits: Any) -> Any:
        return copy_of(logits)  # a result of its own, as every method gives
