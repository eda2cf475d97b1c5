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

import torch
from torch import Tensor

FAMILIES = ("temperature", "bias", "vector", "matrix")


def centre(logits: Tensor) -> Tensor:
    """Row-centred float64 logits."""
    logits = logits.double()
    return logits - logits.mean(dim=1, keepdim=True)


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


def linear_sums(family: str, t: Tensor, z: Tensor, y: Tensor, hessian: bool = True) -> dict[str, Tensor]:
    """A client's half: the summed NLL of `apply_linear(family, t, z)`, its gradient and, if asked for, its Hessian."""
    u = apply_linear(family, t, z)
    log_p = u.log_softmax(dim=1)
    p = log_p.exp()
    out = {"loss": -log_p.gather(1, y[:, None]).sum()}
    residual = p.scatter_add(1, y[:, None], torch.full_like(p[:, :1], -1.0))  # p − onehot(y)
    expected = (z * p).sum(1)
    if family == "temperature":
        out["grad"] = (z * residual).sum().view(1)
        if hessian:
            out["hess"] = ((z * z * p).sum() - expected.dot(expected)).view(1, 1)
    elif family == "bias":
        out["grad"] = torch.cat([(z * residual).sum().view(1), residual.sum(0)])
        if hessian:
            corner = ((z * z * p).sum() - expected.dot(expected)).view(1, 1)
            edge = (p * (z - expected[:, None])).sum(0, keepdim=True)
            out["hess"] = torch.cat([torch.cat([corner, edge], 1), torch.cat([edge.T, _covariance(p, p, p)], 1)])
    elif family == "vector":
        out["grad"] = torch.cat([(z * residual).sum(0), residual.sum(0)])
        if hessian:
            zp = z * p
            across = _covariance(zp, p, zp)
            top = torch.cat([_covariance(zp, zp, z * zp), across], 1)
            out["hess"] = torch.cat([top, torch.cat([across.T, _covariance(p, p, p)], 1)])
    else:
        x = torch.nn.functional.pad(z, (0, 1), value=1.0)
        out["grad"] = (residual.T @ x).flatten()
        if hessian:
            k, width = z.shape[1], z.shape[1] + 1
            jacobian = (p[:, :, None] * x[:, None, :]).reshape(len(z), k * width)
            hess = -(jacobian.T @ jacobian)
            for c in range(k):
                block = slice(c * width, (c + 1) * width)
                hess[block, block] += x.T @ (p[:, c, None] * x)
            out["hess"] = hess
    return out


def _covariance(a: Tensor, b: Tensor, diagonal: Tensor) -> Tensor:
    """diag(Σ diagonal) − aᵀ b."""
    return torch.diag(diagonal.sum(0)) - a.T @ b


def curvature_sums(t: Tensor, z: Tensor) -> Tensor:
    """A client's half: the matrix family's Hessian blocks of each class with itself, (K, K+1, K+1), at a vector map.

    Sent once. As L-BFGS's preconditioner it cuts the rounds that a matrix over 100 classes needs from 280 to 50.
    """
    p = apply_linear("vector", t, z).softmax(dim=1)
    x = torch.nn.functional.pad(z, (0, 1), value=1.0)
    return torch.stack([x.T @ ((q * (1 - q))[:, None] * x) for q in p.T])
