"""Fed-Bias, Fed-Vector, Fed-Matrix: linear maps of the logits, fitted exactly from sums.

A class bias beside the temperature takes out what label skew leaves in an averaged model: a lean towards the last
round's classes. It may move the argmax, usually for the better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedcal.base.logits import Params
from fedcal.base.query import Query
from fedcal.exact import queries
from fedcal.exact.linear import FAMILIES, apply_linear, centre
from fedcal.exact.prepared import ALL
from fedcal.exact.private import fit_privately
from fedcal.exact.solve import Program
from fedcal.exact.stages import FITTING, TOWARDS, fit_linear, start
from fedcal.methods.method import Additive, option


@dataclass(frozen=True)
class FedLinear(Additive):
    leaves = "sums of loss, gradient and Hessian"
    private = True
    may_ask = (queries.Start, queries.LinearSums, queries.MatrixBlocks)

    name: str = "fed-bias"
    summary: str = "temperature and class bias, exactly, from sums"
    family: Literal["bias", "vector", "matrix"] = option("bias", "What is fitted beside the temperature.")
    ridge: float = option(0.1, "Pull towards no bias; of vector and matrix, towards the bias fit.", low=0)

    def program(self, n_classes: int) -> Program:
        clients = yield from start(n_classes)
        base: dict[str, Tensor] = {}
        for family in dict.fromkeys(("bias", self.family)):
            ridge, tol = (self.ridge, FITTING) if family == self.family else (FedLinear.ridge, TOWARDS)
            base[family] = (yield from fit_linear(family, ridge, {ALL: base}, clients, tol=tol))[ALL]
        return {self.family: base[self.family]}

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        return (yield from fit_privately(n_classes, self.family, clip)).params

    def params_from(self, query: Query) -> Params:
        if isinstance(query, queries.LinearSums) and query.family == self.family and ALL in query.at:
            return {self.family: query.at[ALL]}
        return {}

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return first_stage(params, logits)


def first_stage(params: Params, logits: Tensor) -> Tensor:
    """The linear map that `params` holds under its family's name."""
    family = next(family for family in FAMILIES if family in params)
    return apply_linear(family, params[family], centre(logits))
