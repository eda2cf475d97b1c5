"""AvgT: every client fits a temperature; the server averages them.

The paper prints θ / Σ T_c; the mean is meant (docs/paper.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.exact.temperature import fit_temperature, temperature
from fedcal.methods.method import Averaged, Draw, Update, mean


@dataclass(frozen=True)
class AvgT(Averaged):
    leaves = "one temperature"

    name: str = "avg-t"
    summary: str = "mean of the clients' temperatures"

    def init(self, n_classes: int, draw: Draw) -> Params:
        return {"temperature": np.ones(())}

    def fit(self, params: Params, memory: Params, logits: Array, labels: Array, draw: Draw) -> Update:
        return client_temperature(params, logits, labels)

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return mean(updates)

    def apply(self, params: Params, logits: Any) -> Any:
        return temperature(params, logits)


def client_temperature(received: Params, logits: Array, labels: Array) -> Update:
    """A client's temperature; where its samples determine none (one class, separable, too few), the received one."""
    fit = fit_temperature(logits, labels)
    known = received["temperature"] if fit.at_bound else np.array(fit.temperature)
    return Update({"temperature": known}, len(labels), {"temperature": known}, {"degenerate": float(fit.at_bound)})
