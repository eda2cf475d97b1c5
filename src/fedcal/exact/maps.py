"""Confidence maps: the top label's confidence recalibrated, then lifted back to all classes with their order kept.

Both maps work on the log-odds of the top confidence p. `beta` is a logistic on log p and −log(1 − p) (Kull et al.
2017), monotone because its first two coefficients are kept non-negative. `hist` follows an equal-mass histogram, shrunk
towards the identity, made monotone, and piecewise linear in log-odds. Few parameters, and monotone: freer maps blew up.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedcal.base.bins import equal_mass
from fedcal.base.logits import Params, softplus

# Fine bins of the log-odds, the same everywhere: nothing for clients to agree on.
GRID = torch.linspace(-5, 15, 241, dtype=torch.float64)
N_FINE = len(GRID) + 1
IDENTITY = (1.0, 1.0, 0.0)


def top(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The top label of each row, with log p and −log(1 − p) of its probability."""
    label = u.argmax(dim=1)
    return label, *log_odds(u, label)


def log_odds(u: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """log p and −log(1 − p) of the label's probability, exact at both ends; their sum is the log-odds."""
    rest = (u - u.gather(1, label[:, None])).scatter(1, label[:, None], -math.inf)
    against = rest.logsumexp(dim=1)
    return -softplus(against), softplus(against) - against


def map_log_odds(maps: Params, log_p: Tensor, log_q: Tensor) -> Tensor:
    """The mapped log-odds: the mean of the maps that `maps` holds (beta, hist), or the identity if it holds none."""
    found = []
    if "beta" in maps:
        beta = maps["beta"]
        found.append(beta[0] * log_p + beta[1] * log_q + beta[2])
    if "hist" in maps:
        found.append(_follow(maps["hist"], log_p + log_q))
    return torch.stack(found).mean(0) if found else log_p + log_q


def _follow(knots: Tensor, v: Tensor) -> Tensor:
    """Piecewise linear through the knots (2, n); beyond the outer ones the shift stays as it is there."""
    x, y = knots
    inside = v.clamp(x[0], x[-1])
    if len(x) == 1:
        return v - x[0] + y[0]
    if torch.compiler.is_compiling():  # ONNX has no binary search
        right = (x < inside[:, None]).sum(dim=1).clamp(1, len(x) - 1)
    else:
        right = torch.searchsorted(x, inside.contiguous()).clamp(1, len(x) - 1)
    share = (inside - x[right - 1]) / (x[right] - x[right - 1]).clamp_min(1e-12)
    return y[right - 1] + share * (y[right] - y[right - 1]) + (v - inside)


# --- fitting: a client's half, then the server's ---------------------------------------------------------------------


def fine_histogram(log_p: Tensor, log_q: Tensor, hit: Tensor) -> Tensor:
    """A client's half: samples, hits, and summed p, log p and −log(1 − p) in each fine bin of log-odds, (5, bins)."""
    bins = torch.bucketize((log_p + log_q).contiguous(), GRID)
    rows = (torch.ones_like(log_p), hit.double(), log_p.exp(), log_p, log_q)
    return torch.stack([torch.bincount(bins, row, N_FINE) for row in rows])


@dataclass(frozen=True)
class Bins:
    """The filled bins of a summed histogram: samples, hits, and mean log p and −log(1 − p) of each.

    Bins are so narrow that a map of their means is the map of their samples.
    """

    count: Tensor
    hits: Tensor
    log_p: Tensor
    log_q: Tensor

    @classmethod
    def of(cls, histogram: Tensor) -> Bins:
        """Read a summed histogram."""
        count, hits, _, log_p, log_q = histogram[:, histogram[0] > 0]
        return cls(count, hits, log_p / count, log_q / count)

    def losses(self, maps: Params) -> tuple[Tensor, Tensor]:
        """Each bin's loss of a miss and of a hit, under a map."""
        v = map_log_odds(maps, self.log_p, self.log_q)
        return torch.nn.functional.softplus(v), torch.nn.functional.softplus(-v)

    def total(self, of_miss: Tensor, of_hit: Tensor) -> float:
        """Add up what each miss and each hit counts."""
        return float((self.count - self.hits) @ of_miss + self.hits @ of_hit)


def fit_beta(histogram: Tensor, tol: float = 1e-9) -> Tensor:
    """The server's half: the beta map of a summed histogram, with a sample's worth of prior at the identity."""
    bins, mean = Bins.of(histogram), torch.tensor(IDENTITY, dtype=torch.float64)
    x = torch.stack([bins.log_p, bins.log_q, torch.ones_like(bins.log_p)], dim=1)

    def value(t: Tensor) -> float:
        return bins.total(*bins.losses({"beta": t})) + 0.5 * float((t - mean).square().sum())

    t, scale = mean, 1.0
    for _ in range(60):
        q = (x @ t).sigmoid()
        gradient = x.T @ (bins.count * q - bins.hits) + t - mean
        move = beta_step(x.T @ ((bins.count * q * (1 - q))[:, None] * x) + torch.eye(3, dtype=t.dtype), gradient, t)
        scale, before = 1.0, value(t)
        while scale > 1e-9 and not value(t + scale * move) <= before:
            scale /= 2
        t = t + scale * move
        if -float(gradient @ move) < tol or scale <= 1e-9:
            break
    return t


def beta_step(hessian: Tensor, gradient: Tensor, t: Tensor) -> Tensor:
    """Newton's step that keeps the first two coefficients non-negative: the best of four choices of active bounds."""
    hessian = hessian + 1e-9 * torch.eye(3, dtype=t.dtype)
    best, best_value = torch.zeros(3, dtype=t.dtype), math.inf
    for held in itertools.chain.from_iterable(itertools.combinations((0, 1), r) for r in range(3)):
        free = [i for i in range(3) if i not in held]
        step = torch.zeros(3, dtype=t.dtype)
        step[list(held)] = -t[list(held)]
        target = -(gradient + hessian @ step)[free]
        step[free] = torch.linalg.solve(hessian[free][:, free], target)
        value = float(gradient @ step + 0.5 * step @ hessian @ step)
        if float((t + step)[:2].min()) >= -1e-12 and value < best_value:
            best, best_value = torch.cat([torch.maximum(step[:2], -t[:2]), step[2:]]), value
    return best


def hist_knots(histogram: Tensor, pseudo: float, n_bins: int = 15) -> Tensor:
    """The server's half: (2, n) knots from the summed histogram, `pseudo` samples per bin pulling to the identity."""
    count, hits, confidence = histogram[:3].numpy()
    starts = equal_mass(count, n_bins)
    parts = [p.sum(1) for p in np.split(np.stack([count, confidence, hits]), starts[1:], axis=1)]
    n, total, right = np.array([p for p in parts if p[0] > 0] or [[1.0, 0.5, 0.5]]).T
    before = total / n
    after = isotonic((right + pseudo * before) / (n + pseudo), n + pseudo)
    edge = 0.5 / (n.sum() + 1)  # n samples cannot show an accuracy of 0 or 1; what confidence they had is known exactly
    knots = np.stack([np.clip(before, 1e-300, 1 - 2.0**-53), np.clip(after, edge, 1 - edge)])
    return torch.from_numpy(np.log(knots) - np.log1p(-knots))


def isotonic(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The closest non-decreasing sequence: neighbours out of order are pooled."""
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append((value, weight, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, wa, na), (b, wb, nb) = blocks[-2:]
            blocks[-2:] = [((a * wa + b * wb) / (wa + wb), wa + wb, na + nb)]
    return np.repeat([b[0] for b in blocks], [b[2] for b in blocks])


# --- lifting back --------------------------------------------------------------------------------------------------


def lift(u: Tensor, v: Tensor) -> Tensor:
    """Give each row's top label the log-odds v, and keep the order of all classes.

    The top logit alone is moved: the others keep their ratios, and the sample's NLL changes by exactly what the top
    label's does. Where the second class would overtake, a temperature for that sample does it instead.
    """
    label, log_p, log_q = top(u)
    two = u.topk(2, dim=1).values
    gap, shift = two[:, 0] - two[:, 1], v - (log_p + log_q)
    fits = ((shift >= 0) & (gap > 0)) | (gap + shift > 1e-4)
    moved = u.scatter_add(1, label[:, None], shift[:, None])
    if torch.compiler.is_compiling():  # a graph has no rows to pick: do both everywhere
        return torch.where(fits[:, None], moved, lift_by_temperature(u, v))
    if not bool(fits.all()):
        moved[~fits] = lift_by_temperature(u[~fits], v[~fits])
    return moved


def lift_by_temperature(u: Tensor, v: Tensor, steps: int = 12) -> Tensor:
    """Give each row's top label the log-odds v by a temperature for that row: t ↦ log-odds is rising and concave, so
    that Newton from the left never overshoots. A top label of K cannot have less than 1/K."""
    label, k = u.argmax(dim=1, keepdim=True), u.shape[1]
    rest = (u - u.gather(1, label)).scatter(1, label, -math.inf)
    finite, gap = rest.masked_fill(rest == -math.inf, 0.0), -rest.amax(dim=1, keepdim=True)
    v = v.clamp_min(-math.log(k - 1) + 1e-2)[:, None]
    # It starts from two bounds of the curve, both on the left: the second class alone, and all of them at their mean.
    mean = -finite.sum(1, keepdim=True) / (k - 1)
    t = torch.maximum(v / gap.clamp_min(1e-12), (v + math.log(k - 1)) / mean.clamp_min(1e-12)).clamp(1e-3, 1e6)
    below = rest + gap
    for _ in range(steps):
        weights = torch.exp(t * below)
        total, slope = weights.sum(1, keepdim=True), -(weights * finite).sum(1, keepdim=True)
        t = (t + (v - t * gap + total.log()) * total / slope.clamp_min(1e-12)).clamp(1e-3, 1e6)
    return u * t
