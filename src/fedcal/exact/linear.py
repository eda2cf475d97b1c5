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


def is_scale(family: str, k: int) -> Tensor:
    """Which parameters of a family multiply logits; the others are intercepts."""
    if family == "matrix":
        return (torch.arange(k + 1) < k).repeat(k)
    scales = {"temperature": 1, "bias": 1, "vector": k}[family]
    return torch.arange(n_parameters(family, k)) < scales


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
    if t.shape != (n_parameters(family, k),):
        raise ValueError(f"{t.shape} parameters of {family} for {k} classes")
    if family == "matrix":
        w = t.reshape(k, k + 1)
        p, shift = w[:, :k] @ z, w[:, k]
    else:
        scales = k if family == "vector" else 1
        p, shift = t[:scales, None] * z, t[scales:]
    if family != "temperature":
        p += shift[:, None]
    p -= highest(p, axis=0)
    label = y, np.arange(n)
    of_label = add(p[label])
    torch.from_numpy(p).exp_()  # twice as fast as NumPy's
    total = add(p, axis=0)
    p /= total
    derivatives = {"matrix": _of_matrix, "vector": _of_vector}.get(family, _of_scale)
    return {"loss": add(np.log(total)) - of_label} | derivatives(family, p, z, y, label, curvature)


def _of_scale(family: str, p: Array, z: Array, y: Array, label: Any, curvature: Curvature) -> dict[str, Array]:
    """Temperature and bias. Deviations are taken from each sample's mean logit, so that what is left of a variance where
    one class has all the probability is no rounding error."""
    mean = add(z * p, axis=0)
    scale = np.array([add(mean) - add(z[label])])
    by_shift = add(p, axis=1)
    sums = {
        "grad": scale if family == "temperature" else np.concatenate([scale, by_shift - np.bincount(y, None, len(z))])
    }
    if curvature == "none":
        return sums
    off = z - mean
    across = off * p
    variance = np.vdot(across, off)
    if family == "temperature":
        return sums | {"hess": np.array([[variance]])}
    if curvature == "diagonal":
        return sums | {"diag": np.concatenate([[variance], by_shift - np.einsum("ij,ij->i", p, p)])}
    hess = np.empty((len(z) + 1, len(z) + 1))
    hess[0, 0] = variance
    hess[0, 1:] = hess[1:, 0] = add(across, axis=1)
    hess[1:, 1:] = np.diag(by_shift) - p @ p.T
    return sums | {"hess": hess}


def _of_vector(family: str, p: Array, z: Array, y: Array, label: Any, curvature: Curvature) -> dict[str, Array]:
    """A scale and a shift for each class: Σ (E[d dᵀ] − E[d] E[d]ᵀ), where E[d] is z_k p_k by scales, p_k by shifts.

    The diagonal comes with what couples each class's scale with its shift: 3 K numbers, where the whole has 4 K².
    """
    k = len(z)
    mean = np.concatenate([z * p, p])
    by_scale, by_shift = add(mean[:k], axis=1), add(p, axis=1)
    sums = {"grad": np.concatenate([by_scale - np.bincount(y, z[label], k), by_shift - np.bincount(y, None, k)])}
    if curvature == "none":
        return sums
    square = np.einsum("ij,ij->i", mean[:k], z)
    if curvature == "diagonal":
        own = np.concatenate([square, by_shift]) - np.einsum("ij,ij->i", mean, mean)
        return sums | {"diag": own, "cross": by_scale - np.einsum("ij,ij->i", mean[:k], p)}
    hess, size = -(mean @ mean.T), 2 * k
    flat = hess.ravel()  # a view, in which diagonals have the stride size + 1
    flat[:: size + 1] += np.concatenate([square, by_shift])
    flat[k : k * size : size + 1] += by_scale
    flat[k * size :: size + 1] += by_scale
    return sums | {"hess": hess}


def _of_matrix(family: str, p: Array, z: Array, y: Array, label: Any, curvature: Curvature) -> dict[str, Array]:
    x = np.concatenate([z, np.ones((1, z.shape[1]))])
    sums: dict[str, Array] = {}
    if curvature == "full":
        sums["hess"] = _matrix_hessian(p, x)
    elif curvature == "diagonal":
        sums["diag"] = ((p - p * p) @ (x * x).T).ravel()
    p[label] -= 1
    return sums | {"grad": (p @ x.T).ravel()}


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
