"""The nodes as the server knows them: their names, their replies, a log of rounds and of what went wrong.

Within training rounds the records travel with the strategy's messages, and `Nodes` only reads them. On the frozen model,
rounds (rounds.py, secure.py) send messages of their own, by `Nodes.ask`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from logging import WARNING
from typing import Any, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from fedcal.errors import FedCalError
from fedcal.measure.views import POOLED
from fedcal.protocol import Reply, Server
from fedcal.protocol.checks import check_bytes, outliers
from fedcal.protocol.wire import unpack_reply
from fedcal.transport.flower.grid import ask, error_of, is_gone
from fedcal.transport.flower.records import (
    DATA,
    MODEL,
    REPLY,
    REQUEST,
    Phase,
    Records,
    data_of,
    fingerprint,
    record_of,
    size,
    take_out,
)

T = TypeVar("T")
LONGEST = 200  # characters of a node's name
ALL_NODES = "all nodes"  # whose metrics are shown where no single node's are
Cost = dict[str, int]  # bytes of a round over all nodes: up, down, and the model's own


@dataclass(frozen=True)
class Frozen:
    """The frozen model, whose calibration a server asks nodes about."""

    grid: Grid
    server: Server
    model: ArrayRecord
    timeout: float  # seconds that nodes have for a round

    @cached_property
    def fingerprint(self) -> str:
        """The model's."""
        return fingerprint(self.model)

    def request(self, phase: Phase, data: bytes, bins: int = 0, **more: str) -> ConfigRecord:
        """Return a request about the model."""
        return record_of(data, phase=phase, model=self.fingerprint, bins=bins, **more)


class Nodes:
    """The nodes as the server knows them: their names, a log of rounds, and what went wrong."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # by node
        self.earlier: dict[int, str] = {}  # names that nodes had before this server was started again: for faults
        self.rounds: list[dict[str, Any]] = []  # what a report says of each
        self.faults: list[dict[str, Any]] = []  # nodes that a round went on without, with the reason
        self.nll_noise: float | None = None  # standard deviation of the noise on a NLL, where it was measured privately
        self._round: dict[str, Any] = {"phase": "training", "round": 0}  # the one that is on
        self._began = 0.0
        self._with_model: set[int] = set()  # nodes that were sent the frozen model
        self._silences = Counter[int]()  # how often a node let a training round time out
        self._back: dict[int, int] = {}  # the training round from which on it is asked again: later each time

    # --- the log ---------------------------------------------------------------------------------------------------------

    def begin(self, phase: str, number: int) -> None:
        """Begin a round: faults are entered under it."""
        self._round, self._began = {"phase": phase, "round": number}, time.perf_counter()

    def end(self, took_part: list[int], cost: Cost) -> None:
        """Enter a round in the log."""
        names = sorted(self.names[node] for node in took_part)
        seconds = time.perf_counter() - self._began
        self.rounds.append({**self._round, "took_part": names, "bytes": cost, "seconds": seconds})

    def blame(self, node: int, reason: str) -> None:
        """Log why the round goes on without a node."""
        who = self.names.get(node) or self.earlier.get(node, f"node {node}")
        self.faults.append({**self._round, "node": str(node), "name": who, "reason": reason})
        log(WARNING, "FedCal: %s round %d continues without %s: %s", *self._round.values(), who, reason)

    def blame_silent(self, asked: Iterable[int], replies: Mapping[int, Message]) -> None:
        """Log the nodes that a training round asked, and that sent an error or nothing.

        A node that let the time run out, or that Flower has given up, is left out of the next round; the second time, of two.
        """
        for node in sorted(asked):
            reply = replies.get(node)
            if reply is None or is_gone(reply):
                self._silences[node] += 1
                self._back[node] = self._round["round"] + 1 + self._silences[node]
            if reply is None:
                self.blame(node, "no reply in time")
            elif reply.has_error():
                self.blame(node, error_of(reply))

    def present(self, nodes: list[int]) -> list[int]:
        """Return the nodes that this training round may ask: not those that were silent of late."""
        return [node for node in nodes if self._back.get(node, 0) <= self._round["round"]]

    # --- what nodes send -------------------------------------------------------------------------------------------------

    def introduce(self, records: dict[int, Records]) -> None:
        """Note the names by which nodes call themselves, so that faults are entered under them."""
        taken = {name: node for node, name in self.names.items()}
        for node, sent in sorted(records.items()):
            with suppress(FedCalError):
                name = self.names[node] = self._name(node, sent.get(REPLY), taken)
                taken[name] = node

    def meet(self, records: dict[int, Records]) -> list[int]:
        """Note the names of nodes that only trained.

        Returns:
            The nodes that have one.
        """
        return list(self.read_each(records, lambda name, record: None))

    def read(self, server: Server, records: dict[int, Records]) -> dict[int, Reply]:
        """Read and check replies to the server's request; every reply that is refused is logged.

        Returns:
            The usable replies by node, in the order of the nodes' names.
        """

        def reply_of(name: str, record: Any) -> Reply:
            data = data_of(record)
            check_bytes(name, len(data), server.example)
            _, reply = unpack_reply(data)
            server.check(name, reply)
            return reply

        found = self.read_each(records, reply_of)
        by_name = {self.names[node]: reply for node, reply in found.items()}
        # As `Server.receive` does: under privacy replies do not say how many samples they are of.
        far = {} if server.privacy else outliers(by_name, server.plan.method.additive, server.known)
        for node in [node for node in found if self.names[node] in far]:
            del found[node]
            self.blame(node, far[self.names[node]])
        return dict(sorted(found.items(), key=lambda one: self.names[one[0]]))

    def receive(self, server: Server, replies: dict[int, Reply]) -> None:
        """Give the server replies that `read` has checked."""
        server.receive({self.names[node]: reply for node, reply in replies.items()}, check=False)

    def read_each(self, records: dict[int, Records], read: Callable[[str, Any], T]) -> dict[int, T]:
        """Return what `read` makes of each node's reply; where it refuses one, that is logged."""
        found: dict[int, T] = {}
        taken: dict[str, int] = {}
        for node, sent in sorted(records.items()):
            try:
                name = self.names[node] = self._name(node, sent.get(REPLY), taken)
                found[node] = read(name, sent[REPLY])
                taken[name] = node
            except FedCalError as error:
                self.blame(node, str(error))
        return found

    def _name(self, node: int, record: Any, taken: Mapping[str, int]) -> str:
        name = record.get("client") if record is not None else None
        if not isinstance(name, str):
            raise FedCalError(
                f"node {node} does not reply to FedCal: is calibration_mod the first of its ClientApp's mods?"
            )
        if not name.isprintable() or not 0 < len(name) <= LONGEST or name == POOLED:
            raise FedCalError(f"node {node} calls itself {name[:LONGEST]!r}, which cannot name a node")
        if taken.get(name, node) != node or self.names.get(node, name) != name:
            raise FedCalError(f"node {node} calls itself {name}, which is another node's name")
        return name

    # --- requests about the frozen model -----------------------------------------------------------------------------------

    def ask(self, frozen: Frozen, requests: Mapping[int, ConfigRecord]) -> tuple[dict[int, Records], Cost]:
        """Send every node its request, and return the nodes' records in reply, and what that cost.

        With a request that is about the frozen model, a node gets it once; again if it lost its logits.
        """
        contents = {node: {REQUEST: record} for node, record in requests.items()}
        cost = {"up": 0, "down": 0, "model_down": 0}
        began = time.monotonic()

        def with_model(nodes: Iterable[int]) -> dict[int, Records]:
            return {node: contents[node] | {MODEL: frozen.model} for node in nodes}

        def send(contents: dict[int, Records]) -> dict[int, Records]:
            messages = [Message(RecordDict(dict(one)), node, MessageType.TRAIN) for node, one in contents.items()]
            cost["down"] += sum(size([one[REQUEST]]) for one in contents.values())
            cost["model_down"] += sum(size([one[MODEL]]) for one in contents.values() if MODEL in one)
            replies = ask(frozen.grid, messages, max(1.0, began + frozen.timeout - time.monotonic()))
            by_node = {reply.metadata.src_node_id: reply for reply in replies}
            found = {}
            for node in contents:
                if node not in by_node:
                    self.blame(node, f"no reply within {time.monotonic() - began:.0f} s")
                elif by_node[node].has_error():
                    self.blame(node, error_of(by_node[node]))
                else:
                    found[node] = take_out(by_node[node].content)
                    cost["up"] += size(found[node].values())
            return found

        about_model = {node for node, record in requests.items() if record[DATA]}
        # After a round of an earlier server, a node may have its logits as well: it says so if it has not.
        earlier = any(one["phase"] == "calibration" for one in self.rounds)
        without = set() if earlier else about_model - self._with_model
        replies = send(contents | with_model(sorted(without)))
        if lost := [node for node, sent in replies.items() if _lost_logits(sent)]:
            replies = {node: sent for node, sent in replies.items() if node not in lost}
            replies |= send(with_model(lost))
        self._with_model.update(about_model & set(replies))
        return replies, cost


def _lost_logits(records: Records) -> bool:
    reply = records.get(REPLY)
    return reply is not None and bool(reply.get("missing", False))
