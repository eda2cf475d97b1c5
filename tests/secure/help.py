"""A group and its nodes in one process: what the tests of fedcal.secure share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcal.secure import Group, Layout, SecureNode, Total

Values = dict[str, np.ndarray]
Lost = Callable[[str, str], bool]  # (node, stage) -> whether the node's reply never comes


def values_of(seed: int, scale: float = 1.0) -> Values:
    rng = np.random.default_rng(seed)
    return {"hess": scale * rng.normal(size=(3, 3)), "n": np.array(float(rng.integers(100)))}


def layout_of(values: Values) -> Layout:
    return Layout({name: value.shape for name, value in values.items()})


class Federation:
    """Nodes that hold values; `seen` keeps every message that the server gets: (node, its replies, its vector)."""

    def __init__(self, values: dict[str, Values]) -> None:
        self.values, self.nodes = values, {name: SecureNode() for name in values}
        self.group, self.layout = Group(list(values)), layout_of(next(iter(values.values())))
        self.seen: list[tuple[str, list, bytes]] = []
        self.messages = 0

    def reply(self, name: str, parts: list) -> tuple[list, bytes]:
        def encode(words):
            return Layout(self.layout.shapes, words).encode(self.values[name], n=10)

        self.nodes[name] = SecureNode.from_json(self.nodes[name].to_json())  # as after a restart of the node's process
        self.messages += 1
        return self.nodes[name].reply(parts, encode)

    def sum(self, lost: Lost = lambda name, stage: False) -> Total:
        self.group.begin(self.layout)
        while self.group.total is None:
            replies = {}
            for name, parts in self.group.ask().items():
                found = self.reply(name, parts)
                if not any(lost(name, part["stage"]) for part in parts[:1]):
                    replies[name] = found
                    self.seen.append((name, *found))
            self.group.receive(replies)
        return self.group.total


def federation(count: int, scale: float = 1.0) -> Federation:
    return Federation({f"{i:03d}": values_of(i, scale) for i in range(count)})


def exact(federation: Federation, without: tuple[str, ...] = ()) -> Values:
    mine = [values for name, values in federation.values.items() if name not in without]
    return {name: sum((values[name] for values in mine), np.zeros(())) for name in mine[0]}
