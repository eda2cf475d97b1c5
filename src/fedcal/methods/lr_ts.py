"""LR-TS: a linear model predicts the temperature from the logits, learned by FedAvg (MD-TS, Yu et al. 2022).

The paper asks each client to regress its own constant T_c. Run to its end that is degenerate (weights 0, bias T_c),
and averaging gives AvgT. What makes the *joint* regression over clients a linear model is that FedAvg's local work
is partial. Here it is a proximal step in closed form: the least-squares fit to T_c, held to the received model by a
ridge as strong as the data. No step size, and the fixed point is a regression over all clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.base.logits import Params, keep_order
from fedcal.exact.temperature import T_MAX, T_MIN, fit_temperature
from fedcal.methods.method import ROUNDS, Averaged, Draw, Update, mean, option


@dataclass(frozen=True)
class LRTS(Averaged):
    leaves = "a linear model's K + 1 numbers"

    name: str = "lr-ts"
    summary: str = "temperature predicted from the logits by a linear model (FedAvg)"
    rounds: int = option(20, ROUNDS, low=0)

    def init(self, n_classes: int, rng: torch.Generator) -> Params:
        return {
            "weight": torch.zeros(n_classes, dtype=torch.float64),
            "bias": torch.ones((), dtype=torch.float64),
        }

    def fit(self, params: Params, memory: Params, logits: Tensor, labels: Tensor, draw: Draw) -> Update:
        fit = fit_temperature(logits, labels)
        if fit.at_bound:  # no temperature of its own to regress
            return Update(params, len(labels), params, {"degenerate": 1.0})
        x = torch.cat([logits.double(), torch.ones(len(labels), 1, dtype=torch.float64)], dim=1)
        received = torch.cat([params["weight"], params["bias"].reshape(1)])
        gram = x.T @ x / len(x)
        ridge = gram.trace() / len(gram) * torch.eye(len(gram), dtype=torch.float64)
        step = torch.linalg.solve(gram + ridge, x.T @ (fit.temperature - x @ received) / len(x))
        fitted = received + step
        content = {"weight": fitted[:-1], "bias": fitted[-1]}
        return Update(content, len(labels), content, {"degenerate": 0.0})

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return mean(updates, weighted=True)

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return linear_temperature(params, logits)


def linear_temperature(params: Params, logits: Tensor) -> Tensor:
    """θ / T(θ) with T(θ) = Wθ + b: one temperature per sample, so order is kept."""
    t = logits @ params["weight"].to(logits.dtype) + params["bias"]
    return keep_order(logits / t.clamp(T_MIN, T_MAX)[:, None], logits)
