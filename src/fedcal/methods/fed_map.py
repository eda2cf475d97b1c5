"""Fed-Beta, Fed-Hist: a temperature, then a map of the top confidence; the order of the classes is kept.

Both maps come from one summed histogram: `beta` has three coefficients, `hist` follows the bins. The mapped confidence is
lifted back by the temperature that gives each sample's top class exactly that confidence, or (`lift="top"`) by moving its top
logit alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedcal.base.arrays import Params
from fedcal.base.logits import keep_order
from fedcal.exact import maps, queries
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.private import fit_confidences, fit_privately
from fedcal.exact.solve import Program
from fedcal.exact.stages import fit_linear, start
from fedcal.methods.fed_linear import first_stage, fit_stages, private_fit_stages, start_stages
from fedcal.methods.method import Additive, Stage, option


@dataclass(frozen=True)
class FedMap(Additive):
    leaves = "sums of loss and gradient; a histogram of confidences"

    name: str = "fed-beta"
    summary: str = "temperature, then a beta map of the top confidence"
    kind: Literal["beta", "hist"] = option("beta", "The map of the top confidence: a beta map, or a histogram.")
    lift: Literal["temperature", "top"] = option(
        "temperature",
        "How the mapped confidence is reached: by each sample's own temperature, or by its top logit alone.",
    )
    pseudo: float = option(100.0, "hist: samples per bin that pull it towards the identity.", low=0)

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        fit = fit_stages("temperature", n_classes)
        return (*start_stages(), *fit, Stage(queries.Histogram, maps={"temperature": 1}))

    def private_stages(self, n_classes: int) -> tuple[Stage, ...]:
        return private_fit_stages("temperature", also=True)

    def program(self, n_classes: int) -> Program:
        clients = yield from start(n_classes)
        b = yield from fit_linear("temperature", 0.0, clients)
        histogram = (yield queries.Histogram(FoldMap("temperature", {ALL: b})))["histogram"].sum(0)
        map_of = {"beta": maps.fit_beta, "hist": lambda whole: maps.hist_knots(whole, self.pseudo)}[self.kind]
        return {"temperature": b, self.kind: map_of(histogram)}

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        fit = yield from fit_privately(n_classes, "temperature", clip, also=True)
        return fit.params | (yield from fit_confidences(fit, self.kind, self.pseudo))

    def apply(self, params: Params, logits: Any) -> Any:
        u = first_stage(params, logits)
        _, log_p, log_q = maps.top(u)
        lift = maps.lift if self.lift == "top" else maps.lift_by_temperature
        return keep_order(lift(u, maps.map_log_odds(params, log_p, log_q)), logits)
