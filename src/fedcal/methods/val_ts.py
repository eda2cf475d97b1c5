"""Val. TS: one temperature for everybody's pooled calibration data: the paper's reference, not a federation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.base.logits import Params
from fedcal.exact.temperature import fit_temperature, temperature
from fedcal.methods.method import Averaged, Draw, Update


@dataclass(frozen=True)
class ValTS(Averaged):
    leaves = "every calibration logit and label"
    needs_pooled_data = True

    name: str = "val-ts"
    summary: str = "temperature on the pooled calibration data (a reference)"

    def init(self, n_classes: int, rng: torch.Generator) -> Params:
        return {"temperature": torch.ones((), dtype=torch.float64)}

    def fit(self, params: Params, memory: Params, logits: Tensor, labels: Tensor, draw: Draw) -> Update:
        return Update({"logits": logits, "labels": labels}, n=len(labels))

    def combine(self, params: Params, updates: list[Update]) -> Params:
        fit = fit_temperature(*(torch.cat([u.content[name] for u in updates]) for name in ("logits", "labels")))
        return {"temperature": torch.tensor(fit.temperature, dtype=torch.float64)}

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return temperature(params, logits)
