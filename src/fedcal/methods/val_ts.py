"""Val. TS: one temperature for everybody's pooled calibration data: the paper's reference, not a federation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.exact.temperature import fit_temperature, temperature
from fedcal.methods.method import Averaged, Draw, Update


@dataclass(frozen=True)
class ValTS(Averaged):
    leaves = "every calibration logit and label"
    needs_pooled_data = True

    name: str = "val-ts"
    summary: str = "temperature on the pooled calibration data (a reference)"

    def init(self, n_classes: int, draw: Draw) -> Params:
        return {"temperature": np.ones(())}

    def fit(self, params: Params, memory: Params, logits: Array, labels: Array, draw: Draw) -> Update:
        return Update({"logits": logits, "labels": labels}, n=len(labels))

    def combine(self, params: Params, updates: list[Update]) -> Params:
        fit = fit_temperature(*(np.concatenate([u.content[name] for u in updates]) for name in ("logits", "labels")))
        return {"temperature": np.array(fit.temperature)}

    def apply(self, params: Params, logits: Any) -> Any:
        return temperature(params, logits)
