"""Linear maps of the logits, and a client's sums for fitting them exactly: loss, gradient and curvature of the NLL.

    temperature   u = b z                 1 parameter      b = 1/T
    bias          u = b z + c             1 + K
    vector        u = w ∘ z + c           2 K
    matrix        u = W z + c             K (K + 1)

z are the logits minus their row mean: softmax ignores that shift, so that logits and log-probabilities give the same
fit. The NLL is convex in every family's parameters, and a sum over samples: clients' sums add up to the pooled ones,
whichever client has which sample.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import numpy as np

from fedcal.base.arrays import Array, double
from fedcal.base.logits import BLOCK

Curvature = Literal["full", "blocks", "diagonal", "none"]  # what is asked of a Hessian

add, highest = np.add.reduce, np.maximum.reduce  # .sum() and .max() without the detour
FAMILIES = ("temperature", "bias", "vector", "matrix")


def centre(logits: Any) -> Any:
    """Row-centred float64 logits, of an array or a tensor."""
    logits = double(logits)
    return logits - logits.mean(1)[:, None]


def centred_columns(logits: Array) -> Array:
    """`centre`, with classes first in memory: sums are fastest then."""
    columns = np.array(logits.T, float, order="C")
    columns -= columns.sum(axis=0) / len(columns)
    return columns.T


def n_parameters(family: str, k: int) -> int:
    """How many numbers a family has for k classes."""
    return {"temperature": 1, "bias": 1 + k, "vector": 2 * k, "matrix": k * (k + 1)}[family]


def is_scale(family: str, k: int) -> Array:
    """Which parameters of a family multiply logits; the others are intercepts."""
    if family == "matrix":
        return np.tile(np.arange(k + 1) < k, k)
    scales = {"temperature": 1, "bias": 1, "vector": k}[family]
    return np.arange(n_parameters(family, k)) < scales


def apply_linear(family: str, t: Any, z: Any) -> Any:
    """The map of this family with flat parameters t, of arrays or tensors."""
    k = z.shape[1]
    if family == "temperature":
        return t[0] * z
    if family == "bias":
        return t[0] * z + t[1:]
    if family == "vector":
        return t[:k] * z + t[k:]
    w = t.reshape(k, k + 1)
    return z @ w[:, :k].T + w[:, k]


def identity(family: str, k: int) -> Array:
    """The parameters of the map that leaves logits as they are; a temperature's map is a multiple of them."""
    if family == "matrix":
        return np.eye(k, k + 1).ravel()
    return (np.arange(n_parameters(family, k)) < {"vector": k}.get(family, 1)).astype(float)


def widen(name: str, t: Array, family: str, k: int) -> Array:
    """A map of one family, written as one of the same or of a larger family."""
    if name == family:
        return t
    scales = t[:k] if name == "vector" else np.full(k, t[0])
    shift = np.zeros(k) if name == "temperature" else t[-k:]
    if family == "matrix":
        return np.concatenate([np.diag(scales), shift[:, None]], 1).ravel()
    return np.concatenate([scales if family == "vector" else scales[:1], shift])


# --- a client's half -------------------------------------------------------------------------------------------------


def linear_sums(family: str, at: Array, z: Array, y: Array, curvature: Curvature = "full") -> dict[str, Array]:
    """Sum the NLL over samples, for several maps of one family.

    All maps at once: with a client's few hundred samples, calls cost more than the arithmetic. Samples are processed in
    blocks that fit a core's cache.

    Args:
        family: of the maps.
        at: (M, P), the maps' parameters.
        z: (N, K), row-centred logits.
        y: (N,), labels.
        curvature: what is asked of the first map's Hessian: all of it, packed (`unpack_hessian`); the matrix family's blocks
            of each class with itself; its diagonal (of a vector also what couples each class's scale with its shift).

    Returns:
        loss (M,), grad (M, P), and for the curvature: hess, blocks, or diag and cross.
    """
    k, columns = z.shape[1], z.T
    if at.ndim != 2 or at.shape[1] != n_parameters(family, k):
        raise ValueError(f"{tuple(at.shape)} parameters of {family} for {k} classes")
    width = max(1, BLOCK // (k * len(at)))
    found = _sums(family, at, columns[:, :width], y[:width], curvature)
    for first in range(width, len(y), width):
        here = slice(first, first + width)
        for name, value in _sums(family, at, columns[:, here], y[here], curvature).items():
            found[name] = found[name] + value
    return found


def _sums(family: str, at: Array, z: Array, y: Array, curvature: Curvature) -> dict[str, Array]:
    """The same with classes first: sums over a handful of classes then run along contiguous samples."""
    (k, n), z = z.shape, np.ascontiguousarray(z)
    if family == "matrix":
        w = at.reshape(-1, k + 1)
        p = (w[:, :k] @ z + w[:, k:]).reshape(len(at), k, n)
    else:
        scales = k if family == "vector" else 1
        p = at[:, :scales, None] * z
        if family != "temperature":
            p += at[:, scales:, None]
    p -= highest(p, axis=1, keepdims=True)
    of_label = add(p[:, y, np.arange(n)], axis=1)
    np.exp(p, out=p)
    total = add(p, axis=1, keepdims=True)
    p /= total
    derivatives = {"matrix": _of_matrix, "vector": _of_vector}.get(family, _of_scale)
    return {"loss": add(np.log(total), axis=(1, 2)) - of_label} | derivatives(family, p, z, y, curvature)


def _of_scale(family: str, p: Array, z: Array, y: Array, curvature: Curvature) -> dict[str, Array]:
    """Temperature and bias. Deviations are from each sample's mean logit, so that a variance stays accurate where one class
    has almost all the probability."""
    mean = np.einsum("mkn,kn->mn", p, z)
    scale = (add(mean, axis=1) - add(z[y, np.arange(len(y))]))[:, None]
    by_shift = add(p, axis=2)
    sums = {
        "grad": scale
        if family == "temperature"
        else np.concatenate([scale, by_shift - np.bincount(y, None, len(z))], 1)
    }
    if curvature == "none":
        return sums
    off, first = z - mean[0], p[0]
    across = off * first
    variance = np.vdot(across, off)
    if family == "temperature":
        return sums | {"hess": np.array([variance])}
    if curvature == "diagonal":
        return sums | {"diag": np.concatenate([[variance], by_shift[0] - np.einsum("ij,ij->i", first, first)])}
    hess = np.empty((len(z) + 1, len(z) + 1))
    hess[0, 0] = variance
    hess[0, 1:] = add(across, axis=1)
    hess[1:, 1:] = np.diag(by_shift[0]) - first @ first.T
    return sums | {"hess": hess[_pairs(len(hess))[:2]]}


def _of_vector(family: str, p: Array, z: Array, y: Array, curvature: Curvature) -> dict[str, Array]:
    """A scale and a shift for each class: Σ (E[d dᵀ] − E[d] E[d]ᵀ), where E[d] is z_k p_k by scales, p_k by shifts.

    The diagonal comes with what couples each class's scale with its shift: 3 K numbers, where the whole has about 2 K².
    """
    k, of_label = len(z), z[y, np.arange(len(y))]
    by_scale, by_shift = np.einsum("mkn,kn->mk", p, z), add(p, axis=2)
    target = np.concatenate([np.bincount(y, of_label, k), np.bincount(y, None, k)])
    sums = {"grad": np.concatenate([by_scale, by_shift], 1) - target}
    if curvature == "none":
        return sums
    mean = np.concatenate([z * p[0], p[0]])
    square = np.einsum("ij,ij->i", mean[:k], z)
    if curvature == "diagonal":
        own = np.concatenate([square, by_shift[0]]) - np.einsum("ij,ij->i", mean, mean)
        return sums | {"diag": own, "cross": by_scale[0] - np.einsum("ij,ij->i", mean[:k], p[0])}
    hess = -(mean @ mean.T)
    hess[np.diag_indices(2 * k)] += np.concatenate([square, by_shift[0]])
    hess[np.arange(k), np.arange(k, 2 * k)] += by_scale[0]
    return sums | {"hess": hess[_pairs(2 * k)[:2]]}


def _of_matrix(family: str, p: Array, z: Array, y: Array, curvature: Curvature) -> dict[str, Array]:
    k, n = z.shape
    x = np.concatenate([z, np.ones((1, n))])
    sums: dict[str, Array] = {}
    first, (i, j, _) = p[0], _pairs(k + 1)
    if curvature == "full":  # Σ (p_c δ_cd − p_c p_d) x_i x_j, each pair of classes and of inputs once
        c, d = np.triu_indices(k, 1)
        sums["hess"] = (first[c] * first[d]) @ -(x[i] * x[j]).T
    elif curvature == "blocks":
        sums["blocks"] = (first - first * first) @ (x[i] * x[j]).T
    elif curvature == "diagonal":
        sums["diag"] = ((first - first * first) @ (x * x).T).ravel()
    p[:, y, np.arange(n)] -= 1
    return sums | {"grad": (p.reshape(len(p) * k, n) @ x.T).reshape(len(p), k * (k + 1))}


@cache
def _pairs(n: int) -> tuple[Array, Array, Array]:
    """The first and the second of each unordered pair of n things, and the pair's number by (first, second)."""
    first, second = np.triu_indices(n)
    number = np.empty((n, n), np.int64)
    number[first, second] = number[second, first] = np.arange(len(first))
    return first, second, number


# --- how symmetric matrices are sent ---------------------------------------------------------------------------------


def pack_symmetric(matrix: Array) -> Array:
    """The upper triangle of a symmetric matrix, as one row."""
    first, second, _ = _pairs(len(matrix))
    return matrix[first, second]


def unpack_symmetric(packed: Array) -> Array:
    """The symmetric matrices whose upper triangles are along the last axis."""
    size = int((2 * packed.shape[-1]) ** 0.5)
    return packed[..., _pairs(size)[2]]


def unpack_hessian(family: str, packed: Array) -> Array:
    """A Hessian from what is sent: each pair of parameters; for a matrix, each pair of different classes and of inputs."""
    if family != "matrix":
        return unpack_symmetric(packed)
    whole = unpack_symmetric(between_classes(packed))  # (class, class, input, input)
    size = len(whole) * (len(whole) + 1)
    return whole.transpose(0, 2, 1, 3).reshape(size, size)


def between_classes(pairs: Array) -> Array:
    """(K, K, …) from the values of pairs of different classes, (pairs, …); the rest follows, as sums over classes are 0."""
    k = int((2 * len(pairs)) ** 0.5) + 1
    found = np.zeros((k, k, *pairs.shape[1:]))
    c, d = np.triu_indices(k, 1)
    found[c, d] = found[d, c] = pairs
    classes = np.arange(k)
    found[classes, classes] = -found.sum(1)
    return found
