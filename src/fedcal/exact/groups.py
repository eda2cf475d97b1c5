"""Fits side by side: descents in groups, and one round of messages for all groups.

Descents of one family form a `Group`. It asks for the loss and gradient of all its maps, but for the curvature of one of
them only, the lead, which takes Newton steps with it. The other maps are close to the lead: they use its curvature, corrected
by what their own steps have shown (L-BFGS).

    full        the whole Hessian of the lead, in every round
    blocks      for a large matrix: the Hessian of each class with itself, once
    diagonal    for other large families: the diagonal, and what couples a class's scale with its shift, in every round

The generators do not know how sums are gathered: in memory, by files, by Flower, or by secure aggregation.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.folds import FOLDS
from fedcal.base.store import unnest
from fedcal.exact.linear import Curvature
from fedcal.exact.prepared import ALL
from fedcal.exact.queries import LinearSums, Points, SumQuery
from fedcal.exact.solve import Descent, Inverse, Sums, inverse_of


class Asking(Protocol):
    """What `lockstep` advances: a group of descents of maps of logits, or of features."""

    descents: list[Descent]

    def ask(self) -> Points: ...

    def receive(self, sums: Sums) -> None: ...


def lockstep(
    groups: Sequence[Asking], query: Callable[[tuple[Points, ...]], SumQuery] = LinearSums
) -> Generator[SumQuery, Sums, int]:
    """Advance all groups in the same rounds until all their descents are done; return the number of rounds."""
    rounds = 0
    while live := [group for group in groups if not all(descent.done for descent in group.descents)]:
        rounds += 1
        sums = yield query(tuple(group.ask() for group in live))
        for i, group in enumerate(live):
            group.receive(unnest(str(i), sums))
    return rounds


def distinct_points(descents: list[Descent]) -> tuple[Array, list[tuple[int, Descent]]]:
    """The points at which losses are wanted, neighbours at one point once; and each live descent with its point's number.

    The lead, which is the middle one of the descents that are not done, comes first.
    """
    live = [descent for descent in descents if not descent.done]
    lead = live[len(live) // 2]
    live = [lead, *(descent for descent in live if descent is not lead)]
    every = np.stack([descent.t for descent in live])
    new = np.append(True, (every[1:] != every[:-1]).any(1))
    return every[new], list(zip((np.cumsum(new) - 1).tolist(), live, strict=True))


@dataclass
class Group:
    """Descents of one family over the samples outside one fold, ordered so that neighbours are similar.

    A group with a `guide` asks for no curvature. The guide is the group of the same family over all samples; its curvature,
    less the fold's share, is used here too. So a group comes after its guide in the same rounds.
    """

    family: str
    descents: list[Descent]
    curvature: Curvature
    fold: int = ALL
    guide: Group | None = None
    known: Sums = field(default_factory=dict)  # the latest curvature
    _asked: list[tuple[int, Descent]] = field(default_factory=list)

    def ask(self) -> Points:
        """What clients are asked: each point once, the lead's first."""
        points, self._asked = distinct_points(self.descents)
        wanted = "none" if self.curvature == "blocks" and self.known else self.curvature
        return Points(self.family, self.fold, wanted, points)

    def receive(self, sums: Sums) -> None:
        """Pass the sums to the descents."""
        told = {name: value for name, value in sums.items() if name not in ("loss", "grad")}
        self.known = self.guide.known if self.guide else told or self.known
        share = 1 - 1 / FOLDS if self.guide else 1.0
        if "blocks" in self.known and not self.descents[0].inverse:  # costly to invert
            for descent in self.descents:
                descent.inverse = self.inverse(descent, share)
        for i, descent in self._asked:
            inverse = descent.inverse or self.inverse(descent, share)
            descent.receive(float(sums["loss"][i]), sums["grad"][i], inverse, exact=not i and self.curvature == "full")

    def inverse(self, descent: Descent, share: float = 1.0) -> Inverse:
        """The inverse of `share` times the latest known Hessian plus the prior's."""
        return inverse_of(self.family, self.known, descent.prior, descent.t, share)
