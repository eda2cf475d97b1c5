"""AvgT: every client fits a temperature; the server averages them.

The paper prints θ / Σ T_c; the mean is meant (docs/paper.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.base.logits import Params
from fedcal.exact.temperature import fit_temperature, temperature
from fedcal.methods.method import Averaged, Draw, Update, mean


@dataclass(frozen=True)
class AvgT(Averaged):
    leaves = "one temperature"

    name: str = "avg-t"
    summary: str = "mean of the clients' temperatures"

    def init(self, n_classes: int, rng: torch.Generator) -> Params:
        return {"temperature": torch.ones((), dtype=torch.float64)}

    def fit(self, params: Params, memory: Params, logits: Tensor, labels: Tensor, draw: Draw) -> Update:
        return client_temperature(params, logits, labels)

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return mean(updates)

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return temperature(params, logits)


def client_temperature(received: Params, logits: Tensor, labels: Tensor) -> Update:
    """A client's temperature; where its samples determine none (one class, separable, too few), the received one."""
    fit = fit_temperature(logits, labels)
    known = received["temperature"] if fit.at_bound else torch.tensor(fit.temperature, dtype=torch.float64)
    return Update({"temperature": known}, len(labels), {"temperature": known}, {"degenerate": float(fit.at_bound)})
