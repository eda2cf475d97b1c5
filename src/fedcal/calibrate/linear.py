"""Linear maps of the logits, and a client's sums for fitting them exactly: loss, gradient and Hessian of the NLL.

    temperature   u = b z                 1 parameter      b = 1/T
    bias          u = b z + c             1 + K
    vector        u = w ∘ z + c           2 K
    matrix        u = W z + c             K (K + 1)

z are the logits with their row mean taken off: softmax ignores that shift, so that logits and log-probabilities give
the same fit. The NLL is convex in every family's parameters, and a sum over samples: clients' sums add up to the
pooled ones, whoever holds which sample.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Curvature = Literal["full", "diagonal", "none"]  # what is asked of a Hessian

add, highest = np.add.reduce, np.maximum.reduce  # .sum() and .max() without the detour
FAMILIES = ("temperature", "bias", "vector", "matrix")


def centre(logits: Tensor) -> Tensor:
    """Row-centred float64 logits."""
    logits = logits.double()
    return logits - logits.mean(dim=1, keepdim=True)


def centred_columns(logits: Tensor) -> Tensor:
    """`centre`, with classes first in memory, which is what sums run fastest along."""
    columns = np.array(logits.numpy().T, float, order="C")
    columns -= columns.sum(axis=0) / len(columns)
    return torch.from_numpy(columns).T


def n_parameters(family: str, k: int) -> int:
    """How many numbers a family has for k classes."""
    return {"temperature": 1, "bias": 1 + k, "vector": 2 * k, "matrix": k * (k + 1)}[family]


def apply_linear(family: str, t: Tensor, z: Tensor) -> Tensor:
    """The map of this family with flat parameters t."""
    k = z.shape[1]
    if family == "temperature":
        return t[0] * z
    if family == "bias":
        return t[0] * z + t[1:]
    if family == "vector":
        return t[:k] * z + t[k:]
    w = t.view(k, k + 1)
    return z @ w[:, :k].T + w[:, k]


def widen(family: str, t: Tensor, k: int) -> Tensor:
    """A family's parameters written as those of the next larger one: the same map."""
    if family == "temperature":
        return torch.cat([t, torch.zeros(k, dtype=t.dtype)])
    if family == "bias":
        return torch.cat([t[0].expand(k), t[1:]])
    return torch.cat([torch.diag(t[:k]), t[k:, None]], dim=1).flatten()


def linear_sums(family: str, t: Tensor, z: Tensor, y: Tensor, curvature: Curvature = "full") -> dict[str, Tensor]:
    """A client's half: the summed NLL of `apply_linear(family, t, z)`, its gradient, and what is asked of its Hessian.

    All samples at once, so no more of them than fit a core's cache. In NumPy: at a client's few hundred samples, torch's
    calls cost more than the arithmetic.
    """
    found = _sums(family, t.numpy(), z.numpy().T, y.numpy(), curvature)
    return {name: torch.from_numpy(np.asarray(value)) for name, value in found.items()}


def _sums(family: str, t: Array, z: Array, y: Array, curvature: Curvature) -> dict[str, Array]:
    """The same with classes first: sums over a handful of classes then run along contiguous samples."""
    (k, n), z = z.shape, np.ascontiguousarray(z)
    scales = k if family == "vector" else 1
    mean = np.empty((scales + k, n))  # the logits' derivatives under p: z_k p_k (or their sum) by scales, p_k by shifts
    p, shift = mean[scales:], t[scales:]
    if family == "matrix":
        w = t.reshape(k, k + 1)
        shift = w[:, k]
        np.matmul(w[:, :k], z, out=p)
    else:
        np.multiply(t[:scales, None], z, out=p)
    if family != "temperature":
        p += shift[:, None]
    p -= highest(p, axis=0)
    label = y, np.arange(n)
    of_label = add(p[label])
    torch.from_numpy(p).exp_()  # twice as fast as NumPy's
    total = add(p, axis=0)
    p /= total
    sums = {"loss": add(np.log(total)) - of_label}
    if family == "matrix":
        x = np.concatenate([z, np.ones((1, n))])
        if curvature == "full":
            sums["hess"] = _matrix_hessian(p, x)
        p[label] -= 1
        return sums | {"grad": (p @ x.T).ravel()}
    zp = np.multiply(z, p, out=mean[:k] if family == "vector" else None)
    by_scale, by_shift = add(zp, axis=1), add(p, axis=1)
    if curvature != "none":
        square = add(zp * z, axis=1)
        if family != "vector":
            add(zp, axis=0, out=mean[0])
        mean = mean[:1] if family == "temperature" else mean
        sums |= (_hessian if curvature == "full" else _diagonal)(family, mean, square, by_scale, by_shift)
    by_scale -= np.bincount(y, z[label], k)
    by_shift -= np.bincount(y, minlength=k)
    scale = by_scale if family == "vector" else add(by_scale, keepdims=True)
    sums["grad"] = scale if family == "temperature" else np.concatenate([scale, by_shift])
    return sums


def _diagonal(family: str, mean: Array, square: Array, by_scale: Array, by_shift: Array) -> dict[str, Array]:
    """The Hessian's diagonal, and for a vector map also what couples each class's scale with its shift: 2 K or 3 K numbers,
    where the whole has K² or 4 K²."""
    k = len(square)
    own = np.concatenate([square if family == "vector" else add(square, keepdims=True), by_shift])
    found = {"diag": own - np.einsum("ij,ij->i", mean, mean)}
    if family == "vector":
        found["cross"] = by_scale - np.einsum("ij,ij->i", mean[:k], mean[k:])
    return found


def _hessian(family: str, mean: Array, square: Array, by_scale: Array, by_shift: Array) -> dict[str, Array]:
    """Σ (E[d dᵀ] − E[d] E[d]ᵀ): `mean` is E[d], and the others, sums of z_k² p_k, z_k p_k and p_k, make up E[d dᵀ]."""
    hess, size, k = -(mean @ mean.T), len(mean), len(square)
    flat = hess.ravel()  # a view, in which diagonals have the stride size + 1
    if family == "vector":
        flat[:: size + 1] += np.concatenate([square, by_shift])
        flat[k : k * size : size + 1] += by_scale
        flat[k * size :: size + 1] += by_scale
        return {"hess": hess}
    flat[0] += add(square)
    if family == "bias":
        flat[size + 1 :: size + 1] += by_shift
        hess[0, 1:] += by_scale
        hess[1:, 0] += by_scale
    return {"hess": hess}


def _matrix_hessian(p: Array, x: Array) -> Array:
    """Σ (p_c δ_cd − p_c p_d) x_i x_j: each pair of classes, and of inputs, is worked out once."""
    k, width = len(p), len(x)
    (c, d, classes), (i, j, inputs) = _pairs(k), _pairs(width)
    of_classes = p[c] * p[d]
    of_classes[classes.diagonal()] -= p
    packed = of_classes @ -(x[i] * x[j]).T
    whole = packed[classes[:, None, :, None], inputs[None, :, None, :]]  # (class, input, class, input)
    return whole.reshape(k * width, k * width)


@cache
def _pairs(n: int) -> tuple[Array, Array, Array]:
    """The first and the second of each unordered pair of n things, and the pair's number by (first, second)."""
    first, second = np.triu_indices(n)
    number = np.empty((n, n), np.int64)
    number[first, second] = number[second, first] = np.arange(len(first))
    return first, second, number


def curvature_sums(t: Tensor, z: Tensor) -> Tensor:
    """A client's half: the matrix family's Hessian blocks of each class with itself, (K, K+1, K+1), at a vector map.

    Sent once. As L-BFGS's preconditioner it cuts the rounds that a matrix over 100 classes needs from 280 to 50.
    """
    p = apply_linear("vector", t, z).softmax(dim=1)
    x = torch.nn.functional.pad(z, (0, 1), value=1.0)
    return torch.stack([x.T @ ((q * (1 - q))[:, None] * x) for q in p.T])
