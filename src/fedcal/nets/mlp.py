"""The paper's scaler nets: K-H-H-K, order-preserving (Appendix B) or not.

Everything works in the wider type of its arguments, so training may run in float32 while serving, in float64, loses no rank.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from fedcal.base.arrays import falling, softplus, tracing
from fedcal.base.logits import keep_order

Net = dict[str, Tensor]  # weights and biases by name

IDENTITY = math.log(math.e - 1)  # softplus of this is 1


def init_mlp(n_classes: int, hidden: int, rng: torch.Generator) -> Net:
    """A K-H-H-K net whose last layer is small with bias ln(e − 1): as an order-preserving scaler, the identity."""
    sizes = [n_classes, hidden, hidden, n_classes]
    params: Net = {}
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes), start=1):
        bound = 1e-3 if layer == 3 else 1 / math.sqrt(fan_in)
        params[f"w{layer}"] = (torch.rand(fan_out, fan_in, generator=rng) * 2 - 1) * bound
        params[f"b{layer}"] = (torch.rand(fan_out, generator=rng) * 2 - 1) * bound
    params["b3"] = torch.full((n_classes,), IDENTITY)
    return params


def unflatten(flat: Tensor, like: Net) -> Net:
    """A flat vector cut into tensors of the names and shapes of `like`."""
    parts = flat.split([value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def mlp(params: Net, x: Tensor) -> Tensor:
    """The net itself: ReLU between its layers, none at the end."""
    depth = len(params) // 2
    for layer in range(1, depth + 1):
        x = torch.nn.functional.linear(x, params[f"w{layer}"].to(x.dtype), params[f"b{layer}"].to(x.dtype))
        x = torch.relu(x) if layer < depth else x
    return x


def order_preserving(params: Net, logits: Tensor, sorted_input: bool = False) -> Tensor:
    """S⁻¹ U w (Appendix B): the gaps between sorted logits, each stretched by a positive factor from the net.

    The sum runs down from the top class (fixed at 0) where the appendix's runs up from the last one: a shift that
    softmax ignores, and the top classes, the ones that matter, keep full floating-point resolution.
    """
    # ONNX has no stable sort; how ties are broken does not change their values.
    y, order = logits.topk(logits.shape[1], dim=1) if tracing(logits) else falling(logits)
    stretch = softplus(mlp(params, y if sorted_input else logits))[:, :-1]
    w = stretch * (y[:, :-1] - y[:, 1:])
    ranked = torch.nn.functional.pad(-w.cumsum(dim=1), (1, 0))
    out = torch.empty_like(ranked).scatter(1, order, ranked)
    training = out.requires_grad and not logits.requires_grad
    return out if training else keep_order(out, logits)


def plain_mlp(params: Net, logits: Tensor) -> Tensor:
    """The ablation without order preservation: θ plus an arbitrary correction (the identity at the start)."""
    return logits + mlp(params, logits) - IDENTITY
