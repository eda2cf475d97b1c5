"""Fed-OP: FedCal's order-preserving net, trained on everybody's calibration data at once by summed gradients.

Each client keeps a fifth of its samples back; the server stops when their summed loss no longer falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedcal.calibrate import scalers
from fedcal.calibrate.answers import Site
from fedcal.calibrate.fit import Adam
from fedcal.calibrate.folds import folds
from fedcal.calibrate.methods.method import Additive, Update
from fedcal.calibrate.scalers import Params
from fedcal.calibrate.solve import Program
from fedcal.seeds import torch_rng


@dataclass(frozen=True)
class FedOP(Additive):
    leaves = "sums of loss and gradient of a K-H-H-K net"

    summary: str = "one order-preserving net by summed gradients"
    rounds: int = 300
    hidden: int = 16
    lr: float = 1e-2
    weight_decay: float = 1e-2
    patience: int = 30

    def program(self, n_classes: int) -> Program:
        net = scalers.init_mlp(n_classes, self.hidden, torch_rng(0, "fed-op"))
        flat = torch.cat([value.flatten() for value in net.values()]).double()
        decay = torch.cat([torch.full((v.numel(),), self.lr * self.weight_decay * (v.ndim > 1)) for v in net.values()])
        adam = Adam(flat, self.lr, decay.double())
        best, best_loss, waited = flat.clone(), math.inf, 0
        for _ in range(self.rounds - 1):
            sums = yield scalers.unflatten(flat, net)
            stop_loss = float(sums["stop_loss"] / sums["stop_n"].clamp_min(1))
            if stop_loss < best_loss - 1e-6:
                best, best_loss, waited = flat.clone(), stop_loss, 0
            elif (waited := waited + 1) >= self.patience or not math.isfinite(stop_loss):
                break
            adam.step(torch.cat([sums[name].flatten() for name in net]) / sums["n"].clamp_min(1))
        return scalers.unflatten(best, net)

    def respond(self, question: Params, own: Params, site: Site) -> Update:
        logits, labels = site.logits, site.labels
        held = folds(logits, labels) == 0
        net = {name: value.clone().requires_grad_() for name, value in question.items()}
        with torch.enable_grad():  # whatever the caller's mode
            loss = _summed_nll(net, logits[~held].double(), labels[~held])
            gradients = torch.autograd.grad(loss, list(net.values()))
        with torch.no_grad():
            stop_loss = _summed_nll(question, logits[held].double(), labels[held])
        counts = {"n": (~held).sum().double(), "stop_n": held.sum().double(), "stop_loss": stop_loss}
        return Update({**dict(zip(net, gradients, strict=True)), **counts})

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        return scalers.order_preserving(params, logits, sorted_input=True)


def _summed_nll(net: Params, logits: Tensor, labels: Tensor) -> Tensor:
    calibrated = scalers.order_preserving(net, logits, sorted_input=True)
    return torch.nn.functional.cross_entropy(calibrated, labels, reduction="sum")
