"""LR-TS: a linear model predicts the temperature from the logits, learned by FedAvg (MD-TS, Yu et al. 2022).

The paper asks each client to regress its own constant T_c. Run to its end that is degenerate (weights 0, bias T_c),
and averaging gives AvgT. What makes the *joint* regression over clients a linear model is that FedAvg's local work
is partial. Here it is a proximal step in closed form: the least-squares fit to T_c, held to the received model by a
ridge as strong as the data. No step size, and the fixed point is a regression over all clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params, namespace
from fedcal.base.logits import keep_order
from fedcal.exact.temperature import T_MAX, T_MIN, fit_temperature
from fedcal.methods.method import ROUNDS, Averaged, Draw, Update, mean, option


@dataclass(frozen=True)
class LRTS(Averaged):
    leaves = "a linear model's K + 1 numbers"

    name: str = "lr-ts"
    summary: str = "temperature predicted from the logits by a linear model (FedAvg)"
    rounds: int = option(20, ROUNDS, low=0)

    def init(self, n_classes: int, draw: Draw) -> Params:
        return {
            "weight": np.zeros(n_classes),
            "bias": np.ones(()),
        }

    def fit(self, params: Params, memory: Params, logits: Array, labels: Array, draw: Draw) -> Update:
        fit = fit_temperature(logits, labels)
        if fit.at_bound:  # no temperature of its own to regress
            return Update(params, len(labels), params, {"degenerate": 1.0})
        x = np.concatenate([logits, np.ones((len(labels), 1))], 1)
        received = np.append(params["weight"], params["bias"])
        gram = x.T @ x / len(x)
        ridge = gram.trace() / len(gram) * np.eye(len(gram))
        step = np.linalg.solve(gram + ridge, x.T @ (fit.temperature - x @ received) / len(x))
        fitted = received + step
        content = {"weight": fitted[:-1], "bias": np.array(fitted[-1])}
        return Update(content, len(labels), content, {"degenerate": 0.0})

    def combine(self, params: Params, updates: list[Update]) -> Params:
        return mean(updates, weighted=True)

    def apply(self, params: Params, logits: Any) -> Any:
        """θ / T(θ) with T(θ) = Wθ + b: one temperature per sample, so order is kept."""
        t = logits @ params["weight"] + params["bias"]
        return keep_order(logits / namespace(logits).clip(t, T_MIN, T_MAX)[:, None], logits)
