"""Scalers: pure functions of (params, logits) that give calibrated logits (log-probabilities up to a shift).

`params` is a flat dict of tensors: the same thing in memory, in a safetensors file and on the wire. Everything here
works in the wider type of the two arguments, so training may run in float32 while serving, in float64, loses no rank.

A traced graph (torch.export, ONNX, torch.compile) cannot branch on values. Where a function does, `is_compiling` picks a
branch-free form: equal but for rounding, and `keep_order` does not mend what rounding did to near-ties.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedcal.threads import one_thread

Params = dict[str, Tensor]

# No real model needs a temperature beyond these: a fit that ends there had no optimum.
T_MIN, T_MAX = 0.05, 20.0
BLOCK = 1 << 16  # logits handled at once: what fits a core's cache
IDENTITY = math.log(math.e - 1)  # softplus of this is 1


def temperature(params: Params, logits: Tensor) -> Tensor:
    """θ / T."""
    return keep_order(logits / params["temperature"], logits)


def linear_temperature(params: Params, logits: Tensor) -> Tensor:
    """θ / T(θ) with T(θ) = Wθ + b: one temperature a sample, so order is kept."""
    t = logits @ params["weight"].to(logits.dtype) + params["bias"]
    return keep_order(logits / t.clamp(T_MIN, T_MAX)[:, None], logits)


def ensemble(params: Params, logits: Tensor) -> Tensor:
    """log of the mean of the clients' scaled probabilities, (1/C) Σ_c σ(θ / T_c); a few clients at a time."""
    temperatures = params["temperatures"]
    parts = [torch.log_softmax(logits / some[:, None, None], dim=2).logsumexp(dim=0) for some in temperatures.split(16)]
    return keep_order(torch.stack(parts).logsumexp(dim=0) - math.log(len(temperatures)), logits)


def init_mlp(n_classes: int, hidden: int, rng: torch.Generator) -> Params:
    """A K-H-H-K net whose last layer is small with bias ln(e − 1): as an order-preserving scaler, the identity."""
    sizes = [n_classes, hidden, hidden, n_classes]
    params: Params = {}
    for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes), start=1):
        bound = 1e-3 if layer == 3 else 1 / math.sqrt(fan_in)
        params[f"w{layer}"] = (torch.rand(fan_out, fan_in, generator=rng) * 2 - 1) * bound
        params[f"b{layer}"] = (torch.rand(fan_out, generator=rng) * 2 - 1) * bound
    params["b3"] = torch.full((n_classes,), IDENTITY)
    return params


def unflatten(flat: Tensor, like: Params) -> Params:
    """A flat vector cut into tensors of the names and shapes of `like`."""
    parts = flat.split([value.numel() for value in like.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def mlp(params: Params, x: Tensor) -> Tensor:
    """The net itself: ReLU between its layers, none at the end."""
    depth = len(params) // 2
    for layer in range(1, depth + 1):
        x = torch.nn.functional.linear(x, params[f"w{layer}"].to(x.dtype), params[f"b{layer}"].to(x.dtype))
        x = torch.relu(x) if layer < depth else x
    return x


def order_preserving(params: Params, logits: Tensor, sorted_input: bool = False) -> Tensor:
    """S⁻¹ U w (Appendix B): the gaps between sorted logits, each stretched by a positive factor from the net.

    The sum runs down from the top class (fixed at 0) where the appendix's runs up from the last one: a shift that
    softmax ignores, and the top classes, the ones that matter, keep full floating-point resolution.
    """
    y, order = _ranked(logits)
    stretch = softplus(mlp(params, y if sorted_input else logits))[:, :-1]
    w = stretch * (y[:, :-1] - y[:, 1:])
    ranked = torch.nn.functional.pad(-w.cumsum(dim=1), (1, 0))
    out = torch.empty_like(ranked).scatter(1, order, ranked)
    training = out.requires_grad and not logits.requires_grad
    return out if training else keep_order(out, logits)


def _ranked(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each row in falling order, and where it came from."""
    if torch.compiler.is_compiling():  # ONNX has no stable sort; how ties are broken does not change their values
        return logits.topk(logits.shape[1], dim=1)
    return logits.sort(dim=1, descending=True, stable=True)


def softplus(x: Tensor) -> Tensor:
    """log(1 + eˣ)."""
    if torch.compiler.is_compiling():  # onnxruntime has none in float64
        return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))
    return torch.nn.functional.softplus(x)


def plain_mlp(params: Params, logits: Tensor) -> Tensor:
    """The ablation without order preservation: θ plus an arbitrary correction (the identity at the start)."""
    return logits + mlp(params, logits) - IDENTITY


def keep_order(out: Tensor, logits: Tensor) -> Tensor:
    """Put back, by the least floating-point steps, any order of `logits` that rounding lost in `out`."""
    if torch.compiler.is_compiling():
        return out
    if out.requires_grad:  # the gradient is that of `out`
        return out + (keep_order(out.detach(), logits.detach()) - out).detach()
    y, order = logits.sort(dim=1, descending=True, stable=True)
    ranked = out.gather(1, order)
    tied = y[:, 1:] == y[:, :-1]
    fine = torch.where(tied, ranked[:, 1:] == ranked[:, :-1], ranked[:, 1:] < ranked[:, :-1])
    if bool(fine.all()):
        return out
    below = torch.full_like(ranked[:, 0], -math.inf)
    columns = [ranked[:, 0]]
    for k in range(1, ranked.shape[1]):
        above = columns[-1]
        lower = torch.minimum(ranked[:, k], torch.nextafter(above, below))
        columns.append(torch.where(tied[:, k - 1], above, lower))
    return torch.empty_like(out).scatter(1, order, torch.stack(columns, dim=1))


def ordered_softmax(u: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Probabilities in the order of u, where rounding alone would tie classes that u tells apart, or swap them."""
    p = u.softmax(dim=1).to(dtype)
    if torch.compiler.is_compiling():
        return p
    if p.requires_grad:  # the gradient is that of the softmax
        return p + (ordered_softmax(u.detach(), dtype) - p).detach()
    y, order = u.sort(dim=1, descending=False, stable=True)
    ranked = p.gather(1, order)
    tied = y[:, 1:] == y[:, :-1]
    fine = torch.where(tied, ranked[:, 1:] == ranked[:, :-1], ranked[:, 1:] > ranked[:, :-1]).all(dim=1)
    if bool(fine.all()):
        return p
    # From the least probable class upwards, so that none falls below 0; a step is the smallest that there is.
    rows = (~fine).nonzero()[:, 0]
    ranked, tied = ranked[rows], tied[rows]
    above = torch.full_like(ranked[:, 0], math.inf)
    columns = [ranked[:, 0]]
    for k in range(1, ranked.shape[1]):
        higher = torch.maximum(ranked[:, k], torch.nextafter(columns[-1], above))
        columns.append(torch.where(tied[:, k - 1], columns[-1], higher))
    p[rows] = torch.empty_like(ranked).scatter(1, order[rows], torch.stack(columns, dim=1))
    return p


@one_thread()
def by_rows(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Apply a function of single rows to a block of them at a time: memory for the result, and little else."""
    rows = max(1, BLOCK // logits.shape[1])
    if len(logits) <= rows:
        return function(logits)
    out = torch.empty(logits.shape, dtype=torch.float64)
    for start in range(0, len(logits), rows):
        out[start : start + rows] = function(logits[start : start + rows])
    return out
