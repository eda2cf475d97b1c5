"""The end of models.ConvPoolReLU as Triton kernels: for fast.py.

PyTorch keeps eight bytes a pooled value to remember where it came from. Here the place is found again: the four values are
read once more, and ReLU goes along for nothing.
"""

# pyright: reportMissingImports=false, reportIndexIssue=false
# (Triton comes with PyTorch for GPUs only, and its kernels are not Python)

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # pooled values that a program handles


def pool_relu(x: Tensor) -> Tensor:
    """2×2 max-pooling and ReLU of a channels-last batch; an odd last row or column is left out, as PyTorch does."""
    return Fused.apply(x)  # pyright: ignore[reportReturnType]


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        n, c, h, w = x.shape
        out = torch.empty((n, c, h // 2, w // 2), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        _forward[(triton.cdiv(out.numel(), BLOCK),)](x, out, out.numel(), C=c, H=h, W=w, SIZE=BLOCK)
        ctx.save_for_backward(x)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        _, c, h, w = x.shape
        dx = torch.zeros_like(x) if h % 2 or w % 2 else torch.empty_like(x)
        _backward[(triton.cdiv(dy.numel(), BLOCK),)](x, dy, dx, dy.numel(), C=c, H=h, W=w, SIZE=BLOCK)
        return dx


@triton.jit
def _corner(at, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    """Where the first of a pooled value's four inputs lies."""
    channel, pixel = at % C, at // C
    column, line = pixel % (W // 2), pixel // (W // 2)
    image, line = line // (H // 2), line % (H // 2)
    return ((image * H + 2 * line) * W + 2 * column) * C + channel


@triton.jit
def _forward(x, out, n, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    here = at < n
    corner = _corner(at, C, H, W)
    above = tl.maximum(tl.load(x + corner, mask=here), tl.load(x + corner + C, mask=here))
    below = tl.maximum(tl.load(x + corner + W * C, mask=here), tl.load(x + corner + W * C + C, mask=here))
    tl.store(out + at, tl.maximum(tl.maximum(above, below), 0.0), mask=here)


@triton.jit
def _backward(x, dy, dx, n, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, SIZE: tl.constexpr):
    """The slope goes to the first of the largest, if ReLU let it through."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    here = at < n
    corner = _corner(at, C, H, W)
    a = tl.load(x + corner, mask=here)
    b = tl.load(x + corner + C, mask=here)
    c = tl.load(x + corner + W * C, mask=here)
    d = tl.load(x + corner + W * C + C, mask=here)
    top = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    slope = tl.where(top > 0, tl.load(dy + at, mask=here), 0.0)
    first, second, third = a == top, b == top, c == top
    tl.store(dx + corner, tl.where(first, slope, 0.0), mask=here)
    tl.store(dx + corner + C, tl.where(second & ~first, slope, 0.0), mask=here)
    tl.store(dx + corner + W * C, tl.where(third & ~first & ~second, slope, 0.0), mask=here)
    tl.store(dx + corner + W * C + C, tl.where(first | second | third, 0.0, slope), mask=here)
