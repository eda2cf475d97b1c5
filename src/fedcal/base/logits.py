"""Logits and probabilities: parameters as tensors, order kept in spite of rounding, many rows in little memory.

A traced graph (torch.export, ONNX, torch.compile) cannot branch on values. Where a function does, `is_compiling` picks a
branch-free form: equal but for rounding, and `keep_order` does not restore the order of near-ties that rounding lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fedcal.base.threads import one_thread

Params = dict[str, Tensor]
BLOCK = 1 << 16  # logits handled at once: what fits a core's cache


def softplus(x: Tensor) -> Tensor:
    """log(1 + eˣ)."""
    if torch.compiler.is_compiling():  # onnxruntime has none in float64
        return x.clamp_min(0) + torch.log1p(torch.exp(-x.abs()))
    return torch.nn.functional.softplus(x)


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
def by_rows(function: Callable[[Tensor], Tensor], logits: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Apply a function of single rows to a block of them at a time: memory for the result, and little else."""
    rows = max(1, BLOCK // logits.shape[1])
    if len(logits) <= rows:
        return function(logits)
    first = function(logits[:rows])
    out = torch.empty(len(logits), first.shape[1], dtype=dtype)
    out[:rows] = first
    for start in range(rows, len(logits), rows):
        out[start : start + rows] = function(logits[start : start + rows])
    return out
