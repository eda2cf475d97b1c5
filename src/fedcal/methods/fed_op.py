"""Fed-OP: FedCal's order-preserving net, trained on everybody's calibration data at once by summed gradients.

Each client keeps a fifth of its samples back; the server stops when their summed loss no longer falls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.base.logits import BLOCK, Params
from fedcal.base.seeds import torch_rng
from fedcal.exact.prepared import Prepared
from fedcal.exact.private import fit_privately
from fedcal.exact.queries import SumQuery, sum_of
from fedcal.exact.solve import Program
from fedcal.methods.method import Additive, Stage, option
from fedcal.nets.mlp import init_mlp, order_preserving, unflatten
from fedcal.nets.train import Adam, EarlyStopping


@dataclass(frozen=True)
class NetGradient(SumQuery):
    """Loss and gradient of a net on four fifths of the samples, and its loss on the fifth that is kept back."""

    net: Params

    def reply(self, samples: Prepared) -> Params:
        part = samples.part()
        held = part.sizes[0]  # the first fold is kept back
        logits, labels = part.logits, part.y
        net = {name: value.clone().requires_grad_() for name, value in self.net.items()}
        with torch.enable_grad():  # whatever the caller's mode
            blocks = _blocks(logits[held:], labels[held:])
            parts = [torch.autograd.grad(_summed_nll(net, *block), list(net.values())) for block in blocks]
        with torch.no_grad():
            stop_loss = sum_of(_summed_nll(self.net, *block) for block in _blocks(logits[:held], labels[:held]))
        gradients = (sum_of(of_one) for of_one in zip(*parts, strict=True))
        counts = {"n": float(len(labels) - held), "stop_n": float(held)}
        sums = {name: torch.tensor(count, dtype=torch.float64) for name, count in counts.items()}
        return {**dict(zip(net, gradients, strict=True)), **sums, "stop_loss": stop_loss}


@dataclass(frozen=True)
class FedOP(Additive):
    leaves = "sums of loss and gradient of a K-H-H-K net"
    private = True

    name: str = "fed-op"
    summary: str = "one order-preserving net by summed gradients"
    rounds: int = option(300, "Rounds at most.", low=1)
    hidden: int = option(16, "Units of a hidden layer of the net.", low=1, high=4096)
    lr: float = option(1e-2, "Adam's learning rate.", above=0)
    weight_decay: float = option(1e-2, "Weight decay of the net.", low=0)
    patience: int = option(30, "Stop after so many rounds without a lower loss on the samples kept back.", low=1)

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        return (Stage(NetGradient, self.rounds),)

    def program(self, n_classes: int) -> Program:
        net = init_mlp(n_classes, self.hidden, torch_rng(0, "fed-op"))
        flat = torch.cat([value.flatten() for value in net.values()]).double()
        decay = torch.cat([torch.full((v.numel(),), self.lr * self.weight_decay * (v.ndim > 1)) for v in net.values()])
        adam = Adam(flat, self.lr, decay.double())
        stopping = EarlyStopping(flat, self.patience, margin=1e-6)
        for _ in range(max(self.rounds - 1, 1)):
            sums = yield NetGradient(unflatten(flat, net))
            if not stopping.goes_on(flat, sums["stop_loss"] / sums["stop_n"].clamp_min(1)):
                break
            adam.step(torch.cat([sums[name].flatten() for name in net]) / sums["n"].clamp_min(1))
        return unflatten(stopping.best, net)

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        """The net that is a temperature: a private budget does not carry gradients of hundreds of weights for many rounds."""
        fit = yield from fit_privately(n_classes, "temperature", clip)
        net = init_mlp(n_classes, self.hidden, torch_rng(0, "fed-op"))
        scale = fit.t.clamp(1e-3, 1e3)
        stretch = scale + torch.log(-torch.expm1(-scale))  # its softplus is the scale
        net |= {"w3": torch.zeros_like(net["w3"]).double(), "b3": stretch.expand(n_classes)}
        return {name: value.double() for name, value in net.items()}

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return order_preserving(params, logits, sorted_input=True)


def _blocks(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some samples at a time: a net's gradient needs many times their memory."""
    rows = max(1, BLOCK // logits.shape[1])
    for z, y in zip(logits.split(rows), labels.split(rows), strict=True):
        yield z.double(), y


def _summed_nll(net: Params, logits: Tensor, labels: Tensor) -> Tensor:
    calibrated = order_preserving(net, logits, sorted_input=True)
    return torch.nn.functional.cross_entropy(calibrated, labels, reduction="sum")
