"""Fed-TS: one temperature, fitted exactly as if everybody's calibration data were pooled; two numbers per round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Params
from fedcal.base.checks import warn_user
from fedcal.exact.private import fit_privately
from fedcal.exact.queries import Slope
from fedcal.exact.solve import Program
from fedcal.exact.temperature import T_MAX, T_MIN, TemperatureFit, temperature, temperature_search
from fedcal.methods.fed_linear import private_fit_stages
from fedcal.methods.method import Additive, Stage


@dataclass(frozen=True)
class FedTS(Additive):
    leaves = "two sums: slope and curvature"

    name: str = "fed-ts"
    summary: str = "the pooled temperature, exactly, from sums"

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        return (Stage(Slope, 100),)

    def private_stages(self, n_classes: int) -> tuple[Stage, ...]:
        return private_fit_stages("temperature")

    def program(self, n_classes: int) -> Program:
        search = temperature_search()
        b = next(search)
        while True:
            slope, curvature = (yield Slope(b))["slope"].tolist()
            try:
                b = search.send((slope, curvature))
            except StopIteration as finished:
                fit: TemperatureFit = finished.value
                if fit.at_bound and fit.temperature < 1:
                    warn_user(
                        f"fed-ts: the fit ended at {T_MIN:g}, the lowest temperature (too few samples, a single class, or no "
                        "errors among them): probabilities may be far too extreme. Use fedcal-plus, or more samples"
                    )
                return {"temperature": np.array(fit.temperature)}

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        limits = 1 / T_MAX, 1 / T_MIN
        found = (yield from fit_privately(n_classes, "temperature", clip, labels=False, limits=limits)).params
        return found | {"temperature": np.clip(1 / found["temperature"][0], T_MIN, T_MAX)}

    def apply(self, params: Params, logits: Any) -> Any:
        return temperature(params, logits)
