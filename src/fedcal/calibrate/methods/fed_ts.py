"""Fed-TS: one temperature, fitted exactly as if everybody's calibration data were pooled; two numbers a round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.calibrate import scalers
from fedcal.calibrate.fit import temperature_search
from fedcal.calibrate.methods.method import Additive
from fedcal.calibrate.scalers import Params
from fedcal.calibrate.solve import Program


@dataclass(frozen=True)
class FedTS(Additive):
    leaves = "two sums: slope and curvature"

    summary: str = "the pooled temperature, exactly, from sums"

    def program(self, n_classes: int) -> Program:
        search = temperature_search()
        b = next(search)
        while True:
            slope, curvature = (yield {"slope": torch.tensor(b, dtype=torch.float64)})["slope"].tolist()
            try:
                b = search.send((slope, curvature))
            except StopIteration as finished:
                return {"temperature": torch.tensor(finished.value.temperature, dtype=torch.float64)}

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return scalers.temperature(params, logits)
