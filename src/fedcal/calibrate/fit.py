"""Minimise the negative log-likelihood of a scaler."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.calibrate.folds import folds
from fedcal.calibrate.scalers import BLOCK, T_MAX, T_MIN, Params, unflatten

KEPT = 1 << 18  # logits of a client that are kept in the form that sums need; more are converted anew each time


@dataclass(frozen=True)
class TemperatureFit:
    """A fitted temperature, and whether to trust it."""

    temperature: float
    converged: bool
    at_bound: bool  # no optimum inside [T_MIN, T_MAX]: one class, separable data or too few samples
    steps: int


def fit_temperature(logits: Tensor, labels: Tensor) -> TemperatureFit:
    """argmin_T NLL(θ / T) in float64, by `temperature_search`.

    On large sets a spaced subset is fitted first: the full data then needs two or three passes.
    """
    if not len(labels):
        return TemperatureFit(1.0, converged=False, at_bound=True, steps=0)
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

    Yields b, is sent the NLL's first two derivatives there: of one data set, or summed over a federation.
    """
    low, high, untried, b = 1 / T_MAX, 1 / T_MIN, {1 / T_MAX, 1 / T_MIN}, start
    for step in range(1, 101):
        gradient, curvature = yield b
        untried.discard(b)
        low, high = (low, b) if gradient > 0 else (b, high)
        if low == high or gradient == curvature == 0:  # still falling at the end of the interval, or flat throughout
            return TemperatureFit(1 / b, converged=False, at_bound=True, steps=step)
        wanted = b - gradient / curvature if curvature > 0 else -math.copysign(math.inf, gradient)
        if not low < wanted < high or (step > 8 and step % 2):  # Newton overshoots, or creeps where data are separable
            end = low if gradient > 0 else high
            wanted = end if end in untried else math.sqrt(low * high)
        elif abs(wanted - b) <= 1e-7 * b:  # Newton doubles the digits a step: this one has them all
            return TemperatureFit(1 / wanted, converged=True, at_bound=False, steps=step)
        b = wanted
    return TemperatureFit(1 / b, converged=True, at_bound=False, steps=100)  # halved down to rounding


def temperature_sums(logits: Tensor, labels: Tensor) -> Callable[[float], tuple[float, float]]:
    """b ↦ the first two derivatives of Σ NLL(b θ), summed over samples: Σ (E_p θ − θ_y) and Σ Var_p θ."""
    target = float((logits.gather(1, labels[:, None]).double() - logits.amax(dim=1, keepdim=True)).sum())

    def cut() -> Iterator[Tensor]:
        # Classes first: reductions over a handful of classes then run along contiguous samples.
        for z in logits.split(max(1, BLOCK // logits.shape[1])):
            yield (z.double() - z.amax(dim=1, keepdim=True)).T.contiguous()

    kept = list(cut()) if logits.numel() <= KEPT else None

    def sums(b: float) -> tuple[float, float]:
        gradient, curvature = -target, 0.0
        for z in kept or cut():
            p = torch.mul(z, b).exp_()
            total = p.sum(0)
            p.mul_(z)
            mean = p.sum(0).div_(total)
            second = p.mul_(z).sum(0).div_(total)
            gradient += float(mean.sum())
            curvature += float(second.sum() - mean.dot(mean))
        return gradient, curvature

    return sums


@dataclass(frozen=True)
class Training:
    """How a scaler net is trained: full-batch Adam, stopped early on a fifth of the client's own samples.

    The K-64-64-K net overfits a few hundred held-out points within a few hundred steps. The fifth is the same in every
    round: one drawn anew would have been trained on in the round before, and could not tell when to stop. Decay pulls
    the weights towards zero, where the order-preserving net is a plain temperature.
    """

    lr: float = 1e-3
    steps: int = 50
    weight_decay: float = 1e-2
    patience: int = 10
    min_samples: int = 8  # fewer cannot be split: the scaler stays as it started


def train_scaler(
    params: Params,
    apply: Callable[[Params, Tensor], Tensor],
    logits: Tensor,
    labels: Tensor,
    how: Training,
) -> tuple[Params, int]:
    """TrainScaler (Algorithm 1, line 20): the params of the lowest NLL on the stopping split, and the steps to it."""
    if len(labels) < how.min_samples:
        return params, 0
    held = folds(logits, labels) == 0
    (x, y), (x_stop, y_stop) = ((logits[part].float(), labels[part]) for part in (~held, held))
    # One flat vector: a dozen small operations a step rather than a dozen for each of six tensors.
    flat = torch.cat([value.detach().flatten() for value in params.values()]).requires_grad_()
    decay = torch.cat([torch.full((v.numel(),), how.lr * how.weight_decay * (v.ndim > 1)) for v in params.values()])
    adam = Adam(flat, how.lr, decay)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(apply(unflatten(flat, params), x), y)

    best, best_loss, best_step = flat.detach().clone(), math.inf, 0
    for step in range(how.steps + 1):
        with torch.no_grad():
            loss = float(loss_of(x_stop, y_stop))
        if loss < best_loss:
            best, best_loss, best_step = flat.detach().clone(), loss, step
        if step == how.steps or step - best_step >= how.patience or not math.isfinite(loss):
            break
        with torch.enable_grad():  # whatever the caller's mode
            gradient = torch.autograd.grad(loss_of(x, y), flat)[0]
        adam.step(gradient)
    return unflatten(best, params), best_step


class Adam:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019) on one flat tensor (or a stack of them), in place."""

    def __init__(self, flat: Tensor, lr: float, decay: Tensor, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self.flat, self.lr, self.keep, self.betas, self.steps = flat, lr, 1 - decay, betas, 0
        self.first, self.second = torch.zeros_like(flat), torch.zeros_like(flat)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        self.steps += 1
        self.first.lerp_(gradient, 1 - self.betas[0])
        self.second.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        scale = math.sqrt(1 - self.betas[1] ** self.steps)
        size = self.lr * scale / (1 - self.betas[0] ** self.steps)
        self.flat.mul_(self.keep).addcdiv_(self.first, self.second.sqrt().add_(1e-8 * scale), value=-size)
