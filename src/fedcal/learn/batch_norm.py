"""Batch normalisation over the first rows of a batch only, as Triton kernels: for fast.py.

Its graphs have a fixed batch size, and the last batch of an epoch is smaller. How many rows count is a number on the
GPU, read by the kernels; the rows after them are neither looked at nor learnt from. (These kernels are also faster than
PyTorch's for narrow channels-last tensors, so whole batches use them too.)

An input (n, c, h, w) in channels-last layout is a matrix of n·h·w rows and c columns.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportPossiblyUnboundVariable=false
# (Triton comes with PyTorch for GPUs only, and its kernels are not Python)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

PROGRAMS = 256  # that share the rows of a sum; a power of two


def batch_norm(norm: nn.BatchNorm2d, x: Tensor, rows: Tensor) -> Tensor:
    """`norm(x)` in training, as if the batch ended after the first `rows` (int32, one element) images."""
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    return BatchNorm.apply(x, norm.weight, norm.bias, rows, norm)  # pyright: ignore[reportReturnType]


class BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, rows: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        _, c, h, w = x.shape
        shape = {"SIZE": h * w, "C": c, "WIDE": triton.next_power_of_2(c)}
        partial = torch.empty(2, PROGRAMS, c, device=x.device)
        mean, inverse = torch.empty(c, device=x.device), torch.empty(c, device=x.device)
        _sums[(PROGRAMS,)](x, x, mean, inverse, partial, rows, STEP=_step(c), BACKWARD=False, **shape)
        _statistics[(1,)](
            partial, rows, mean, inverse, norm.running_mean, norm.running_var, norm.momentum, norm.eps,
            PARTS=PROGRAMS, **shape,
        )  # fmt: skip
        out = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), c * _step(c)),)
        _apply[grid](x, out, mean, inverse, weight, bias, x.numel() // c, STEP=_step(c), C=c, WIDE=shape["WIDE"])
        ctx.save_for_backward(x, weight, mean, inverse, rows)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, rows = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        _, c, h, w = x.shape
        shape = {"SIZE": h * w, "C": c, "WIDE": triton.next_power_of_2(c)}
        partial = torch.empty(2, PROGRAMS, c, device=x.device)
        _sums[(PROGRAMS,)](x, dy, mean, inverse, partial, rows, STEP=_step(c), BACKWARD=True, **shape)
        biases, weights = partial.sum(1)
        dx = torch.empty_like(x)
        grid = (triton.cdiv(x.numel(), c * _step(c)),)
        _descend[grid](x, dy, dx, mean, inverse, weight, biases, weights, rows, x.numel() // c, STEP=_step(c), **shape)
        return dx, weights, biases, None, None


def _step(channels: int) -> int:
    """Rows that a program handles at once."""
    return max(1, 4096 // triton.next_power_of_2(channels))


@triton.jit
def _sums(
    x, dy, mean, inverse, partial, rows,
    SIZE: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr, BACKWARD: tl.constexpr,
):  # fmt: skip
    """Each program's part of Σ x and Σ x² (forward), or of Σ dy and Σ dy·x̂ (backward), by channel."""
    valid = tl.load(rows) * SIZE
    channel = tl.arange(0, WIDE)
    inside = channel < C
    first = tl.zeros([STEP, WIDE], tl.float32)
    second = tl.zeros([STEP, WIDE], tl.float32)
    if BACKWARD:
        centre = tl.load(mean + channel, mask=inside, other=0.0)[None, :]
        scale = tl.load(inverse + channel, mask=inside, other=0.0)[None, :]
    for start in range(tl.program_id(0) * STEP, valid, tl.num_programs(0) * STEP):
        row = start + tl.arange(0, STEP)
        at = row[:, None] * C + channel[None, :]
        here = (row < valid)[:, None] & inside[None, :]
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        if BACKWARD:
            slope = tl.load(dy + at, mask=here, other=0.0).to(tl.float32)
            first += slope
            second += slope * (value - centre) * scale
        else:
            first += value
            second += value * value
    mine = tl.program_id(0) * C + channel
    tl.store(partial + mine, tl.sum(first, 0), mask=inside)
    tl.store(partial + tl.num_programs(0) * C + mine, tl.sum(second, 0), mask=inside)


@triton.jit
def _statistics(
    partial, rows, mean, inverse, running_mean, running_var, momentum, eps,
    SIZE: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Mean and 1 / deviation from the parts, and the running statistics moved towards them."""
    count = (tl.load(rows) * SIZE).to(tl.float32)
    channel = tl.arange(0, WIDE)
    inside = channel < C
    at = tl.arange(0, PARTS)[:, None] * C + channel[None, :]
    average = tl.sum(tl.load(partial + at, mask=inside[None, :], other=0.0), 0) / count
    square = tl.sum(tl.load(partial + PARTS * C + at, mask=inside[None, :], other=0.0), 0) / count
    var = tl.maximum(square - average * average, 0.0)
    tl.store(mean + channel, average, mask=inside)
    tl.store(inverse + channel, 1.0 / tl.sqrt(var + eps), mask=inside)
    old = tl.load(running_mean + channel, mask=inside)
    tl.store(running_mean + channel, old + momentum * (average - old), mask=inside)
    old = tl.load(running_var + channel, mask=inside)
    tl.store(running_var + channel, old + momentum * (var * count / (count - 1.0) - old), mask=inside)


@triton.jit
def _apply(
    x, out, mean, inverse, weight, bias, n_rows, C: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    channel = tl.arange(0, WIDE)
    inside = channel < C
    scale = tl.load(inverse + channel, mask=inside) * tl.load(weight + channel, mask=inside)
    centre = tl.load(mean + channel, mask=inside)
    shift = tl.load(bias + channel, mask=inside)
    row = tl.program_id(0) * STEP + tl.arange(0, STEP)
    at = row[:, None] * C + channel[None, :]
    here = (row < n_rows)[:, None] & inside[None, :]
    value = tl.load(x + at, mask=here).to(tl.float32)
    tl.store(out + at, (value - centre[None, :]) * scale[None, :] + shift[None, :], mask=here)


@triton.jit
def _descend(
    x, dy, dx, mean, inverse, weight, biases, weights, rows, n_rows,
    SIZE: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """dx = γ/σ · (dy − mean(dy) − x̂ · mean(dy·x̂)), and nothing for rows that do not count."""
    valid = tl.load(rows) * SIZE
    count = valid.to(tl.float32)
    channel = tl.arange(0, WIDE)
    inside = channel < C
    scale = tl.load(inverse + channel, mask=inside)
    centre = tl.load(mean + channel, mask=inside)
    factor = scale * tl.load(weight + channel, mask=inside)
    level = tl.load(biases + channel, mask=inside) / count
    slope = tl.load(weights + channel, mask=inside) / count
    row = tl.program_id(0) * STEP + tl.arange(0, STEP)
    at = row[:, None] * C + channel[None, :]
    here = (row < n_rows)[:, None] & inside[None, :]
    value = (tl.load(x + at, mask=here).to(tl.float32) - centre[None, :]) * scale[None, :]
    gradient = tl.load(dy + at, mask=here).to(tl.float32)
    out = factor[None, :] * (gradient - level[None, :] - value * slope[None, :])
    tl.store(dx + at, tl.where((row < valid)[:, None], out, 0.0), mask=here)
