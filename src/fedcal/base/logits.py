"""Logits and probabilities: order kept in spite of rounding, many rows in little memory.

A traced graph (torch.export, ONNX, torch.compile) cannot branch on values. Where a function does, `tracing` picks a
branch-free form: equal but for rounding, and `keep_order` does not restore the order of near-ties that rounding lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, falling, is_array, namespace, put, rising, softmax, take, tracing
from fedcal.base.threads import one_thread

BLOCK = 1 << 16  # logits handled at once: what fits a core's cache


def keep_order(out: Any, logits: Any) -> Any:
    """Put back, by the least floating-point steps, any order of `logits` that rounding lost in `out`.

    Takes arrays or tensors.
    """
    if tracing(out):
        return out
    if not is_array(out) and out.requires_grad:  # the gradient is that of `out`
        return out + (keep_order(out.detach(), logits.detach()) - out).detach()
    xp = namespace(out)
    y, order = falling(logits)
    ranked = take(out, order)
    tied = y[:, 1:] == y[:, :-1]
    fine = xp.where(tied, ranked[:, 1:] == ranked[:, :-1], ranked[:, 1:] < ranked[:, :-1])
    if bool(fine.all()):
        return out
    below = xp.full_like(ranked[:, 0], -math.inf)
    columns = [ranked[:, 0]]
    for k in range(1, ranked.shape[1]):
        above = columns[-1]
        lower = xp.minimum(ranked[:, k], xp.nextafter(above, below))
        columns.append(xp.where(tied[:, k - 1], above, lower))
    return put(out, order, xp.stack(columns, 1))


def ordered_softmax(u: Any, dtype: Any = None) -> Any:
    """Probabilities in the order of u, where rounding alone would tie classes that u tells apart, or swap them.

    Takes an array, or a tensor and the type of the result.
    """
    p = softmax(u, 1)
    if not is_array(p) and dtype is not None:
        p = p.to(dtype)
    if tracing(p):
        return p
    if not is_array(p) and p.requires_grad:  # the gradient is that of the softmax
        return p + (ordered_softmax(u.detach(), dtype) - p).detach()
    xp = namespace(p)
    y, order = rising(u)
    ranked = take(p, order)
    tied = y[:, 1:] == y[:, :-1]
    fine = xp.where(tied, ranked[:, 1:] == ranked[:, :-1], ranked[:, 1:] > ranked[:, :-1]).all(1)
    if bool(fine.all()):
        return p
    # From the least probable class upwards, so that none falls below 0; a step is the smallest that there is.
    rows = ~fine
    ranked, tied = ranked[rows], tied[rows]
    above = xp.full_like(ranked[:, 0], math.inf)
    columns = [ranked[:, 0]]
    for k in range(1, ranked.shape[1]):
        higher = xp.maximum(ranked[:, k], xp.nextafter(columns[-1], above))
        columns.append(xp.where(tied[:, k - 1], columns[-1], higher))
    p[rows] = put(ranked, order[rows], xp.stack(columns, 1))
    return p


@one_thread()
def by_rows(function: Callable[[Array], Array], logits: Array, dtype: type = float) -> Array:
    """Apply a function of single rows to a block of them at a time: memory for the result, and little else."""
    rows = max(1, BLOCK // logits.shape[1])
    if len(logits) <= rows:
        return function(logits)
    first = function(logits[:rows])
    out = np.empty((len(logits), first.shape[1]), dtype)
    out[:rows] = first
    for start in range(rows, len(logits), rows):
        out[start : start + rows] = function(logits[start : start + rows])
    return out
