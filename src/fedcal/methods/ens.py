"""Ens.: the average of the probabilities that the clients' temperature scalers give (Appendix C)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params, log_softmax, logsumexp, namespace
from fedcal.base.logits import keep_order
from fedcal.methods.avg_t import client_temperature
from fedcal.methods.method import Averaged, Draw, Update

FEW = 16  # clients at a time


@dataclass(frozen=True)
class Ens(Averaged):
    leaves = "one temperature"

    name: str = "ens"
    summary: str = "mean of the clients' temperature-scaled probabilities"

    def init(self, n_classes: int, draw: Draw) -> Params:
        return {"temperatures": np.ones(1)}

    def fit(self, params: Params, memory: Params, logits: Array, labels: Array, draw: Draw) -> Update:
        update = client_temperature({"temperature": params["temperatures"].mean()}, logits, labels)
        kept = {"temperatures": update.content["temperature"].reshape(1)}
        return Update(update.content, update.n, kept, update.notes)

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return {"temperatures": np.stack([u.content["temperature"] for u in updates])}

    def apply(self, params: Params, logits: Any) -> Any:
        """log of the mean of the clients' scaled probabilities, (1/C) Σ_c σ(θ / T_c); a few clients at a time."""
        temperatures = params["temperatures"]
        few = (temperatures[first : first + FEW, None, None] for first in range(0, len(temperatures), FEW))
        parts = [logsumexp(log_softmax(logits / some, 2), 0) for some in few]
        return keep_order(logsumexp(namespace(logits).stack(parts), 0) - math.log(len(temperatures)), logits)
