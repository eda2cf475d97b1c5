"""Train a scaler net: TrainScaler of Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from fedcal.base.arrays import sum_of
from fedcal.base.folds import folds
from fedcal.base.logits import BLOCK
from fedcal.nets.mlp import Net, order_preserving, unflatten
from fedcal.nets.training import Training

BETAS = 0.9, 0.999  # of Adam: how much of the mean gradient and of its square is kept


def train_scaler(
    params: Net,
    apply: Callable[[Net, Tensor], Tensor],
    logits: Tensor,
    labels: Tensor,
    how: Training,
) -> tuple[Net, int]:
    """TrainScaler (Algorithm 1, line 20): the params of the lowest NLL on the stopping split, and the steps to it."""
    if len(labels) < how.min_samples:
        return params, 0
    held = torch.from_numpy(folds(logits.numpy(), labels.numpy()) == 0)
    (x, y), (x_stop, y_stop) = ((logits[part].float(), labels[part]) for part in (~held, held))
    # One flat vector: a dozen small operations per step rather than a dozen for each of six tensors.
    flat = torch.cat([value.detach().flatten() for value in params.values()]).requires_grad_()
    decay = torch.cat([torch.full((v.numel(),), how.lr * how.weight_decay * (v.ndim > 1)) for v in params.values()])
    adam = Adam(flat, how.lr, decay)

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(apply(unflatten(flat, params), x), y)

    stopping = EarlyStopping(flat, how.patience)
    for step in range(how.steps + 1):
        with torch.no_grad():
            loss = loss_of(x_stop, y_stop)
        if not stopping.goes_on(flat, loss) or step == how.steps:
            break
        with torch.enable_grad():  # whatever the caller's mode
            gradient = torch.autograd.grad(loss_of(x, y), flat)[0]
        adam.step(gradient)
    return unflatten(stopping.best, params), stopping.steps[0]


class EarlyStopping:
    """Keep the parameters of the lowest loss, and stop after `patience` steps without a lower one.

    For one flat vector of parameters and its loss, or for a stack of them that stop one by one.

    Attributes:
        best: The parameters of the lowest loss so far.
    """

    def __init__(self, flat: Tensor, patience: int, margin: float = 0.0) -> None:
        """Losses that are not lower by more than `margin` do not count as lower."""
        self.best, self.patience, self.margin, self.step = flat.detach().clone(), patience, margin, 0
        shape = flat.shape[:-1]  # NumPy: on arrays this small it takes half of the time that PyTorch takes
        self._loss, self._step, self._active = np.full(shape, np.inf), np.zeros(shape, int), np.ones(shape, bool)

    @property
    def steps(self) -> list[int]:
        """How many steps led to the best parameters, for each vector."""
        return self._step.flatten().tolist()

    def goes_on(self, flat: Tensor, loss: Tensor) -> bool:
        """Note the loss before the next step; returns whether that step is to be made."""
        losses = loss.detach().numpy()
        better = self._active & (losses < self._loss - self.margin)
        if better.any():
            self.best = torch.where(torch.from_numpy(np.asarray(better))[..., None], flat.detach(), self.best)
            self._loss, self._step = np.where(better, losses, self._loss), np.where(better, self.step, self._step)
        self._active = self._active & (self.step - self._step < self.patience) & np.isfinite(losses)
        self.step += 1
        return bool(self._active.any())


class Adam:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019) on one flat tensor (or a stack of them), in place."""

    def __init__(self, flat: Tensor, lr: float, decay: Tensor) -> None:
        self.flat, self.lr, self.keep, self.steps = flat, lr, 1 - decay, 0
        self.first, self.second = torch.zeros_like(flat), torch.zeros_like(flat)

    @torch.no_grad()
    def step(self, gradient: Tensor) -> None:
        self.steps += 1
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        scale = math.sqrt(1 - BETAS[1] ** self.steps)
        size = self.lr * scale / (1 - BETAS[0] ** self.steps)
        self.flat.mul_(self.keep).addcdiv_(self.first, self.second.sqrt().add_(1e-8 * scale), value=-size)


def net_sums(net: Net, logits: Tensor, labels: Tensor, held: int) -> tuple[Net, Tensor]:
    """Sum an order-preserving net's gradient over all samples but the first `held`, and its loss over these."""
    net = {name: value.clone().requires_grad_() for name, value in net.items()}
    with torch.enable_grad():  # whatever the caller's mode
        blocks = _blocks(logits[held:], labels[held:])
        parts = [torch.autograd.grad(_summed_nll(net, *block), list(net.values())) for block in blocks]
    with torch.no_grad():
        stop_loss = sum_of(_summed_nll(net, *block) for block in _blocks(logits[:held], labels[:held]))
    return {name: sum_of(of_one) for name, of_one in zip(net, zip(*parts, strict=True), strict=True)}, stop_loss


def _blocks(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some samples at a time: a net's gradient needs many times their memory."""
    rows = max(1, BLOCK // logits.shape[1])
    for z, y in zip(logits.split(rows), labels.split(rows), strict=True):
        yield z.double(), y


def _summed_nll(net: Net, logits: Tensor, labels: Tensor) -> Tensor:
    calibrated = order_preserving(net, logits, sorted_input=True)
    return torch.nn.functional.cross_entropy(calibrated, labels, reduction="sum")
