"""The private fit of a linear map: eight to ten requests, each with a share of the budget.

1. Label counts, and a histogram of the logits' norms, from which follows the norm that logits are clipped to.
2. Temperature and bias by Newton's method, from gradients and small Hessians. The first steps need little accuracy and get
   little of the budget. The fit starts from a small scale, where the loss is almost quadratic.
3. One step of the matrix (or vector) family from there, or two if noise is small: the first step has most of the family's
   gain. Its Hessian has too many numbers to be released; two small factors are released instead.
4. How much each of the two maps gains over the one before. The best map is chosen; if no gain is larger than noise and
   overfitting alone could produce, the identity is.

The functions here see noised totals only, so they cost no privacy. Each total comes with the standard deviation of its
noise. Curvature that noise alone could produce is raised to that level, which shortens steps in unknown directions.
The constants were set on the calibration splits of federated-logits, all of them and parts of 1 200 samples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedcal.base.arrays import Array, Params, sigmoid, softplus
from fedcal.errors import FedCalWarning
from fedcal.exact import maps
from fedcal.exact.linear import widen
from fedcal.exact.private_queries import BEYOND, NORMS, ODDS, Confidences, Gains, MatrixSums, Scales, ScaleSums
from fedcal.exact.private_query import FEATURE, VALUES, PrivateQuery

Family = Literal["temperature", "bias", "vector", "matrix"]
Totals = dict[str, Array]  # "values", and "noise": the standard deviation of the noise on each of them
Asks = Generator[PrivateQuery, Totals, "PrivateFit"]

SCALES, GAINS = 0.08, 0.06  # shares of the budget
MATRIX = 0.3  # of what is left for fits: the matrix family's step
STEPS, GROWTH = 6, 1.5  # Newton steps; each has GROWTH times the budget of the one before
MATRIX_STEPS = 2  # most steps of the matrix family
HISTOGRAMS = 2  # of confidences: one for the map, one that judges it
SHORTENED = 0.25  # share of the samples whose logits are clipped
BEGIN = 1.5  # the root mean square of logits at the start, if they are not smaller anyway
RIDGE = 0.1  # on biases
FULL_UP_TO = 30  # classes up to which a Hessian by the bias is released whole; beyond, its diagonal
ROOM, PLENTY = 2.5, 15.0  # samples per unit of noise and parameter that a matrix needs, and that its second step needs
DAMPING = 2.0  # the product of the factors can be too small by about this factor
SURE = 3.0  # standard deviations of noise that a number of samples must exceed to count
MARGIN = 2.0  # standard deviations of noise that a gain must exceed
FLOOR = 1.5  # least curvature, in units of what noise alone could produce


@dataclass(frozen=True)
class PrivateFit:
    """What a private fit found."""

    family: Family
    t: Array  # the family's parameters
    labels: Array  # (K,) noised label counts, at least 0; (1,) where only samples are counted
    noise: float  # standard deviation of each of these
    scale: float  # 1/T of the temperature; 1 for the identity
    fallback: bool  # whether it is the identity because no map gained more than noise alone could

    @property
    def params(self) -> Params:
        """The scaler's parameters."""
        return {self.family: self.t} | ({"fallback": np.ones(())} if self.fallback else {})


def fit_privately(
    k: int,
    family: Family,
    clip: float | None = None,
    *,
    also: bool = False,
    labels: bool = True,
    limits: tuple[float, float] = (0.0, math.inf),
) -> Asks:
    """Fit a linear map of the logits from private sums.

    Args:
        k: classes.
        family: the largest family to fit.
        clip: the norm to which logits are clipped; None: found from the samples.
        also: whether `fit_confidences` follows, whose histograms need a share of the budget too.
        labels: whether labels are counted; else only samples are, as a method without a bias needs no more.
        limits: of 1/T, in the fit of a temperature.
    """
    scales = Scales(k, SCALES, norms=clip is None, labels=labels)
    total = yield scales
    noise = float(total["noise"])
    counts = np.maximum(total[VALUES][: scales.counts], 0)
    n = float(counts.sum())
    if n <= 3 * noise * math.sqrt(len(counts)):
        return _identity(k, family, counts, noise)
    norm = clip if clip is not None else _norm(total[VALUES][scales.counts :], n)
    room = n / max(noise, 1e-9)  # samples per unit of noise
    large = family in ("vector", "matrix") and room >= ROOM * k * (k + 1)
    left = 1 - SCALES - GAINS * (1 + 2 * also)
    t = yield from _newton(k, family != "temperature", norm, left * (1 - MATRIX * large), limits)
    in_logits = np.append(t[:1] * (FEATURE / norm), t[1:])
    steps: list[tuple[Family, Array]] = [("bias" if len(t) > 1 else "temperature", in_logits)]
    if large:
        step = "vector" if family == "vector" else "matrix"
        w = first = widen("bias", t, "matrix", k).reshape(k, k + 1)
        many = MATRIX_STEPS if room >= PLENTY * k * (k + 1) else 1
        for _ in range(many):
            w = yield from _step(k, step, w, first, norm, left * MATRIX / many)
        w = np.concatenate([w[:, :k] * (FEATURE / norm), w[:, k:]], 1)
        vector = np.concatenate([w.diagonal(), w[:, k]])
        steps.append(("matrix", w.ravel()) if family == "matrix" else ("vector", vector))
    query = Gains(k, GAINS, tuple({name: t} for name, t in steps))
    total = yield query
    gains, lost = query.read(total[VALUES])
    error = float(total["noise"])
    gains = np.cumsum(gains) - _lost_beyond(lost, error)
    feigned = [_feigned(name, k, error * math.sqrt(1 + i)) for i, (name, _) in enumerate(steps)]
    eligible = [i for i, gain in enumerate(gains) if gain > feigned[i]]
    if not eligible:
        return _identity(k, family, counts, noise)
    name, t = steps[max(eligible, key=lambda i: float(gains[i]))]
    return PrivateFit(family, widen(name, t, family, k), counts, noise, float(steps[0][1][0]), False)


def fit_confidences(
    fit: PrivateFit, kind: Literal["beta", "hist"], pseudo: float
) -> Generator[PrivateQuery, Totals, Params]:
    """A map of the top label's confidence under a private temperature, from one noised histogram.

    A second histogram, with new noise, judges the map. If its gain is within noise, the identity is returned.
    """
    width = float(ODDS[1] - ODDS[0])
    middle = np.append(ODDS - width / 2, ODDS[-1] + width / 2)
    none: Params = {"hist": np.stack([middle, middle])}
    if kind == "beta":
        none = {"beta": maps.IDENTITY.copy()}
    if fit.fallback:
        return none
    query = Confidences(len(fit.labels), GAINS, float(fit.t[0]))
    total = yield query
    noise = float(total["noise"])
    count, hits = total[VALUES].reshape(2, -1)
    count = np.maximum(count, 0)
    hits = np.clip(hits, 0, count)
    p = sigmoid(middle)
    if kind == "beta":
        found: Params = {"beta": _beta(count, hits, middle, 1 + noise)}
    else:
        found = {"hist": _knots(count, hits, middle, pseudo + 2 * noise)}
    mapped = maps.map_log_odds(found, np.log(p), -np.log1p(-p))
    of_hit, of_miss = (softplus(sign * middle) - softplus(sign * mapped) for sign in (-1, 1))
    total = yield query
    count, hits = total[VALUES].reshape(2, -1)
    gain = float(count @ of_miss + hits @ (of_hit - of_miss))
    error = float(total["noise"]) * math.hypot(*of_miss, *(of_hit - of_miss))
    return found if gain > MARGIN * error else none


# --- the steps -----------------------------------------------------------------------------------------------------------


def whole_hessian(k: int, bias: bool) -> bool:
    """Whether a Newton step's Hessian is released whole, and not only its diagonal."""
    return not bias or k <= FULL_UP_TO


def _newton(
    k: int, bias: bool, norm: float, budget: float, limits: tuple[float, float]
) -> Generator[PrivateQuery, Totals, Array]:
    """Fit a temperature, or a temperature and a bias, in units of the features, by Newton's method."""
    t = np.zeros(1 + k * bias)
    low, high = (limit * norm / FEATURE for limit in limits)
    t[0] = np.clip(min(1.0, BEGIN * math.sqrt(k) / norm) * norm / FEATURE, low, high)
    ridge = np.full_like(t, RIDGE)
    ridge[0] = 0.0
    full = whole_hessian(k, bias)
    for step in range(STEPS):
        share = budget * GROWTH**step * (GROWTH - 1) / (GROWTH**STEPS - 1)
        query = ScaleSums(k, share, norm, t, full)
        total = yield query
        gradient, hessian = query.read(total[VALUES])
        noise = float(total["noise"]) / query.weight
        if bias:  # nothing depends on the sum of the biases
            gradient = np.append(gradient[:1], gradient[1:] - gradient[1:].mean())
        if full:
            hessian = _raised(_without_mean(hessian, 1) if bias else hessian, noise)
        else:
            hessian = np.diag(np.maximum(2 * hessian.diagonal(), FLOOR * noise))
        move = np.linalg.solve(hessian + np.diag(ridge + 1e-9), gradient + ridge * t)
        scale = np.clip(np.clip(t[0] - move[0], t[0] / 3, 3 * t[0]), low, high)
        t = np.append(scale, t[1:] - move[1:])
    return t


def _step(
    k: int, family: Literal["vector", "matrix"], w: Array, first: Array, norm: float, budget: float
) -> Generator[PrivateQuery, Totals, Array]:
    """One step of the larger family, with a ridge towards `first`: matrices (K, K + 1), in units of the features."""
    query = MatrixSums(k, budget, norm, w, family)
    total = yield query
    gradient, classes, inputs = query.read(total[VALUES])
    noise = float(total["noise"])
    classes = _raised(_without_mean(classes, 0), noise / query.of_classes)
    inputs = _raised(inputs, noise / query.of_inputs)
    weight, ridge = float(classes.trace()), 1 + noise
    if family == "vector":
        off = w - first
        gradient = gradient + ridge * np.append(off.diagonal(), off[:, k])
        return w - _vector_step(gradient, DAMPING / weight * classes, inputs, ridge)
    (a, u), (b, v) = np.linalg.eigh(classes), np.linalg.eigh(inputs)
    gradient = gradient.reshape(k, k + 1)
    gradient = gradient - gradient.mean(0) + ridge * (w - first)
    curvature = DAMPING * np.outer(a, b) / weight + ridge
    return w - u @ ((u.T @ gradient @ v) / curvature) @ v.T


def _vector_step(gradient: Array, classes: Array, inputs: Array, ridge: float) -> Array:
    k = len(classes)
    hessian = np.block(
        [
            [classes * inputs[:k, :k], classes * inputs[:k, k:]],
            [classes * inputs[k:, :k], classes * inputs[k, k]],
        ]
    )
    hessian = (hessian + hessian.T) / 2
    move = np.linalg.solve(hessian + ridge * np.eye(2 * k), gradient)
    return np.concatenate([np.diag(move[:k]), move[k:, None]], 1)


def _norm(histogram: Array, n: float) -> float:
    """The norm that all samples but a share of SHORTENED stay within."""
    above = np.cumsum(histogram[::-1])[::-1][1:]
    enough = np.flatnonzero(above <= SHORTENED * n)
    return float(NORMS[int(enough[0])] if len(enough) else NORMS[-1])


def _without_mean(matrix: Array, first: int) -> Array:
    """Project out the mean direction of the rows and columns from `first` on."""
    keep = np.eye(len(matrix))
    keep[first:, first:] -= 1 / (len(matrix) - first)
    return keep @ matrix @ keep


def _raised(matrix: Array, noise: float) -> Array:
    """The matrix with every eigenvalue raised to at least what noise alone could produce."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.maximum(values, max(FLOOR * noise * math.sqrt(len(matrix)), 1e-9)) @ vectors.T


def _feigned(family: Family, k: int, error: float) -> float:
    """The gain that a useless map may show.

    A map is judged on the samples that it was fitted on. There, d useless parameters seem to gain d / 2, and on new samples
    they lose as much. So the first d of a gain do not count (Akaike). This correction has a variance of 2 d, to which the
    noise is added.
    """
    free = {"temperature": 1, "bias": k, "vector": 2 * k - 1, "matrix": k * k - 1}[family]
    return free + MARGIN * math.hypot(error, math.sqrt(2 * free))


def _lost_beyond(lost: Array, error: float) -> Array:
    """The loss, under each map, of samples that lose more than the limit of `Gains`; 0 if they may be noise.

    A few wrong samples with huge logits can make a map worse than the identity, although all other samples gain by it.
    """
    widths = np.diff(BEYOND, append=3 * BEYOND[-1])
    return np.where(lost > SURE * error * np.sqrt(np.arange(len(BEYOND), 0, -1)), lost, 0.0) @ widths


def _identity(k: int, family: Family, labels: Array, noise: float) -> PrivateFit:
    warnings.warn(
        "privacy: no correction gains more than noise alone could, so the probabilities stay as they are: "
        "give a larger ε, or more samples",
        FedCalWarning,
        stacklevel=2,
    )
    return PrivateFit(family, widen("temperature", np.ones(1), family, k), labels, noise, 1.0, True)


def _beta(count: Array, hits: Array, middle: Array, ridge: float) -> Array:
    """The beta map of binned samples, by Newton's method."""
    p, identity = sigmoid(middle), maps.IDENTITY
    x = np.stack([np.log(p), -np.log1p(-p), np.ones_like(p)], 1)
    t = identity
    for _ in range(20):
        q = sigmoid(x @ t)
        gradient = x.T @ (count * q - hits) + ridge * (t - identity)
        hessian = x.T @ ((count * q * (1 - q))[:, None] * x) + ridge * np.eye(3)
        t = t + maps.beta_step(hessian, gradient, t)
    return t


def _knots(count: Array, hits: Array, middle: Array, pseudo: float) -> Array:
    """The histogram map of binned samples: monotone accuracies, shrunk towards the identity by `pseudo` samples per bin."""
    after = maps.isotonic((hits + pseudo * sigmoid(middle)) / (count + pseudo), count + pseudo)
    edge = 0.5 / (float(count.sum()) + 1)
    after = np.clip(after, edge, 1 - edge)
    return np.stack([middle, np.log(after) - np.log1p(-after)])
