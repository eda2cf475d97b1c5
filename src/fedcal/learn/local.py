"""The reference loop of learning: a client's local epochs, the server's average. What fast.py must equal."""

# pyright: reportPrivateImportUsage=false
# (PyTorch's own optimisers use the _foreach functions too)

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError, said

State = dict[str, Tensor]  # a model's parameters and buffers, as in state_dict()


@dataclass(frozen=True)
class SGD:
    """How a client trains; `prox_mu` > 0 adds FedProx's (µ/2)‖θ − θᵗ‖², θᵗ being the model as it came in."""

    lr: float = 0.01
    batch_size: int = 256
    epochs: int = 3
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox_mu: float = 0.0


@dataclass(frozen=True)
class Job:
    """One client's part of a round, and the inputs whose logits are wanted before and after its training."""

    received: State  # θᵗ
    x: Tensor
    y: Tensor
    rng: np.random.Generator
    before: dict[str, Tensor] = field(default_factory=dict)  # under θᵗ
    after: dict[str, Tensor] = field(default_factory=dict)  # under the client's own θ_c


@dataclass(frozen=True)
class Trained:
    """What came of a job: the client's model, its last epoch's mean loss, the logits asked for (on the CPU)."""

    state: State
    loss: float
    before: dict[str, Tensor]
    after: dict[str, Tensor]


def train_in_turn(model: nn.Module, jobs: list[Job], how: SGD, random: bool = False) -> list[Trained]:
    """The round's clients one after the other: the reference that faster engines must equal.

    Args:
        model: which is trained in place, again and again.
        jobs: the clients' parts.
        how: they train.
        random: whether the model draws random numbers in training, as dropout does: from the client's stream then, so that
            a run repeats itself.
    """
    done = []
    for job in jobs:
        model.load_state_dict(job.received)
        before = {name: predict(model, x) for name, x in job.before.items()}
        with _global_stream(job) if random else nullcontext():
            loss = train_locally(model, job.x, job.y, how, job.rng)
        after = {name: predict(model, x) for name, x in job.after.items()}
        done.append(Trained(copy_state(model), loss, before, after))
    return done


@contextmanager
def _global_stream(job: Job) -> Iterator[None]:
    """Lend the global generator to a job: modules draw from no other."""
    seed = int(job.rng.spawn(1)[0].integers(2**63 - 1))  # a child: the order of batches stays the same
    with torch.random.fork_rng(devices=[] if job.x.is_cpu else [job.x.device]):
        torch.manual_seed(seed)
        yield


@contextmanager
def failing_as_one_line(x: Tensor) -> Iterator[None]:
    """A model that fails, a user's own for instance, as one line; the cause stays attached."""
    try:
        yield
    except FedCalError:
        raise
    except Exception as error:
        about = f"{tuple(x.shape[1:])}, {str(x.dtype).removeprefix('torch.')}"
        raise FedCalError(f"the model fails on inputs of shape {about} ({said(error)})") from error


def train_locally(model: nn.Module, x: Tensor, y: Tensor, how: SGD, rng: np.random.Generator) -> float:
    """Algorithm 1, lines 14–19: E epochs of SGD on (x, y), in place; returns the last epoch's mean loss.

    On a CPU this is the work of one thread, so that any number of them gives the same bytes.
    """
    with one_thread() if x.is_cpu else nullcontext(), failing_as_one_line(x):
        return _train_locally(model, x, y, how, rng)


def _train_locally(model: nn.Module, x: Tensor, y: Tensor, how: SGD, rng: np.random.Generator) -> float:
    model.train()
    params: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
    received = [p.detach().clone() for p in params] if how.prox_mu else []
    velocity = [torch.zeros_like(p) for p in params] if how.momentum else []
    total = torch.zeros((), device=x.device)
    for _ in range(how.epochs):
        order = torch.from_numpy(rng.permutation(len(y))).to(x.device)
        total.zero_()
        for batch in order.split(how.batch_size):
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            gradients = list(torch.autograd.grad(loss, params, allow_unused=True, materialize_grads=True))
            descend(params, gradients, velocity, received, how)
            total += loss.detach() * len(batch)
    return float(total) / len(y)


@torch.no_grad()
def descend(
    params: list[Tensor], gradients: list[Tensor], velocity: list[Tensor], received: list[Tensor], how: SGD
) -> None:
    """One step of SGD, all tensors together (on a GPU a few kernels rather than a few for each)."""
    if how.prox_mu:
        torch._foreach_add_(gradients, torch._foreach_sub(params, received), alpha=how.prox_mu)
    if how.weight_decay:
        torch._foreach_add_(gradients, params, alpha=how.weight_decay)
    if how.momentum:
        torch._foreach_mul_(velocity, how.momentum)
        torch._foreach_add_(velocity, gradients)
        gradients = velocity
    torch._foreach_add_(params, gradients, alpha=-how.lr)


def average(states: list[State], by: Sequence[float]) -> State:
    """FedAvg's Σ (n_c / N) θ_c (line 7), summed in float64. Integer buffers (counters) stay the first client's."""
    weights = (np.asarray(by, np.float64) / np.sum(by)).tolist()
    names = [name for name, value in states[0].items() if value.is_floating_point()]
    total = [torch.zeros_like(states[0][name], dtype=torch.float64) for name in names]
    for state, weight in zip(states, weights, strict=True):
        torch._foreach_add_(total, [state[name] for name in names], alpha=weight)
    means = dict(zip(names, total, strict=True))
    return {name: means[name].to(v.dtype) if name in means else v.clone() for name, v in states[0].items()}


def predict(model: nn.Module, x: Tensor, batch_size: int = 2048) -> Tensor:
    """The model's logits, on the CPU in float64, where calibration and measuring happen.

    On a CPU a batch belongs to one thread, so that any number of them gives the same bytes.
    """
    model.eval()
    if not len(x):  # pooling layers refuse an empty batch: a sample of zeros tells the width
        return _forward(model, x.new_zeros(1, *x.shape[1:]))[:0].cpu().double()
    parts = x.split(batch_size)
    if x.is_cpu and len(parts) > 1 and torch.get_num_threads() > 1:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            found = list(pool.map(lambda part: _forward(model, part), parts))
    else:
        found = [_forward(model, part) for part in parts]
    return torch.cat(found).cpu().double()


@torch.no_grad()
def _forward(model: nn.Module, x: Tensor) -> Tensor:
    with one_thread(), failing_as_one_line(x):
        return model(x)


def copy_state(model: nn.Module) -> State:
    """A detached copy of the model's state."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
