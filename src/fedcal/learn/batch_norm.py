"""models.NormReLU over the first rows of a batch only, as Triton kernels: for fast.py.

Its graphs have a fixed batch size, and the last batch of an epoch is smaller. How many rows count is a number on the
GPU, read by the kernels; the rows after them are neither looked at nor learnt from. Whole batches use these kernels too:
normalisation, shortcut and ReLU read and write the activations once rather than three times, forwards and backwards.

An input (n, c, h, w) in channels-last layout is a matrix of n·h·w rows and c columns.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false, reportPossiblyUnboundVariable=false
# (Triton comes with PyTorch for GPUs only, and its kernels are not Python)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedcal.learn.models import NormReLU

PROGRAMS = 256  # that share the rows of a sum; a power of two


def norm_relu(norm: NormReLU, x: Tensor, shortcut: Tensor | None, rows: Tensor) -> Tensor:
    """`norm(x, shortcut)` in training, as if the batch ended after the first `rows` (int32, one element) images.

    The counter of batches is left to the caller: all layers' at once are one kernel.
    """
    return Fused.apply(x, shortcut, norm.weight, norm.bias, rows, norm)  # pyright: ignore[reportReturnType]


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shortcut: Tensor | None, weight: Tensor, bias: Tensor, rows: Tensor, norm: NormReLU
    ) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        add = shortcut is not None
        other = shortcut.contiguous(memory_format=torch.channels_last) if add else x
        shape = _shape(x)
        partial = torch.empty(2, PROGRAMS, shape["C"], device=x.device)
        mean, inverse = torch.empty(2, shape["C"], device=x.device)
        _moments[(PROGRAMS,)](x, partial, rows, **shape)
        _statistics[(1,)](
            partial, rows, mean, inverse, norm.running_mean, norm.running_var, norm.momentum, norm.eps,
            PARTS=PROGRAMS, **shape,
        )  # fmt: skip
        out = torch.empty_like(x)
        _apply[_grid(x)](x, other, out, mean, inverse, weight, bias, x.numel() // shape["C"], ADD=add, **shape)
        ctx.add = add
        ctx.save_for_backward(x, out if add else None, weight, bias, mean, inverse, rows)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, out, weight, bias, mean, inverse, rows = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        shape, known = _shape(x), (mean, inverse, weight, bias)
        partial = torch.empty(2, PROGRAMS, shape["C"], device=x.device)
        out = out if ctx.add else x  # without a shortcut, x tells what ReLU let through
        _slopes[(PROGRAMS,)](x, dy, out, partial, *known, rows, ADD=ctx.add, **shape)
        biases, weights = partial.sum(1)
        dx = torch.empty_like(x)
        past = torch.empty_like(x) if ctx.add else dx  # what goes to the shortcut
        n_rows = x.numel() // shape["C"]
        _descend[_grid(x)](x, dy, out, dx, past, *known, biases, weights, rows, n_rows, ADD=ctx.add, **shape)
        return dx, past if ctx.add else None, weights, biases, None, None


def _shape(x: Tensor) -> dict[str, int]:
    """What the kernels are compiled for: pixels, channels, the next power of two, and rows handled at once."""
    _, c, h, w = x.shape
    wide = triton.next_power_of_2(c)
    return {"SIZE": h * w, "C": c, "WIDE": wide, "STEP": max(1, 4096 // wide)}


def _grid(x: Tensor) -> tuple[int]:
    shape = _shape(x)
    return (triton.cdiv(x.numel(), shape["C"] * shape["STEP"]),)


@triton.jit
def _moments(x, partial, rows, SIZE: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr):
    """Each program's part of Σ x and Σ x², by channel."""
    valid = tl.load(rows) * SIZE
    channel = tl.arange(0, WIDE)
    inside = channel < C
    first = tl.zeros([STEP, WIDE], tl.float32)
    second = tl.zeros([STEP, WIDE], tl.float32)
    for start in range(tl.program_id(0) * STEP, valid, tl.num_programs(0) * STEP):
        row = start + tl.arange(0, STEP)
        at = row[:, None] * C + channel[None, :]
        here = (row < valid)[:, None] & inside[None, :]
        value = tl.load(x + at, mask=here, other=0.0).to(tl.float32)
        first += value
        second += value * value
    mine = tl.program_id(0) * C + channel
    tl.store(partial + mine, tl.sum(first, 0), mask=inside)
    tl.store(partial + tl.num_programs(0) * C + mine, tl.sum(second, 0), mask=inside)


@triton.jit
def _statistics(
    partial, rows, mean, inverse, running_mean, running_var, momentum, eps,
    SIZE: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr, PARTS: tl.constexpr,
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
    x, shortcut, out, mean, inverse, weight, bias, n_rows,
    SIZE: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """out = max(0, γ x̂ + β + shortcut), of every row."""
    channel = tl.arange(0, WIDE)
    inside = channel < C
    centre = tl.load(mean + channel, mask=inside)[None, :]
    scale = tl.load(inverse + channel, mask=inside)[None, :]
    gain = tl.load(weight + channel, mask=inside)[None, :]
    shift = tl.load(bias + channel, mask=inside)[None, :]
    row = tl.program_id(0) * STEP + tl.arange(0, STEP)
    at = row[:, None] * C + channel[None, :]
    here = (row < n_rows)[:, None] & inside[None, :]
    value = (tl.load(x + at, mask=here).to(tl.float32) - centre) * scale * gain + shift
    if ADD:
        value += tl.load(shortcut + at, mask=here).to(tl.float32)
    tl.store(out + at, tl.maximum(value, 0.0), mask=here)


@triton.jit
def _slopes(
    x, dy, out, partial, mean, inverse, weight, bias, rows,
    SIZE: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Each program's part of Σ dy and Σ dy·x̂, by channel, dy being what ReLU lets through."""
    valid = tl.load(rows) * SIZE
    channel = tl.arange(0, WIDE)
    inside = channel < C
    centre = tl.load(mean + channel, mask=inside, other=0.0)[None, :]
    scale = tl.load(inverse + channel, mask=inside, other=0.0)[None, :]
    gain = tl.load(weight + channel, mask=inside, other=0.0)[None, :]
    shift = tl.load(bias + channel, mask=inside, other=0.0)[None, :]
    first = tl.zeros([STEP, WIDE], tl.float32)
    second = tl.zeros([STEP, WIDE], tl.float32)
    for start in range(tl.program_id(0) * STEP, valid, tl.num_programs(0) * STEP):
        row = start + tl.arange(0, STEP)
        at = row[:, None] * C + channel[None, :]
        here = (row < valid)[:, None] & inside[None, :]
        value = (tl.load(x + at, mask=here, other=0.0).to(tl.float32) - centre) * scale
        if ADD:
            result = tl.load(out + at, mask=here, other=0.0).to(tl.float32)
        else:
            result = value * gain + shift
        slope = tl.where(result > 0, tl.load(dy + at, mask=here, other=0.0).to(tl.float32), 0.0)
        first += slope
        second += slope * value
    mine = tl.program_id(0) * C + channel
    tl.store(partial + mine, tl.sum(first, 0), mask=inside)
    tl.store(partial + tl.num_programs(0) * C + mine, tl.sum(second, 0), mask=inside)


@triton.jit
def _descend(
    x, dy, out, dx, past, mean, inverse, weight, bias, biases, weights, rows, n_rows,
    SIZE: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr, STEP: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """dx = γ/σ · (dy − mean(dy) − x̂ · mean(dy·x̂)), dy itself for the shortcut; nothing for rows that do not count."""
    valid = tl.load(rows) * SIZE
    count = valid.to(tl.float32)
    channel = tl.arange(0, WIDE)
    inside = channel < C
    centre = tl.load(mean + channel, mask=inside)[None, :]
    scale = tl.load(inverse + channel, mask=inside)[None, :]
    gain = tl.load(weight + channel, mask=inside)[None, :]
    shift = tl.load(bias + channel, mask=inside)[None, :]
    level = tl.load(biases + channel, mask=inside)[None, :] / count
    tilt = tl.load(weights + channel, mask=inside)[None, :] / count
    row = tl.program_id(0) * STEP + tl.arange(0, STEP)
    at = row[:, None] * C + channel[None, :]
    here = (row < n_rows)[:, None] & inside[None, :]
    value = (tl.load(x + at, mask=here).to(tl.float32) - centre) * scale
    if ADD:
        result = tl.load(out + at, mask=here).to(tl.float32)
    else:
        result = value * gain + shift
    through = (row < valid)[:, None] & (result > 0)
    slope = tl.where(through, tl.load(dy + at, mask=here).to(tl.float32), 0.0)
    descent = gain * scale * (slope - level - value * tilt)
    tl.store(dx + at, tl.where((row < valid)[:, None], descent, 0.0), mask=here)
    if ADD:
        tl.store(past + at, slope, mask=here)
