"""Confidence maps: they recalibrate the top label's confidence, then adjust the logits to it and keep the order of classes.

Both maps work on the log-odds of the top confidence p. `beta` is a logistic on log p and −log(1 − p) (Kull et al.
2017), monotone because its first two coefficients are kept non-negative. `hist` follows an equal-mass histogram, shrunk
towards the identity, made monotone, and piecewise linear in log-odds. More flexible maps overfitted.

Functions that apply a map take arrays or tensors; functions that fit one take arrays.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params, logsumexp, namespace, put, sigmoid, softplus, take, tracing
from fedcal.base.bins import equal_mass
from fedcal.base.logits import keep_order
from fedcal.exact.temperature import T_MIN

# Fine bins of the log-odds, the same for all clients.
GRID = np.linspace(-5, 15, 241)
N_FINE = len(GRID) + 1
KNOTS = 15  # of a histogram map at most
IDENTITY = np.array([1.0, 1.0, 0.0])
STEEPEST = 1 / T_MIN  # a sample's own 1/T at most


def top(u: Any) -> tuple[Any, Any, Any]:
    """The top label of each row, with log p and −log(1 − p) of its probability."""
    label = u.argmax(1)
    return label, *log_odds(u, label)


def log_odds(u: Any, label: Any) -> tuple[Any, Any]:
    """log p and −log(1 − p) of the label's probability, exact at both ends; their sum is the log-odds."""
    at = label[:, None]
    against = logsumexp(put(u - take(u, at), at, -math.inf), 1)
    more = softplus(against)
    return -more, more - against


def map_log_odds(maps: Params, log_p: Any, log_q: Any) -> Any:
    """The mapped log-odds: the mean of the maps that `maps` holds (beta, hist), or the identity if it holds none."""
    found = []
    if "beta" in maps:
        beta = maps["beta"]
        found.append(beta[0] * log_p + beta[1] * log_q + beta[2])
    if "hist" in maps:
        found.append(_follow(maps["hist"], log_p + log_q))
    return sum(found) / len(found) if found else log_p + log_q


def _follow(knots: Any, v: Any) -> Any:
    """Piecewise linear through the knots (2, n); beyond the outer knots the shift is constant."""
    xp, (x, y) = namespace(v), knots
    inside = xp.clip(v, x[0], x[-1])
    if len(x) == 1:
        return v - x[0] + y[0]
    if tracing(v):  # ONNX has no binary search
        right = (x < inside[:, None]).sum(1)
    else:
        right = xp.searchsorted(x, inside if xp is np else inside.contiguous())
    right = xp.clip(right, 1, len(x) - 1)
    share = (inside - x[right - 1]) / xp.clip(x[right] - x[right - 1], 1e-12, None)
    return y[right - 1] + share * (y[right] - y[right - 1]) + (v - inside)


# --- fitting: the client part, the server part -----------------------------------------------------------------------


def fine_histogram(log_p: Array, log_q: Array, hit: Array) -> Array:
    """The client part: number of samples, hits, and summed p, log p and −log(1 − p) in each fine bin, (5, bins)."""
    bins = np.searchsorted(GRID, log_p + log_q)
    rows = (None, hit, np.exp(log_p), log_p, log_q)
    return np.stack([np.bincount(bins, row, N_FINE).astype(float) for row in rows])


@dataclass(frozen=True)
class Bins:
    """The filled bins of a summed histogram: samples, hits, and mean log p and −log(1 − p) of each.

    Bins are so narrow that mapping their means is as good as mapping their samples.
    """

    count: Array
    hits: Array
    log_p: Array
    log_q: Array

    @classmethod
    def of(cls, histogram: Array) -> Bins:
        """Read a summed histogram."""
        count, hits, _, log_p, log_q = histogram[:, histogram[0] > 0]
        return cls(count, hits, log_p / count, log_q / count)

    def loss(self, maps: Params) -> float:
        """The summed log loss of right and wrong labels, under a map."""
        v = map_log_odds(maps, self.log_p, self.log_q)
        return float((self.count - self.hits) @ softplus(v) + self.hits @ softplus(-v))


def fit_beta(histogram: Array) -> Array:
    """The server part: the beta map of a summed histogram, with a prior at the identity that is worth one sample."""
    bins = Bins.of(histogram)
    x = np.stack([bins.log_p, bins.log_q, np.ones_like(bins.log_p)], 1)

    def value(t: Array) -> float:
        return bins.loss({"beta": t}) + 0.5 * float(((t - IDENTITY) ** 2).sum())

    t, scale = IDENTITY, 1.0
    for _ in range(60):
        q = sigmoid(x @ t)
        gradient = x.T @ (bins.count * q - bins.hits) + t - IDENTITY
        move = beta_step(x.T @ ((bins.count * q * (1 - q))[:, None] * x) + np.eye(3), gradient, t)
        scale, before = 1.0, value(t)
        before += 1e-12 * abs(before)  # a last step may gain less than rounding, and is taken all the same
        while scale > 1e-9 and not value(t + scale * move) <= before:
            scale /= 2
        t = t + scale * move
        if -float(gradient @ move) < 1e-9 or scale <= 1e-9:
            break
    return t


def beta_step(hessian: Array, gradient: Array, t: Array) -> Array:
    """A Newton step that keeps the first two coefficients non-negative: the best of four choices of active bounds."""
    hessian = hessian + 1e-9 * np.eye(3)
    best, best_value = np.zeros(3), math.inf
    for held in itertools.chain.from_iterable(itertools.combinations((0, 1), r) for r in range(3)):
        free = [i for i in range(3) if i not in held]
        step = np.zeros(3)
        step[list(held)] = -t[list(held)]
        target = -(gradient + hessian @ step)[free]
        step[free] = np.linalg.solve(hessian[free][:, free], target)
        value = float(gradient @ step + 0.5 * step @ hessian @ step)
        if float((t + step)[:2].min()) >= -1e-12 and value < best_value:
            best, best_value = np.concatenate([np.maximum(step[:2], -t[:2]), step[2:]]), value
    return best


def hist_knots(histogram: Array, pseudo: float) -> Array:
    """The server part: (2, n) knots from the summed histogram, shrunk to the identity by `pseudo` samples per bin."""
    count, hits, confidence = histogram[:3]
    starts = equal_mass(count, KNOTS)
    parts = [p.sum(1) for p in np.split(np.stack([count, confidence, hits]), starts[1:], axis=1)]
    n, total, right = np.array([p for p in parts if p[0] > 0] or [[1.0, 0.5, 0.5]]).T
    before = total / n
    after = isotonic((right + pseudo * before) / (n + pseudo), n + pseudo)
    edge = 0.5 / (n.sum() + 1)  # n samples cannot show an accuracy of 0 or 1; confidences are exact
    knots = np.stack([np.clip(before, 1e-300, 1 - 2.0**-53), np.clip(after, edge, 1 - edge)])
    return np.log(knots) - np.log1p(-knots)


def shrunk(beta: Array, hist: Array, share: float) -> Params:
    """The maps that go a share of the way from the identity to these; they stay monotone, rounding included."""
    x, y = hist
    return {"beta": (1 - share) * IDENTITY + share * beta, "hist": np.stack([x, (1 - share) * x + share * y])}


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


def apply_confidence_map(u: Any, confidence_map: Params) -> Any:
    """Recalibrate the top label's confidence and keep the order of the classes; unchanged if there is no map."""
    if "beta" not in confidence_map and "hist" not in confidence_map:
        return u
    _, log_p, log_q = top(u)
    return keep_order(lift(u, map_log_odds(confidence_map, log_p, log_q)), u)


def lift(u: Any, v: Any) -> Any:
    """Give each row's top label the log-odds v, and keep the order of all classes.

    Only the top logit is changed, so the other classes keep their ratios; classes that share the top move together. If the
    second class would overtake, the sample gets a temperature instead.
    """
    xp, (label, log_p, log_q) = namespace(u), top(u)
    label = label[:, None]
    first, second = take(u, label), xp.amax(put(u, label, -math.inf), 1)
    gap, shift = first[:, 0] - second, v - (log_p + log_q)
    fits = ((shift >= 0) & (gap > 0)) | (gap + shift > 1e-4)
    moved = xp.where(u == first, u + shift[:, None], u)
    if tracing(u):  # a graph has no rows to pick: do both everywhere
        return xp.where(fits[:, None], moved, lift_by_temperature(u, v))
    if not bool(fits.all()):
        moved[~fits] = lift_by_temperature(u[~fits], v[~fits])
    return moved


def lift_by_temperature(u: Any, v: Any) -> Any:
    """Give each row's top label the log-odds v by a temperature for that row.

    The log-odds rise with t and are concave, so that Newton's method from the left never overshoots. The confidence of a top
    label of K classes is at least 1/K. Where the second class is so close that t would reach STEEPEST, or never give v, the
    top logit is raised instead: such a t makes the other classes impossible.
    """
    xp, label, k = namespace(u), u.argmax(1)[:, None], u.shape[1]
    finite = u - take(u, label)  # 0 at the label
    rest = put(finite, label, float(xp.finfo(u.dtype).min) / 1e7)  # finite, times any t: −inf has no gradient
    gap = -xp.amax(rest, 1)[:, None]
    v = xp.clip(v, -math.log(k - 1) + 1e-2, None)[:, None]
    # It starts from two bounds of the curve, both on the left: the second class alone, and all of them at their mean.
    mean = -finite.sum(1)[:, None] / (k - 1)
    t = xp.maximum(v / xp.clip(gap, 1e-12, None), (v + math.log(k - 1)) / xp.clip(mean, 1e-12, None))
    t, below = xp.clip(t, 1e-3, STEEPEST), rest + gap
    for _ in range(12):
        weights = xp.exp(t * below)
        total, slope = weights.sum(1)[:, None], -(weights * finite).sum(1)[:, None]
        t = xp.clip(t + (v - t * gap + xp.log(total)) * total / xp.clip(slope, 1e-12, None), 1e-3, STEEPEST)
    log_p, log_q = log_odds(u, label[:, 0])
    raised = xp.where(finite == 0, u + v - (log_p + log_q)[:, None], u)
    return xp.where(t < STEEPEST, u * t, raised)
