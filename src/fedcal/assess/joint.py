"""How the classes' scores go together within samples: one matrix of sums, from which a mean over classes gets its interval.

The error of a class's measure is a sum over samples of a function of the class's log-odds and of whether the sample is of the
class (its influence function). So the correlation of two classes' errors follows from sums over samples of products of a few
functions: hats (piecewise linear, 1 at one knot and 0 at the others) and whether the probability reaches the first threshold,
each for samples of the class and for the others. The server writes every influence function as a combination of these
(`means.py`). Of very many classes the matrix would be too large, and there is none.
"""

from __future__ import annotations

import numpy as np

from fedcal.base.seeds import numpy_rng
from fedcal.errors import FedCalError

# Knots of the log-odds, for up to so many classes: fewer where the matrix would grow large (3 give widths within 3 %).
KNOTS = {
    12: np.array([-6.0, -4.0, -2.5, -1.2, 0.0, 1.2, 2.5, 4.5]),
    32: np.array([-7.0, -3.5, -1.5, 0.5, 3.5]),
    100: np.array([-7.0, -3.0, 1.0]),
}
ROWS = 1 << 14  # samples of a site that the matrix is of: of more, it is of so many at random, weighted
BLOCK = 4096
SLACK = 1e-9


def knots(n_classes: int) -> np.ndarray:
    """The knots for that many classes; none of two, and of very many."""
    fitting = [at for most, at in KNOTS.items() if 2 < n_classes <= most]
    return fitting[0] if fitting else np.zeros(0)


def has_joint(n_classes: int) -> bool:
    """Whether sums of that many classes hold the matrix."""
    return len(knots(n_classes)) > 0


def n_functions(n_classes: int) -> int:
    """The number of functions: for each class, hats and the threshold, for the others and for the class."""
    return 2 * n_classes * (len(knots(n_classes)) + 1) if has_joint(n_classes) else 0


def n_products(n_classes: int) -> int:
    """The numbers of the upper triangle."""
    size = n_functions(n_classes)
    return size * (size + 1) // 2


def chosen_rows(n: int) -> np.ndarray:
    """The samples that the matrix is of: all, or `ROWS` at random."""
    return np.arange(n) if n <= ROWS else np.sort(numpy_rng(0, "joint", n).choice(n, ROWS, replace=False))


def values(x: np.ndarray, reaches: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The hats at log-odds x (any shape), and last whether the probability reaches the threshold."""
    x = np.clip(x, at[0], at[-1])
    left = np.clip(np.searchsorted(at, x, side="right") - 1, 0, len(at) - 2)
    share = (x - at[left]) / (at[left + 1] - at[left])
    found = np.zeros((*x.shape, len(at) + 1))
    np.put_along_axis(found, left[..., None], (1 - share)[..., None], -1)
    np.put_along_axis(found, left[..., None] + 1, share[..., None], -1)
    found[..., -1] = reaches
    return found


def add_products(total: np.ndarray, x: np.ndarray, reaches: np.ndarray, labels: np.ndarray) -> None:
    """Add samples to the matrix.

    Args:
        total: (functions, functions), changed.
        x: (N, K) log-odds.
        reaches: (N, K) whether the probability is at least the first threshold.
        labels: (N,).
    """
    k = x.shape[1]
    at = knots(k)
    for start in range(0, len(labels), BLOCK):
        here = slice(start, start + BLOCK)
        one = values(x[here], reaches[here], at)
        rows, y = np.arange(len(one)), labels[here]
        both = np.zeros((len(one), k, 2, one.shape[-1]))
        both[:, :, 0] = one
        both[rows, y, 1], both[rows, y, 0] = one[rows, y], 0.0
        flat = both.reshape(len(one), -1)
        total += flat.T @ flat


def triangle(matrix: np.ndarray) -> np.ndarray:
    """The upper triangle, row by row: what is kept and sent."""
    return matrix[np.triu_indices(len(matrix))]


def square(packed: np.ndarray, n_classes: int) -> np.ndarray:
    """The whole matrix (functions, functions) of an upper triangle."""
    size = n_functions(n_classes)
    found = np.zeros((size, size))
    found[np.triu_indices(size)] = packed
    return found + np.triu(found, 1).T


def hat_sums(n_classes: int) -> np.ndarray:
    """(classes, 2, functions) of 0 and 1: the functions whose sum is 1 for the others of a class, and for the class."""
    m = len(knots(n_classes))
    found = np.zeros((n_classes, 2, n_classes, 2, m + 1))
    for j in range(n_classes):
        for outcome in (0, 1):
            found[j, outcome, j, outcome, :m] = 1.0
    return found.reshape(n_classes, 2, -1)


def check_products(packed: np.ndarray, n_classes: int, counts: np.ndarray, above: np.ndarray | None) -> None:
    """Refuse a matrix that no samples give.

    Args:
        packed: its upper triangle, of the right length and finite.
        n_classes: the number of classes.
        counts: (classes, 2) samples that are not of the class, and that are.
        above: (classes, 2) those that reach the first threshold; None where that is not known.

    Raises:
        FedCalError: it contradicts itself, or the counts.
    """
    n = float(counts[0].sum())
    slack = SLACK * (1 + n)
    matrix, ones = square(packed, n_classes), hat_sums(n_classes)
    whole = ones.sum(1)  # functions that are 1 for every sample, one row for each class
    sums = matrix @ whole.T  # (functions, classes): each function's sum, by each class the same
    first = sums[:, 0]
    found = ones @ first
    inside = packed.min(initial=0.0) >= -slack and packed.max(initial=0.0) <= n + slack
    agree = np.abs(sums - first[:, None]).max() <= slack and np.abs(whole @ first - n).max() <= slack
    apart = np.abs(_outcomes(matrix, n_classes)).max() <= slack
    exact = n <= ROWS  # otherwise the matrix is of some of the samples
    if exact:
        agree = agree and np.abs(found - counts).max() <= slack
        if above is not None:
            reach = first.reshape(n_classes, 2, -1)[..., -1]
            agree = agree and np.abs(reach - above).max() <= slack
    if not (inside and agree and apart and np.linalg.eigvalsh(matrix).min() >= -SLACK * (1 + np.trace(matrix))):
        raise FedCalError("not the sums of an evaluation: the matrix 'joint' is not that of samples")


def _outcomes(matrix: np.ndarray, n_classes: int) -> np.ndarray:
    """The products that are always 0: of a sample in a class with one not in it, and of samples in two classes."""
    blocks = matrix.reshape(n_classes, 2, -1, n_classes, 2, matrix.shape[0] // n_classes // 2)
    classes = np.arange(n_classes)
    mixed = blocks[classes, 0, :, classes, 1]
    several = blocks[:, 1, :, :, 1][~np.eye(n_classes, dtype=bool)[:, None].repeat(blocks.shape[2], 1)]
    return np.concatenate([mixed.ravel(), several.ravel()])
