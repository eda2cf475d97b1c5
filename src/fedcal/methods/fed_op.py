"""Fed-OP: FedCal's order-preserving net, trained on everybody's calibration data at once by summed gradients.

Each client keeps a fifth of its samples back; the server stops when their summed loss no longer falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Params, arrays, as_array, tensor, tensors, with_tensors
from fedcal.base.seeds import torch_rng
from fedcal.exact.prepared import Prepared
from fedcal.exact.private import fit_privately
from fedcal.exact.queries import SumQuery
from fedcal.exact.solve import Program
from fedcal.methods.fed_linear import private_fit_stages
from fedcal.methods.method import Additive, Stage, option


@dataclass(frozen=True)
class NetGradient(SumQuery):
    """Loss and gradient of a net on four fifths of the samples, and its loss on the fifth that is kept back."""

    net: Params

    def reply(self, samples: Prepared) -> Params:
        part = samples.part()
        held = part.sizes[0]  # the first fold is kept back
        net, logits, labels = tensors(self.net), tensor(part.logits), tensor(part.y)
        from fedcal.nets.train import net_sums

        gradients, stop_loss = net_sums(net, logits, labels, held)
        counts = {"n": np.array(float(len(labels) - held)), "stop_n": np.array(float(held))}
        return {**arrays(gradients), **counts, "stop_loss": as_array(stop_loss)}


@dataclass(frozen=True)
class FedOP(Additive):
    leaves = "sums of loss and gradient of a K-H-H-K net"

    name: str = "fed-op"
    summary: str = "one order-preserving net by summed gradients"
    rounds: int = option(300, "Rounds at most.", low=1)
    hidden: int = option(16, "Units of a hidden layer of the net.", low=1, high=4096)
    lr: float = option(1e-2, "Adam's learning rate.", above=0)
    weight_decay: float = option(1e-2, "Weight decay of the net.", low=0)
    patience: int = option(30, "Stop after this many rounds without a lower loss on held-out samples.", low=1)

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        return (Stage(NetGradient, self.rounds),)

    def private_stages(self, n_classes: int) -> tuple[Stage, ...]:
        return private_fit_stages("temperature")

    def program(self, n_classes: int) -> Program:
        import torch

        from fedcal.nets.mlp import init_mlp, unflatten
        from fedcal.nets.train import Adam, EarlyStopping

        net = init_mlp(n_classes, self.hidden, torch_rng(0, "fed-op"))
        flat = torch.cat([value.flatten() for value in net.values()]).double()
        decay = torch.cat([torch.full((v.numel(),), self.lr * self.weight_decay * (v.ndim > 1)) for v in net.values()])
        adam = Adam(flat, self.lr, decay.double())
        stopping = EarlyStopping(flat, self.patience, margin=1e-6)
        for _ in range(max(self.rounds - 1, 1)):
            sums = tensors((yield NetGradient(arrays(unflatten(flat, net)))))
            if not stopping.goes_on(flat, sums["stop_loss"] / sums["stop_n"].clamp_min(1)):
                break
            adam.step(torch.cat([sums[name].flatten() for name in net]) / sums["n"].clamp_min(1))
        return arrays(unflatten(stopping.best, net))

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        """The net that is a temperature: a private budget does not carry gradients of hundreds of weights for many rounds."""
        fit = yield from fit_privately(n_classes, "temperature", clip, labels=False)
        from fedcal.nets.mlp import init_mlp

        net = arrays(init_mlp(n_classes, self.hidden, torch_rng(0, "fed-op")))
        scale = np.clip(fit.t[0], 1e-3, 1e3)
        stretch = scale + np.log(-np.expm1(-scale))  # its softplus is the scale
        net |= {"w3": np.zeros_like(net["w3"]), "b3": np.full(n_classes, stretch)}
        told = {"fallback": fit.params["fallback"]} if fit.fallback else {}
        return {name: value.astype(float) for name, value in net.items()} | told

    @with_tensors
    def apply(self, params: Any, logits: Any) -> Any:
        from fedcal.nets.mlp import order_preserving

        return order_preserving(params, logits, sorted_input=True)
