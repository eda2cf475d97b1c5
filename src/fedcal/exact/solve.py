"""The server's half of exact fits: solvers as generators that yield parameters and are sent the clients' sums.

    solver = newton(start, prior)
    t = next(solver)                      # ask the clients for their sums at t …
    t = solver.send({"loss": …, "grad": …, "hess": …})        # … and so on, until StopIteration carries the fit

Whoever drives the generator decides how sums are gathered: a loop in memory, files, Flower, secure aggregation. Several
solvers advance in `lockstep`, one round of messages for all of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedcal.base.store import unnest
from fedcal.errors import FedCalWarning
from fedcal.exact.queries import Several, SumQuery

Sums = dict[str, Tensor]
Solver = Generator[Tensor, Sums, Tensor]
Program = Generator[SumQuery, Sums, Any]  # yields queries, is sent the sums of the replies, returns the result


@dataclass(frozen=True)
class Prior:
    """½ Σ precision · (t − mean)², and on a scale b = t[0] > 0 a Gamma prior of mode m worth g samples.

    The Gamma part, g (b/m − 1 − log b/m), is convex and bounds what separable or single samples leave open.
    """

    mean: Tensor
    precision: Tensor
    g: float = 0.0
    m: float = 1.0

    def reach(self, t: Tensor, move: Tensor) -> float:
        """The share of a step that may be taken: a scale stays above 0, and shrinks to a tenth at once at most."""
        b, change = float(t[0]), float(move[0])
        return min(1.0, -0.9 * b / change) if self.g and change < 0 else 1.0

    def __call__(self, t: Tensor) -> tuple[float, Tensor, Tensor]:
        """Value, gradient and the Hessian's diagonal; a scale must be positive."""
        off = t - self.mean
        gradient, curvature = self.precision * off, self.precision
        value = 0.5 * float(gradient @ off)
        if self.g:
            b = float(t[0]) / self.m
            value += self.g * (b - 1 - math.log(b))
            gradient, curvature = gradient.clone(), curvature.clone()
            gradient[0] += self.g * (1 - 1 / b) / self.m
            curvature[0] += self.g / float(t[0]) / float(t[0])
        return value, gradient, curvature


Step = Callable[[Tensor, Tensor, Tensor], Tensor]  # (Hessian, gradient, where) -> step
Precondition = Callable[[Sums, Tensor], Callable[[Tensor], Tensor]]  # (reply, the prior's curvature) -> H⁻¹, roughly
SMALLEST = 1e-15  # share of a step: where even less would be needed, there is none
MEMORY = 30  # steps that L-BFGS remembers


def newton_step(hessian: Tensor, gradient: Tensor, _: Tensor) -> Tensor:
    """−H⁻¹ g, scaled to a unit diagonal first; flat directions (a class that nobody has) are left alone."""
    scale = hessian.diagonal().clamp_min(1e-300).sqrt()
    scaled = hessian / scale / scale[:, None]
    scaled.diagonal().add_(1e-13)
    step, singular = torch.linalg.solve_ex(scaled, gradient / scale)
    return -(gradient / scale if singular else step) / scale


def newton(t: Tensor, prior: Prior, tol: float = 1e-10, step: Step = newton_step, max_rounds: int = 60) -> Solver:
    """Damped Newton, until a step would gain less than `tol` nats of the whole summed loss; that is still taken."""

    def look(t: Tensor, sums: Sums, gradient: Tensor, curvature: Tensor) -> tuple[Tensor, float]:
        hessian = sums["hess"] + torch.diag(curvature)
        move = step(hessian, gradient, t)
        return move, -float(gradient @ move) - 0.5 * float(move @ hessian @ move)

    return (yield from _descend(t, prior, look, tol, max_rounds, last_step=1.0))


def lbfgs(t: Tensor, prior: Prior, precondition: Precondition, tol: float = 1e-4, max_rounds: int = 200) -> Solver:
    """L-BFGS with a preconditioner made of each reply, for fits with too many parameters to send a Hessian."""
    pairs: list[tuple[Tensor, Tensor, float]] = []
    before: list[tuple[Tensor, Tensor]] = []  # the last accepted parameters, and their gradient

    def look(t: Tensor, sums: Sums, gradient: Tensor, curvature: Tensor) -> tuple[Tensor, float]:
        if before:
            moved, turned = t - before[0][0], gradient - before[0][1]
            if float(moved @ turned) > 0:
                pairs.append((moved, turned, 1 / float(moved @ turned)))
        del pairs[:-MEMORY]
        before[:] = [(t, gradient)]
        move = -_two_loop(gradient, pairs, precondition(sums, curvature))
        return move, -0.5 * float(gradient @ move)

    return (yield from _descend(t, prior, look, tol, max_rounds, last_step=0.0))


Look = Callable[[Tensor, Sums, Tensor, Tensor], tuple[Tensor, float]]


def _descend(t: Tensor, prior: Prior, look: Look, tol: float, max_rounds: int, last_step: float) -> Solver:
    """Take steps that are shortened until the loss falls, until one would gain less than `tol`.

    Args:
        t: where to start.
        prior: added to the summed loss.
        look: gives the step from a point with these sums, gradient and prior's curvature, and what it would gain.
        tol: nats.
        max_rounds: points at most.
        last_step: the share of the last step that is still taken.
    """
    best, best_loss, move, promised, scale = t, math.inf, torch.zeros_like(t), 0.0, 1.0
    for _ in range(max_rounds):
        sums = yield t
        value, gradient, curvature = prior(t)
        loss, gradient = float(sums["loss"]) + value, sums["grad"] + gradient
        if math.isfinite(loss) and loss <= best_loss - 1e-4 * scale * promised + 1e-12 * abs(loss):
            best, best_loss = t, loss
            move, gain = look(t, sums, gradient, curvature)
            promised, scale = -float(gradient @ move), prior.reach(t, move)
            if not math.isfinite(promised):
                return t
            if gain < tol:
                return t + last_step * scale * move if last_step else t
        else:
            scale *= _shorter(scale * promised, loss - best_loss)
        if scale < SMALLEST:
            return _stopped(best, "no step that it finds gains anything")
        t = best + scale * move
    return _stopped(best, f"its limit of {max_rounds} steps is reached")


def _shorter(promised: float, rise: float) -> float:
    """By how much to shorten a step that rose where it should have fallen: to the lowest point of the parabola through
    what is known, within reason."""
    if not math.isfinite(rise):
        return 1e-3
    return min(max(promised / (2 * max(rise + promised, 1e-300)), 1e-3), 0.5)


def _stopped(t: Tensor, reason: str) -> Tensor:
    """The end of a search that has not arrived; whoever fits should know."""
    warnings.warn(
        f"a fit of {t.numel()} parameters stopped short of its optimum ({reason}): are some of the logits extreme, or wrong?",
        FedCalWarning,
        stacklevel=2,
    )
    return t


def _two_loop(gradient: Tensor, pairs: list[tuple[Tensor, Tensor, float]], precondition: Any) -> Tensor:
    """The inverse Hessian's estimate times the gradient (Nocedal & Wright, Algorithm 7.4)."""
    q, weights = gradient.clone(), []
    for moved, turned, rho in reversed(pairs):
        weights.append(rho * float(moved @ q))
        q -= weights[-1] * turned
    q = precondition(q)
    for (moved, turned, rho), weight in zip(pairs, reversed(weights), strict=True):
        q += (weight - rho * float(turned @ q)) * moved
    return q


def by_blocks(blocks: Tensor, precision: Tensor) -> Precondition:
    """The inverse of the matrix family's Hessian blocks, each class with itself, plus the prior's precision; fixed."""
    k = len(blocks)
    inverse = torch.linalg.inv(blocks + torch.diag_embed(precision.view(k, k + 1)))
    return lambda sums, curvature: (
        lambda gradient: torch.einsum("kij,kj->ki", inverse, gradient.view(k, k + 1)).flatten()
    )


def by_class(sums: Sums, curvature: Tensor) -> Callable[[Tensor], Tensor]:
    """The inverse of what a reply tells of the Hessian: its diagonal, or (vector) each class's scale with its shift."""
    diagonal = (sums["diag"] + curvature).clamp_min(1e-300)
    if "cross" not in sums:
        return lambda gradient: gradient / diagonal
    a, c = diagonal.chunk(2)
    b = sums["cross"]
    b = b * torch.clamp(
        0.999 * (a * c).sqrt() / b.abs().clamp_min(1e-300), max=1.0
    )  # rounding must not make it singular
    det = a * c - b * b

    def solve(gradient: Tensor) -> Tensor:
        g, h = gradient.chunk(2)
        return torch.cat([(c * g - b * h) / det, (a * h - b * g) / det])

    return solve


def lockstep(
    query: Callable[[dict[int, Tensor]], SumQuery], solvers: dict[int, Solver]
) -> Generator[SumQuery, Sums, dict[int, Tensor]]:
    """Advance several solvers side by side, one round of messages for all of them.

    Args:
        query: makes one query of the parameters at which the solvers want sums, by fold.
        solvers: one per fold.

    Returns:
        What each solver arrives at.
    """
    at, found = {fold: next(solver) for fold, solver in solvers.items()}, dict[int, Tensor]()
    while at:
        sums = yield query(dict(at))
        for fold in list(at):
            try:
                at[fold] = solvers[fold].send(unnest(str(fold), sums))
            except StopIteration as finished:
                found[fold] = finished.value
                del at[fold]
    return {fold: found[fold] for fold in solvers}


def in_parallel(*programs: Program) -> Generator[SumQuery, Sums, list[Any]]:
    """Run programs side by side, their queries in one request as long as there are several; returns their results."""
    queries, found = {i: next(program) for i, program in enumerate(programs)}, [None] * len(programs)
    while queries:
        running = list(queries)
        sums = yield Several(tuple(queries.values()))
        for position, i in enumerate(running):
            try:
                queries[i] = programs[i].send(unnest(str(position), sums))
            except StopIteration as finished:
                found[i] = finished.value
                del queries[i]
    return found


def with_share(share: float, program: Program) -> Program:
    """Run the program with all its queries about that share of the samples."""
    query = next(program)
    while True:
        sums = yield query.about(share) if share < 1 else query
        try:
            query = program.send(sums)
        except StopIteration as finished:
            return finished.value
