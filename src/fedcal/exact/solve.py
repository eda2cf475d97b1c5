"""One exact fit at the server: a quasi-Newton descent to the optimum of one map, from sums.

A fit is a sum of losses over all clients' samples, and a prior, which only the server needs. How much of the Hessian is known
differs (groups.py); what is known is inverted here, and L-BFGS corrects it by what the steps have shown.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.query import Query
from fedcal.errors import FedCalWarning
from fedcal.exact.linear import unpack_hessian, unpack_symmetric

Sums = dict[str, Array]
Program = Generator[Query, Sums, Any]  # yields queries, is sent the sums of the replies, returns the result
Inverse = Callable[[Array], Array]  # a gradient ↦ the inverse Hessian times it
SMALLEST = 1e-15  # least share of a step that is tried
UNCHECKED = 1.0  # most nats that an unchecked step may promise: if the curvature is wrong, a larger one does harm
MEMORY = 30  # steps that L-BFGS remembers
FLAT = 1e-10  # least curvature of the loss along the scale, as a share of the prior's: with none, rounding would be the step


@dataclass(frozen=True)
class Prior:
    """A ridge on all of a map but its scale, and a Gamma prior of mode m, worth one sample, on its scale.

    A map is t = b · identity + the rest, with the rest orthogonal to the identity. The ridge is ½ Σ precision · rest²: maps
    are shrunk towards the closest multiple of the identity, which is a temperature. The Gamma part, b/m − 1 − log b/m, is
    convex, and keeps b finite if samples are separable or very few.
    """

    identity: Array
    precision: Array  # the same for all parameters in which the identity is not 0
    m: float = 1.0

    @property
    def towards(self) -> Array:
        """The vector whose product with a map is its scale b."""
        return self.identity / (self.identity**2).sum()

    def scale(self, t: Array) -> float:
        return float(self.towards @ t)

    def reach(self, t: Array, move: Array) -> float:
        """The share of a step that may be taken: the scale stays positive, and shrinks to a tenth at most."""
        b, change = self.scale(t), self.scale(move)
        return min(1.0, -0.9 * b / change) if change < 0 else 1.0

    def __call__(self, t: Array) -> tuple[float, Array]:
        """Value and gradient; the scale must be positive."""
        b = self.scale(t)
        rest = t - b * self.identity
        ridge = self.precision * rest
        value = 0.5 * float(ridge @ rest) + b / self.m - 1 - math.log(b / self.m)
        return value, ridge + (1 / self.m - 1 / b) * self.towards

    def along_scale(self, t: Array) -> float:
        """κ of the Hessian, which is diag(precision) + κ · towards towardsᵀ."""
        support = self.identity != 0
        return 1 / self.scale(t) ** 2 - float(self.precision[support].sum())

    def turned(self, t: Array, move: Array) -> Array:
        """The Hessian at t times a step."""
        return self.precision * move + self.along_scale(t) * self.scale(move) * self.towards


# --- curvature -------------------------------------------------------------------------------------------------------


def inverse_of(family: str, sums: Sums, prior: Prior, t: Array, share: float = 1.0) -> Inverse:
    """The inverse of `share` times the summed Hessian, or its known part, plus the prior's Hessian at t."""
    if "hess" in sums:
        hessian = share * unpack_hessian(family, sums["hess"]) + np.diag(prior.precision)
        return _of_full(hessian + prior.along_scale(t) * np.outer(prior.towards, prior.towards))
    kappa = prior.along_scale(t)
    precision = np.maximum(prior.precision, FLAT * kappa * prior.towards**2)
    if "blocks" in sums:
        solve = _of_blocks(share * unpack_symmetric(sums["blocks"]), precision)
    else:
        solve = _by_class({name: share * sums[name] for name in ("diag", "cross") if name in sums}, precision)
    through = solve(prior.towards)
    bend = 1 + kappa * prior.scale(through)  # Sherman and Morrison
    if not bend > 1e-3:  # the correction would not be positive definite: leave it out
        return solve
    return lambda gradient: (q := solve(gradient)) - kappa / bend * prior.scale(q) * through


def _of_full(hessian: Array) -> Inverse:
    """Solve with a full Hessian, scaled to a unit diagonal; flat directions (a class without samples) are left alone."""
    scale = np.sqrt(np.maximum(hessian.diagonal(), 1e-300))
    scaled = hessian / scale / scale[:, None] + 1e-13 * np.eye(len(scale))

    def solve(gradient: Array) -> Array:
        try:
            return np.linalg.solve(scaled, gradient / scale) / scale
        except np.linalg.LinAlgError:
            return gradient / scale / scale

    return solve


def _of_blocks(blocks: Array, precision: Array) -> Inverse:
    """Solve for each class of a matrix by itself."""
    k = len(blocks)
    whole = blocks + precision.reshape(k, k + 1, 1) * np.eye(k + 1)
    scale = np.sqrt(np.maximum(whole.diagonal(axis1=1, axis2=2), 1e-300))
    scaled = whole / scale[:, None] / scale[:, :, None] + 1e-10 * np.eye(k + 1)
    inverse = np.linalg.inv(scaled) / scale[:, None] / scale[:, :, None]
    return lambda gradient: (inverse @ gradient.reshape(k, k + 1, 1)).ravel()


def _by_class(sums: Sums, precision: Array) -> Inverse:
    """Solve with the diagonal, or for a vector with each class's scale and shift together."""
    diagonal = np.maximum(sums["diag"] + precision, 1e-300)
    if "cross" not in sums:
        return lambda gradient: gradient / diagonal
    a, c = np.split(diagonal, 2)
    b = sums["cross"]  # rounding must not make it singular
    b = b * np.minimum(0.999 * np.sqrt(a * c) / np.maximum(np.abs(b), 1e-300), 1.0)
    det = a * c - b * b

    def solve(gradient: Array) -> Array:
        g, h = np.split(gradient, 2)
        return np.concatenate([(c * g - b * h) / det, (a * h - b * g) / det])

    return solve


# --- one fit -----------------------------------------------------------------------------------------------------------


@dataclass
class Descent:
    """A search for the map with the least summed loss plus prior: `receive` sums at `t` until it is `done`.

    Steps are shortened until the loss falls. The search ends when a step would gain less than `tol` nats; that step is still
    taken.
    """

    t: Array
    prior: Prior
    tol: float
    rounds: int  # at most; after them `trusting` takes a small step unchecked, else the best point so far is the fit
    trusting: bool = False
    inverse: Inverse | None = None  # the curvature to build on, where the group has none
    done: bool = False
    arrived: bool = False
    stopped: str = ""  # why it has not arrived, if it has not
    pairs: list[tuple[Array, Array]] = field(default_factory=list)  # steps, and the changes of the loss's gradient
    _best: Array | None = None
    _gradient: Array | None = None  # of the loss alone, there
    _loss: float = math.inf
    _move: Array | None = None
    _promised: float = 0.0
    _scale: float = 1.0

    @property
    def left(self) -> float:
        """Nats that its next step promises: 0 if it has arrived, infinite if it found no step that gains anything."""
        if self.arrived:
            return 0.0
        return 0.5 * self._promised if self._best is not None and self._scale >= SMALLEST else math.inf

    @property
    def loss(self) -> float:
        """The summed loss alone, without the prior, at the best point so far."""
        return math.inf if self._best is None else self._loss - self.prior(self._best)[0]

    def receive(self, loss: float, gradient: Array, inverse: Inverse, exact: bool) -> None:
        """Take the sums at `t`, and go on to the next point.

        Args:
            loss: the summed loss.
            gradient: its gradient.
            inverse: of the Hessian, or an approximation.
            exact: whether it is the inverse of the Hessian at `t`.
        """
        self.rounds -= 1
        value, slope = self.prior(self.t)
        whole, slack = loss + value, 1e-12 * abs(loss)
        if math.isfinite(whole) and whole <= self._loss - 1e-4 * self._scale * self._promised + slack:
            self._accept(whole, gradient, slope, inverse, exact)
        else:
            self._scale *= _shorter(self._scale * self._promised, whole - self._loss)
        if self.done or self._move is None or self._best is None:
            self.done = True
            return
        self.t = self._best + self._scale * self._move
        if self._scale < SMALLEST:
            self._stop("no step that it finds gains anything")
        elif not self.rounds:
            self._stop("its limit of steps is reached")

    def _accept(self, whole: float, gradient: Array, slope: Array, inverse: Inverse, exact: bool) -> None:
        if self._best is not None and self._gradient is not None:
            moved, turned = self.t - self._best, gradient - self._gradient
            self.pairs = [*self.pairs, (moved, turned)][-MEMORY:] if float(moved @ turned) > 0 else self.pairs
        self._best, self._gradient, self._loss = self.t, gradient, whole
        self._move = -inverse(gradient + slope) if exact else -self.corrected(inverse)(gradient + slope)
        self._promised, self._scale = -float((gradient + slope) @ self._move), self.prior.reach(self.t, self._move)
        if not math.isfinite(self._promised):
            self.done = self.arrived = True
        elif 0.5 * self._promised < self.tol:
            self.t, self.done, self.arrived = self.t + self._scale * self._move, True, True

    def _stop(self, reason: str) -> None:
        self.done, self.stopped = True, reason
        is_safe = self.trusting and self._scale > 1e-3 and 0.5 * self._promised < UNCHECKED
        if not is_safe and self._best is not None:
            self.t = self._best

    def go_on(self, tol: float, rounds: int) -> None:
        """Continue the search with a smaller tolerance; a step that was not taken yet comes first."""
        self.tol, self.rounds, self.trusting = tol, rounds, True
        if not self.arrived and self._best is not None and self._move is not None:
            self.t = self._best + self._scale * self._move
        self.done, self.arrived, self.stopped = False, False, ""

    def corrected(self, inverse: Inverse) -> Inverse:
        """The inverse Hessian corrected by the steps so far: L-BFGS (Nocedal & Wright, Algorithm 7.4)."""
        pairs = []
        for moved, turned in self.pairs:
            whole = turned + self.prior.turned(self.t, moved)
            if (bent := float(moved @ whole)) > 0:
                pairs.append((moved, whole, 1 / bent))

        def two_loop(gradient: Array) -> Array:
            q, weights = gradient.copy(), []
            for moved, turned, rho in reversed(pairs):
                weights.append(rho * float(moved @ q))
                q -= weights[-1] * turned
            q = inverse(q)
            for (moved, turned, rho), weight in zip(pairs, reversed(weights), strict=True):
                q = q + (weight - rho * float(turned @ q)) * moved
            return q

        return two_loop


def _shorter(promised: float, rise: float) -> float:
    """The factor by which to shorten a step after which the loss rose: to the minimum of a parabola, within limits."""
    if not math.isfinite(rise):
        return 1e-3
    return min(max(promised / (2 * max(rise + promised, 1e-300)), 1e-3), 0.5)


def warn_if_stopped(descent: Descent) -> None:
    """Warn the user if a fit stopped before its optimum."""
    if descent.stopped:
        warnings.warn(
            f"a fit of {descent.t.size} parameters stopped short of its optimum ({descent.stopped}): are some of the "
            "logits extreme, or wrong?",
            FedCalWarning,
            stacklevel=2,
        )
