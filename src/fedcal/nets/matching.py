"""Weight matching (Algorithm 2; Ainsworth et al. 2022): permute a net's hidden units to line up with another's.

Units of a hidden layer may be reordered without changing the function. `match` picks the order in which the net's
parameters have the largest inner product with the other net's, one layer at a time until nothing is gained. Biases
belong to their units and are part of the product (the paper's formula leaves them out).
"""

from __future__ import annotations

import numpy as np
import torch

from fedcal.errors import FedCalError
from fedcal.nets.mlp import Net

Perms = list[np.ndarray]  # for each hidden layer: which unit of the net stands at each place


def match(params: Net, to: Net) -> Perms:
    """M ← WeightMatching(to, params): find the order of hidden units in which one net is closest to another.

    Args:
        params: the net whose units are put in order.
        to: the net that it is compared with.

    Returns:
        The permutation of each hidden layer of `params`, for `permute`.

    Examples:
        >>> import fedcal, torch
        >>> from fedcal.nets.matching import permute
        >>> _ = torch.manual_seed(0)
        >>> net = {"w1": torch.randn(3, 2), "b1": torch.randn(3), "w2": torch.randn(2, 3), "b2": torch.randn(2)}
        >>> order = torch.tensor([2, 0, 1])  # the same net, its hidden units in another order
        >>> other = net | {"w1": net["w1"][order], "b1": net["b1"][order], "w2": net["w2"][:, order]}
        >>> back = permute(other, fedcal.match(other, to=net))
        >>> all(torch.equal(back[name], net[name]) for name in net)
        True
    """
    from scipy.optimize import linear_sum_assignment

    depth = _check(params, to)
    mine = {name: value.detach().double().numpy() for name, value in params.items()}
    theirs = {name: value.detach().double().numpy() for name, value in to.items()}
    # Input and output axes stay in place: layers 0 and `depth` have the identity for ever.
    perms = [np.arange(mine["w1"].shape[1])] + [np.arange(len(mine[f"b{k}"])) for k in range(1, depth + 1)]
    for _ in range(100):
        gain = 0.0
        for k in range(1, depth):
            score = (
                theirs[f"w{k}"] @ mine[f"w{k}"][:, perms[k - 1]].T
                + np.outer(theirs[f"b{k}"], mine[f"b{k}"])
                + theirs[f"w{k + 1}"].T @ mine[f"w{k + 1}"][perms[k + 1]]
            )
            rows, found = linear_sum_assignment(score, maximize=True)
            change = float(score[rows, found].sum() - score[rows, perms[k]].sum())
            if change > 1e-12:
                perms[k], gain = found, gain + change
        if not gain:
            break
    return perms[1:-1]


def permute(params: Net, perms: Perms) -> Net:
    """M(params): the same function, its hidden units in another order."""
    out = dict(params)
    for layer, perm in enumerate(perms, start=1):
        index = torch.as_tensor(perm)
        out[f"w{layer}"], out[f"b{layer}"] = out[f"w{layer}"][index], out[f"b{layer}"][index]
        out[f"w{layer + 1}"] = out[f"w{layer + 1}"][:, index]
    return out


def permuted_share(perms: Perms) -> float:
    """The share of hidden units that changed place: 0 means that matching did nothing."""
    moved = sum(int((perm != np.arange(len(perm))).sum()) for perm in perms)
    return moved / max(1, sum(len(perm) for perm in perms))


def _check(params: Net, to: Net) -> int:
    """The depth of the two nets, which must be of one shape: w1, b1, …, wL, bL."""
    depth = len(params) // 2
    names = {f"{kind}{k}" for k in range(1, depth + 1) for kind in "wb"}
    if set(params) != names or not depth:
        raise FedCalError(f"match needs a net of w1, b1, …, wL, bL, not {', '.join(sorted(params)) or 'nothing'}")
    for name, value in params.items():
        if name not in to or to[name].shape != value.shape:
            other = tuple(to[name].shape) if name in to else "missing"
            raise FedCalError(f"match needs nets of one shape: {name} is {tuple(value.shape)} here and {other} there")
    return depth
