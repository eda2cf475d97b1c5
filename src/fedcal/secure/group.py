"""A group of nodes and its aggregations, one after the other: while one adds up, the next one exchanges its keys.

    begin(layout); while total is None: receive(replies to ask())

The first aggregation takes five messages to every node, and each later one three: its keys and shares travel with the
agreement and the unmasking of the one before. Every aggregation has keys, seeds and shares of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedcal.errors import FedCalError
from fedcal.secure.aggregation import Aggregation, check_size
from fedcal.secure.fixed import MOST_NODES
from fedcal.secure.messages import DoesNotAddUp, Part
from fedcal.secure.shamir import FEWEST_NODES
from fedcal.secure.vector import Layout, Total

ATTEMPTS = 8  # at a total, each without the nodes that fell away in the one before


def divide(nodes: Sequence[str], most: int = MOST_NODES) -> list[list[str]]:
    """Divide a federation into groups of about the same size.

    Args:
        nodes: of the federation.
        most: nodes per group.

    Raises:
        FedCalError: where the nodes are too few.
    """
    count = -(-len(nodes) // most) or 1
    groups = [list(nodes[i::count]) for i in range(count)]
    check_size(min(map(len, groups)))
    return groups


class Group:
    """The server's side.

    Args:
        nodes: 3 to 63.

    Raises:
        FedCalError: where they are fewer or more.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        check_size(len(nodes))
        self.nodes = sorted(nodes)  # those that have not fallen away
        self.total: Total | None = None
        self.aggregations = 0  # that were finished or given up
        self._layout = Layout({})
        self._now: Aggregation | None = None
        self._next: Aggregation | None = None
        self._attempts = 0

    def begin(self, layout: Layout) -> None:
        """Begin with the next total; where the one before needed more words, it has them from the start."""
        self._layout, self.total, self._attempts = Layout(layout.shapes, self._layout.words), None, 0

    def ask(self) -> dict[str, list[Part]]:
        """Return what each node is asked: a stage of this aggregation, and one of the next.

        Raises:
            FedCalError: where too few nodes are left.
        """
        if len(self.nodes) < FEWEST_NODES:
            raise FedCalError(f"{len(self.nodes)} nodes are left, and secure aggregation needs {FEWEST_NODES}")
        if self._now is None:
            self._now, self._next = self._next or Aggregation(self.nodes), None
        if self._now.stage == "mask":
            self._now.layout = self._layout
        elif self._now.stage == "agree":
            self._next = Aggregation(self.nodes)
        parts = [one.ask() for one in (self._now, self._next) if one]
        return {name: [part[name] for part in parts if name in part] for name in self.nodes}

    def asks_for_vectors(self) -> bool:
        """Return whether the next messages ask for the nodes' vectors: these need the request."""
        now = self._now or self._next
        return now is not None and now.stage == "mask"

    def receive(self, replies: Mapping[str, tuple[Sequence[Part], bytes]]) -> dict[str, str]:
        """Take the replies to `ask`: nodes that gave none, or a wrong one, are not asked again.

        Returns:
            By node, why its reply is refused.

        Raises:
            FedCalError: where this leads nowhere.
        """
        refused: dict[str, str] = {}
        for aggregation in [one for one in (self._now, self._next) if one]:
            mine = {name: (_part(parts, aggregation.session), vector) for name, (parts, vector) in replies.items()}
            refused = aggregation.receive(mine) | refused  # the first reason counts
        self.nodes = [name for name in self.nodes if name in replies and name not in refused]
        if self._next and self._next.failed:
            self._next = None
        if self._now and (self._now.failed or self._now.stage is None):
            self._finish(self._now)
        return refused

    def _finish(self, aggregation: Aggregation) -> None:
        self.aggregations, self._attempts, self._now = self.aggregations + 1, self._attempts + 1, None
        reason = "too many nodes dropped out"
        try:
            if aggregation.failed:
                self._next = None  # it has lost the same nodes: the next one begins with those that are left
            else:
                self.total = self._layout.decode(aggregation.total(), aggregation.masked)
                self._layout = self._layout if self.total else self._layout.wider()
        except DoesNotAddUp as error:
            reason = str(error)
        if self.total is None and self._attempts >= ATTEMPTS:
            raise FedCalError(f"secure aggregation came to nothing in {ATTEMPTS} attempts ({reason}): check the nodes")


def _part(parts: Sequence[Part], session: str) -> Part:
    return next((part for part in parts if isinstance(part, dict) and part.get("session") == session), {})
