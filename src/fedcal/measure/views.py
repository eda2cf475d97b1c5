"""Several views of the same samples, measured together. This is the only place where views are measured.

A view turns a client's logits into calibrated logits: unchanged, by the global scaler, by the client's personal scaler, by
one method or another. Every view of every client gives a `Tally` (its metrics), and all views together give a `Paired` (by
how much their ECEs differ on the same samples). The command line, the simulator and Flower nodes all use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedcal.base.arrays import as_array
from fedcal.errors import FedCalError
from fedcal.measure.paired import Difference, Paired, comparable, top_of
from fedcal.measure.reliability import blocks
from fedcal.measure.tally import Tally, over_clients, pooled

View = Callable[[str, Any], Any]  # (client, logits) -> calibrated logits
POOLED = "pooled"  # in tables, the row of all clients' samples together


def unchanged(client: str, logits: Any) -> Any:
    """The view of the model as it is."""
    return logits


@dataclass(frozen=True)
class Measured:
    """Views of the same samples. `a + b` holds the samples of both; a client that is in both is added up."""

    tallies: dict[str, dict[str, Tally]]  # by view, then by client
    paired: Paired | None = None  # over all clients; None where the views were not compared

    @classmethod
    def of(
        cls, client: str, logits: Mapping[str, Any], labels: Any, n_bins: int = 15, compare: bool = True
    ) -> Measured:
        """Measure one client's samples.

        Args:
            client: the client's name.
            logits: by view, the calibrated logits (N, K) of the same samples in the same order.
            labels: (N,) column numbers.
            n_bins: equal-width confidence bins.
            compare: whether to sum up what compares the views. A single view, or too many bins, are never compared.
        """
        views = {view: as_array(z).astype(float, "C", copy=False) for view, z in logits.items()}
        labels = as_array(labels)
        tallies = {view: {client: Tally.of(z, labels, n_bins)} for view, z in views.items()}
        if not compare or not comparable(len(views), n_bins):
            return cls(tallies)
        return cls(tallies, Paired.of({view: top_of(z, labels) for view, z in views.items()}, n_bins))

    def __add__(self, other: Measured) -> Measured:
        return add_up((self, other))

    @property
    def clients(self) -> list[str]:
        """The clients that were measured."""
        return list(next(iter(self.tallies.values()), {}))

    def pooled(self, view: str) -> Tally:
        """The tally of all clients' samples together."""
        return pooled(list(self.tallies[view].values()))

    def over_clients(self, view: str) -> dict[str, Any]:
        """Means over the clients, their spread, and the worst client: see `tally.over_clients`."""
        return over_clients(self.clients, list(self.tallies[view].values()))

    def rows(self, view: str) -> dict[str, Tally]:
        """The rows of a table: all clients together first, then each client.

        Raises:
            FedCalError: a client has the name of the first row.
        """
        if POOLED in self.tallies[view]:
            raise FedCalError(f"a site cannot be named {POOLED!r}: that is what all of them together are called")
        return {POOLED: self.pooled(view), **self.tallies[view]}

    def difference(self, view: str, other: str) -> Difference:
        """The pooled ECE of a view minus that of another one, with the 95 % interval of the difference.

        Raises:
            FedCalError: the views were not compared.
        """
        if self.paired is None:
            raise FedCalError(f"{view} and {other} were not compared: measure both at once, in fewer bins")
        return self.paired.difference(view, other)

    def select(self, views: Mapping[str, str], clients: Iterable[str]) -> Measured:
        """Some of the views under new names, and the clients in a new order.

        Args:
            views: the new name of each view to keep.
            clients: all measured clients in the order wanted.
        """
        order = list(clients)
        tallies = {new: {client: self.tallies[old][client] for client in order} for old, new in views.items()}
        return Measured(tallies, self.paired.renamed(views) if self.paired else None)


def add_up(parts: Iterable[Measured]) -> Measured:
    """Add up parts, of the same views, without holding them all. The views are compared if they are in every part."""
    tallies: dict[str, dict[str, Tally]] = {}
    paired: Paired | None = None
    for number, part in enumerate(parts):
        for view, by_client in part.tallies.items():
            known = tallies.setdefault(view, {})
            for client, tally in by_client.items():
                known[client] = known[client] + tally if client in known else tally
        if number == 0:
            paired = part.paired
        elif paired is not None:
            paired = paired + part.paired if part.paired else None
    return Measured(tallies, paired)


def measure(
    samples: Mapping[str, tuple[Any, Any]], views: Mapping[str, View], n_bins: int = 15, compare: bool = True
) -> Measured:
    """Measure every client's samples under every view, a block of samples at a time, so that it needs little memory.

    Args:
        samples: each client's logits (N, K) and labels (N,); a client may have no samples.
        views: functions of (client, logits) that give calibrated logits, row by row.
        n_bins: equal-width confidence bins.
        compare: whether to sum up what compares the views (see `Measured.of`).
    """

    def parts() -> Iterator[Measured]:
        for client, (logits, labels) in samples.items():
            for z, y in blocks(logits, labels):
                yield Measured.of(client, {name: view(client, z) for name, view in views.items()}, y, n_bins, compare)

    return add_up(parts())
