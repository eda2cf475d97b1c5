"""What a federation has cost so far, and who took part: counted once, for every transport."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from fedcal.base.query import Query, leaves
from fedcal.errors import FedCalError


@dataclass
class Ledger:
    """A server's books."""

    rounds: int = 0  # of all fits, also those that began again
    updates: int = 0  # clients' replies that counted, over all rounds
    bytes_up: int = 0  # the largest message of a client so far, each way
    bytes_down: int = 0
    total_up: int = 0  # the largest message of every round, added up: what one client sends and receives at most
    total_down: int = 0
    dropped: list[str] = field(default_factory=list)  # clients that fell away, in the order in which they did
    restarts: int = 0  # of an exact fit whose clients fell away
    spent: float = 0.0  # the share of the privacy budget that the rounds have taken
    took_part: list[str] = field(default_factory=list)  # in the last round, in their order
    notes: Counter[str] = field(default_factory=Counter)  # clients' remarks, summed over updates

    def close_round(self, took_part: list[str], replies: int, up: int, down: int) -> None:
        """Enter a round.

        Args:
            took_part: who replied.
            replies: how many clients that were; several may reply as one.
            up: bytes of the largest reply.
            down: bytes of the request.
        """
        self.rounds += 1
        self.took_part = took_part
        if replies:
            self.updates += replies
            self.bytes_up, self.bytes_down = max(self.bytes_up, up), max(self.bytes_down, down)
            self.total_up, self.total_down = self.total_up + up, self.total_down + down

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "notes": dict(self.notes)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Ledger:
        """Read it back.

        Args:
            values: what `to_dict` returned.

        Returns:
            The ledger.

        Raises:
            FedCalError: the values are damaged.
        """
        try:
            return cls(**{**values, "notes": Counter(values["notes"])})
        except (KeyError, TypeError) as error:
            raise FedCalError(f"the books of this federation are damaged ({error}): start again") from None


def query_bytes(query: Query) -> int:
    """Return the size of a query's numbers on the wire."""
    found = 0
    for _, leaf in leaves(query):
        if isinstance(leaf, np.ndarray):
            found += leaf.nbytes
        elif isinstance(leaf, int | float):
            found += 8
    return found
