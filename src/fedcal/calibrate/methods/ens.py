"""Ens.: the average of the probabilities that the clients' temperature scalers give (Appendix C)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.calibrate import scalers
from fedcal.calibrate.methods.avg_t import own_temperature
from fedcal.calibrate.methods.method import Averaged, Update
from fedcal.calibrate.scalers import Params


@dataclass(frozen=True)
class Ens(Averaged):
    leaves = "one temperature"

    summary: str = "mean of the clients' temperature-scaled probabilities"

    def init(self, n_classes: int, rng: torch.Generator) -> Params:
        return {"temperatures": torch.ones(1, dtype=torch.float64)}

    def client(self, params: Params, own: Params, logits: Tensor, labels: Tensor, rng: torch.Generator) -> Update:
        update = own_temperature({"temperature": params["temperatures"].mean()}, logits, labels)
        kept = {"temperatures": update.content["temperature"].reshape(1)}
        return Update(update.content, update.n, kept, update.notes)

    def server(self, params: Params, updates: list[Update]) -> Params:
        return {"temperatures": torch.stack([u.content["temperature"] for u in updates])}

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return scalers.ensemble(params, logits)
