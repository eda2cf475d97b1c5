"""Fed-Bias, Fed-Vector, Fed-Matrix: linear maps of the logits, fitted exactly from sums.

A class bias beside the temperature takes out what label skew leaves in an averaged model: a lean towards the last
round's classes. It may move the argmax, usually for the better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fedcal.base.arrays import Params
from fedcal.exact import queries
from fedcal.exact.linear import FAMILIES, apply_linear, centre
from fedcal.exact.private import HISTOGRAMS, MATRIX_STEPS, STEPS, Family, fit_privately
from fedcal.exact.private_queries import Confidences, Gains, MatrixSums, Scales, ScaleSums
from fedcal.exact.solve import Program
from fedcal.exact.stages import GRIDS, OCTAVES, ROUNDS, SLOW_ROUNDS, curvature_of, fit_linear, start
from fedcal.methods.method import Additive, Stage, option


def start_stages(folded: bool = False) -> tuple[Stage, ...]:
    """What `start` asks."""
    grid = Stage(queries.LinearSums, GRIDS, {"temperature": len(OCTAVES)})
    return Stage(queries.Start, folds=folded), grid


def fit_stages(family: str, n_classes: int) -> tuple[Stage, ...]:
    """What `fit_linear` asks: where Hessians are too large to be sent, it starts from the bias fit."""
    whole = curvature_of(family, n_classes) == "full"
    first = () if whole or family == "bias" else fit_stages("bias", n_classes)
    return (*first, Stage(queries.LinearSums, ROUNDS if whole else SLOW_ROUNDS, {family: 1}))


def private_fit_stages(family: Family, *, also: bool = False) -> tuple[Stage, ...]:
    """What `fit_privately` asks, and `fit_confidences` after it."""
    first = "temperature" if family == "temperature" else "bias"
    larger = (Stage(MatrixSums, MATRIX_STEPS, {family: 1}),) if family in ("vector", "matrix") else ()
    after = (Stage(Confidences, HISTOGRAMS, {"temperature": 1}),) if also else ()
    return (Stage(Scales), Stage(ScaleSums, STEPS, {first: 1}), *larger, Stage(Gains, 1, {first: 1, family: 1}), *after)


@dataclass(frozen=True)
class FedLinear(Additive):
    leaves = "sums of loss, gradient and Hessian"

    name: str = "fed-bias"
    summary: str = "temperature and class bias, exactly, from sums"
    family: Literal["bias", "vector", "matrix"] = option("bias", "What is fitted beside the temperature.")
    ridge: float = option(0.1, "Pull towards a temperature alone.", low=0)

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        return (*start_stages(), *fit_stages(self.family, n_classes))

    def private_stages(self, n_classes: int) -> tuple[Stage, ...]:
        return private_fit_stages(self.family)

    def program(self, n_classes: int) -> Program:
        clients = yield from start(n_classes)
        return {self.family: (yield from fit_linear(self.family, self.ridge, clients))}

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        return (yield from fit_privately(n_classes, self.family, clip)).params

    def apply(self, params: Params, logits: Any) -> Any:
        return first_stage(params, logits)


def first_stage(params: Params, logits: Any) -> Any:
    """The linear map that `params` holds under its family's name."""
    family = next(family for family in FAMILIES if family in params)
    return apply_linear(family, params[family], centre(logits))
