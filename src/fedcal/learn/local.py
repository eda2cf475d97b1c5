"""The reference loop of learning: a client's local epochs, the server's average. What faster engines must equal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

State = dict[str, Tensor]  # a model's parameters and buffers, as in state_dict()


def train_locally(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    lr: float = 0.01,
    batch_size: int = 256,
    epochs: int = 3,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    prox_mu: float = 0.0,
    rng: np.random.Generator,
) -> float:
    """Algorithm 1, lines 14–19: E epochs of SGD on (x, y), in place; returns the last epoch's mean loss.

    `prox_mu` > 0 adds FedProx's (µ/2)‖θ − θᵗ‖², θᵗ being the model as it came in.
    """
    model.train()
    params = [p for p in model.parameters() if p.requires_grad]
    received = [p.detach().clone() for p in params]
    velocity = [torch.zeros_like(p) for p in params]
    total = torch.zeros((), device=x.device)
    for _ in range(epochs):
        order = torch.from_numpy(rng.permutation(len(y))).to(x.device)
        total.zero_()
        for batch in order.split(batch_size):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            gradients = torch.autograd.grad(loss, params)
            with torch.no_grad():
                for p, g, v, anchor in zip(params, gradients, velocity, received, strict=True):
                    if prox_mu:
                        g = g + prox_mu * (p - anchor)
                    if weight_decay:
                        g = g + weight_decay * p
                    if momentum:
                        g = v.mul_(momentum).add_(g)
                    p.sub_(g, alpha=lr)
            total += loss.detach() * len(batch)
    return float(total) / len(y)


def average(states: list[State], by: Sequence[float]) -> State:
    """FedAvg's Σ (n_c / N) θ_c (line 7), summed in float64. Integer buffers (counters) stay the first client's."""
    weights = np.asarray(by, np.float64) / np.sum(by)
    out: State = {}
    for name, first in states[0].items():
        if not first.is_floating_point():
            out[name] = first.clone()
            continue
        total = torch.zeros_like(first, dtype=torch.float64)
        for state, weight in zip(states, weights, strict=True):
            total.add_(state[name].double(), alpha=float(weight))
        out[name] = total.to(first.dtype)
    return out


@torch.no_grad()
def predict(model: nn.Module, x: Tensor, batch_size: int = 2048) -> Tensor:
    """The model's logits, on the CPU in float64, where calibration and measuring happen."""
    model.eval()
    if not len(x):  # pooling layers refuse an empty batch
        width = [m for m in model.modules() if isinstance(m, nn.Linear)][-1].out_features
        return torch.empty(0, width, dtype=torch.float64)
    return torch.cat([model(part) for part in x.split(batch_size)]).cpu().double()


def copy_state(model: nn.Module) -> State:
    """A detached copy of the model's state."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
