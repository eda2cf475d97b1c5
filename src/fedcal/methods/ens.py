"""Ens.: the average of the probabilities that the clients' temperature scalers give (Appendix C)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.base.logits import Params, keep_order
from fedcal.methods.avg_t import client_temperature
from fedcal.methods.method import Averaged, Draw, Update


@dataclass(frozen=True)
class Ens(Averaged):
    leaves = "one temperature"

    name: str = "ens"
    summary: str = "mean of the clients' temperature-scaled probabilities"

    def init(self, n_classes: int, rng: torch.Generator) -> Params:
        return {"temperatures": torch.ones(1, dtype=torch.float64)}

    def fit(self, params: Params, memory: Params, logits: Tensor, labels: Tensor, draw: Draw) -> Update:
        update = client_temperature({"temperature": params["temperatures"].mean()}, logits, labels)
        kept = {"temperatures": update.content["temperature"].reshape(1)}
        return Update(update.content, update.n, kept, update.notes)

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return {"temperatures": torch.stack([u.content["temperature"] for u in updates])}

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return ensemble(params, logits)


def ensemble(params: Params, logits: Tensor) -> Tensor:
    """log of the mean of the clients' scaled probabilities, (1/C) Σ_c σ(θ / T_c); a few clients at a time."""
    temperatures = params["temperatures"]
    parts = [torch.log_softmax(logits / some[:, None, None], dim=2).logsumexp(dim=0) for some in temperatures.split(16)]
    return keep_order(torch.stack(parts).logsumexp(dim=0) - math.log(len(temperatures)), logits)
