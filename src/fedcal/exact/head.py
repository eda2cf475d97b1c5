"""The last layer of a model, refitted: a client's sums for u = b z + V x + c.

z are the model's own logits (row-centred), x the features that its last linear layer takes, and [V | c] has a row for each
class. V = 0 is a temperature and a class bias of the model's own head W₀, so that a ridge on V shrinks the new head
W = b W₀ + V towards b W₀. The flat parameters are (b, [V | c]), 1 + K (d + 1) numbers. The NLL is convex in them, and a sum
over samples.

A Hessian is sent only for the directions in which the features vary most (`basis`): for each pair of different classes and
each pair of directions (`full`), or for each class with itself (`blocks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fedcal.base.arrays import Array
from fedcal.exact.linear import Curvature

HEAD, HEAD_ALL = "head", "head-all"  # families: fitted on calibration samples, or on training samples too
ROWS = 1 << 21  # numbers of features that are processed at once
Block = tuple[Array, Array, Array, Array]  # row-centred logits (K, n), features (d + 1, n) with a 1, labels, folds


def n_head_parameters(k: int, d: int) -> int:
    """How many numbers a head of k classes over d features has."""
    return 1 + k * (d + 1)


def apply_head(t: Any, z: Any, x: Any) -> Any:
    """u = b z + V x + c for samples in rows: (n, K) row-centred logits and (n, d) features, arrays or tensors."""
    rows = t[1:].reshape(z.shape[1], x.shape[1] + 1)
    return t[0] * z + x @ rows[:, :-1].T + rows[:, -1]


def blocks_of(logits: Array, features: Array, labels: Array, fold: Array, k: int) -> Iterator[Block]:
    """Samples with classes and features first, in float64, a block at a time."""
    step = max(1, ROWS // (features.shape[1] + 1))
    for first in range(0, len(labels), step):
        here = slice(first, first + step)
        z = np.ascontiguousarray(logits[here].T, float)
        z -= z.sum(axis=0) / k
        x = np.ones((features.shape[1] + 1, z.shape[1]))
        x[:-1] = features[here].T
        yield z, x, labels[here], fold[here]


def head_sums(at: Array, without: Array, blocks: Iterable[Block]) -> tuple[Array, Array]:
    """Losses (M,) and gradients (M, P) of several heads, summed over the samples outside a fold of each.

    Args:
        at: (M, P), the heads' parameters.
        without: (M,), the fold that each leaves out; a number that no sample's fold has leaves nothing out.
        blocks: the samples.
    """
    loss, grad = np.zeros(len(at)), np.zeros(at.shape)
    for z, x, y, fold in blocks:
        k, n = z.shape
        weights = at[:, 1:].reshape(-1, len(x))
        p = (weights @ x).reshape(len(at), k, n)
        p += at[:, :1, None] * z
        p -= p.max(axis=1, keepdims=True)
        of_label = p[:, y, np.arange(n)]
        np.exp(p, out=p)
        total = p.sum(axis=1, keepdims=True)
        p /= total
        p[:, y, np.arange(n)] -= 1
        kept = fold != without[:, None]
        loss += ((np.log(total[:, 0]) - of_label) * kept).sum(axis=1)
        p *= kept[:, None]
        grad[:, 0] += (p * z).sum(axis=(1, 2))
        grad[:, 1:] += (p.reshape(-1, n) @ x.T).reshape(len(at), -1)
    return loss, grad


def head_curvature(
    t: Array, without: int, curvature: Curvature, basis: Array, blocks: Iterable[Block]
) -> dict[str, Array]:
    """What is asked of the Hessian of one head, summed over the samples outside a fold.

    Args:
        t: (P,), the head's parameters.
        without: the fold.
        curvature: full, or blocks.
        basis: (r, d + 1), directions of the features.
        blocks: the samples.

    Returns:
        hess: of each pair of classes (full) or each class (blocks), the upper triangle over pairs of directions. cross:
        of b with each class and direction. scale: of b. mass: Σ p (1 − p) of each class.
    """
    found: dict[str, Array] = {}
    step = max(1, ROWS // len(basis) ** 2)
    for block in blocks:
        for first in range(0, len(block[2]), step):
            z, x, fold = (block[i][..., first : first + step] for i in (0, 1, 3))
            for name, value in _curvature(t, z, x, basis @ x, fold != without, curvature).items():
                found[name] = found[name] + value if name in found else value
    return found


def _curvature(t: Array, z: Array, x: Array, a: Array, kept: Array, curvature: Curvature) -> dict[str, Array]:
    u = t[1:].reshape(len(z), -1) @ x + t[0] * z
    u -= u.max(axis=0)
    p = np.exp(u)
    p /= p.sum(axis=0)
    off = (z - (p * z).sum(axis=0)) * p * kept  # deviation from each sample's mean logit, weighted
    own = p * (1 - p) * kept
    i, j = np.triu_indices(len(a))
    if curvature == "full":  # Σ (p_c δ_cd − p_c p_d) a_i a_j
        c, d = np.triu_indices(len(z), 1)
        hess = (p[c] * p[d] * -1.0 * kept) @ (a[i] * a[j]).T
    else:
        hess = own @ (a[i] * a[j]).T
    return {"hess": hess, "cross": off @ a.T, "scale": np.array((off * z).sum()), "mass": own.sum(axis=1)}
