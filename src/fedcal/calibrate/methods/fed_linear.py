"""Fed-Bias, Fed-Vector, Fed-Matrix: linear maps of the logits, fitted exactly from sums.

A class bias beside the temperature takes out what label skew leaves in an averaged model: a lean towards the last
round's classes. It may move the argmax, usually for the better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedcal.calibrate.answers import ALL, answer
from fedcal.calibrate.linear import FAMILIES, apply_linear, centre
from fedcal.calibrate.methods.method import Additive, Update
from fedcal.calibrate.scalers import Params
from fedcal.calibrate.solve import Program
from fedcal.calibrate.stages import CHOOSING, FITTING, fit_linear, start


@dataclass(frozen=True)
class FedLinear(Additive):
    leaves = "sums of loss, gradient and Hessian"

    family: Literal["bias", "vector", "matrix"] = "bias"
    ridge: float = 0.1  # towards no bias; for vector and matrix, towards the bias fit

    def program(self, n_classes: int) -> Program:
        clients = yield from start(n_classes)
        base: dict[str, Tensor] = {}
        for family in dict.fromkeys(("temperature", "bias", self.family)):
            ridge = self.ridge if family == self.family else FedLinear.ridge
            tol = CHOOSING if family == "temperature" else FITTING  # that one is only where the next one starts
            base[family] = (yield from fit_linear(family, ridge, {ALL: base}, clients, tol=tol))[ALL]
        return {self.family: base[self.family]}

    def client(self, params: Params, own: Params, logits: Tensor, labels: Tensor, rng: torch.Generator) -> Update:
        return Update(answer(params, logits, labels), len(labels))

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return first_stage(params, logits)


def first_stage(params: Params, logits: Tensor) -> Tensor:
    """The linear map that `params` holds under its family's name."""
    family = next(family for family in FAMILIES if family in params)
    return apply_linear(family, params[family], centre(logits))
