"""One temperature: its scaler, and its fit by Newton from two sums per step."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.logits import BLOCK, keep_order

# No real model needs a temperature outside these: a fit that ends there has no optimum.
T_MIN, T_MAX = 0.05, 20.0
KEPT = 1 << 18  # logits of a client that are kept in the form that sums need; more are converted again each time


def temperature(params: Params, logits: Any) -> Any:
    """θ / T, of an array or a tensor."""
    return keep_order(logits / params["temperature"], logits)


@dataclass(frozen=True)
class TemperatureFit:
    """A fitted temperature, and whether to trust it."""

    temperature: float
    at_bound: bool  # no optimum inside [T_MIN, T_MAX]: one class, separable data or too few samples
    steps: int


def fit_temperature(logits: Array, labels: Array) -> TemperatureFit:
    """argmin_T NLL(θ / T) in float64, by `temperature_search`.

    On large sets a subset is fitted first; the full data then need two or three passes.
    """
    if not len(labels):
        return TemperatureFit(1.0, at_bound=True, steps=0)
    start = 1.0
    if len(labels) > 8192:
        sparse = slice(None, None, len(labels) // 2048)
        start = 1 / fit_temperature(logits[sparse], labels[sparse]).temperature
    sums, search = temperature_sums(logits, labels), temperature_search(start)
    b = next(search)
    while True:
        try:
            b = search.send(sums(b))
        except StopIteration as finished:
            return finished.value


def temperature_search(start: float = 1.0) -> Generator[float, tuple[float, float], TemperatureFit]:
    """Newton on b = 1/T, in which the NLL is convex, inside a shrinking bracket.

    Yields b, and is sent the first two derivatives of the NLL there: of one data set, or summed over a federation.
    """
    low, high, untried, b = 1 / T_MAX, 1 / T_MIN, {1 / T_MAX, 1 / T_MIN}, start
    for step in range(1, 101):
        gradient, curvature = yield b
        untried.discard(b)
        low, high = (low, b) if gradient > 0 else (b, high)
        if low == high or gradient == curvature == 0:  # still falling at the end of the interval, or flat throughout
            return TemperatureFit(1 / b, at_bound=True, steps=step)
        wanted = b - gradient / curvature if curvature > 0 else -math.copysign(math.inf, gradient)
        if not low < wanted < high or (step > 8 and step % 2):  # Newton overshoots, or creeps where data are separable
            end = low if gradient > 0 else high
            wanted = end if end in untried else math.sqrt(low * high)
        elif abs(wanted - b) <= 1e-7 * b:  # Newton doubles the digits per step: this one has them all
            return TemperatureFit(1 / wanted, at_bound=False, steps=step)
        b = wanted
    return TemperatureFit(1 / b, at_bound=False, steps=100)  # halved down to rounding


def temperature_sums(logits: Array, labels: Array) -> Callable[[float], tuple[float, float]]:
    """b ↦ the first two derivatives of Σ NLL(b θ), summed over samples: Σ (E_p θ − θ_y) and Σ Var_p θ."""
    target = float((logits[np.arange(len(labels)), labels].astype(float) - logits.max(1, initial=-np.inf)).sum())

    def cut() -> Iterator[Array]:
        # Classes first: reductions over a handful of classes then run along contiguous samples.
        rows = max(1, BLOCK // logits.shape[1])
        for start in range(0, len(logits), rows):
            z = np.array(logits[start : start + rows].T, float, order="C")
            z -= z.max(0)
            yield z

    kept = list(cut()) if logits.size <= KEPT else None

    def sums(b: float) -> tuple[float, float]:
        gradient, curvature = -target, 0.0
        for z in kept or cut():
            p = np.multiply(z, b)
            np.exp(p, out=p)
            total = p.sum(0)
            p *= z
            mean = p.sum(0) / total
            p *= z
            second = p.sum(0) / total
            gradient += float(mean.sum())
            curvature += float(second.sum() - mean @ mean)
        return gradient, curvature

    return sums
