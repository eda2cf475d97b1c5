"""The server's side: carry a `protocol.Server`'s requests to nodes and their replies back, with a log of who took part.

Within training rounds the records travel with the strategy's messages, and `Nodes` only reads them. On the frozen model,
`calibrate` and `measure` send messages of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from logging import INFO, WARNING
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from fedcal.errors import FedCalError
from fedcal.exact.private_queries import VALUES, Measure
from fedcal.exact.queries import sum_of
from fedcal.measure.noised import noised_tally
from fedcal.measure.views import POOLED, Measured, add_up
from fedcal.protocol import Privacy, Reply, Request, Server
from fedcal.protocol.checks import FAR, check_bytes, check_reply, of_others, outliers
from fedcal.protocol.wire import pack_request, unpack_reply
from fedcal.transport.flower.grid import ask, error_of
from fedcal.transport.flower.measured import unpack_measured
from fedcal.transport.flower.records import (
    DATA,
    MEASURED,
    MODEL,
    REPLY,
    REQUEST,
    VIEWS,
    Records,
    data_of,
    fingerprint,
    pack_scaler,
    record_of,
    size,
    take_out,
)

if TYPE_CHECKING:
    from fedcal.assess.evaluation import Evaluation

T = TypeVar("T")
LONGEST = 200  # characters of a node's name
ALL_NODES = "all nodes"  # whose metrics are told where no single node's are
Cost = dict[str, int]  # bytes of a round over all nodes: up, down, and the model's own


class Nodes:
    """The nodes as the server knows them: their names, a log of rounds, and what went wrong."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # by node
        self.earlier: dict[int, str] = {}  # names that nodes had before this server was started again: for faults
        self.rounds: list[dict[str, Any]] = []  # what a report says of each
        self.faults: list[dict[str, Any]] = []  # nodes that a round went on without, with the reason
        self.nll_noise: float | None = None  # standard deviation of the noise on a NLL, where it was measured privately
        self._round = {"phase": "training", "round": 0}  # the one that is on
        self._began = 0.0
        self._with_model: set[int] = set()  # nodes that were sent the frozen model

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
        log(WARNING, "FedCal: %s round %d goes on without %s: %s", *self._round.values(), who, reason)

    # --- what nodes send -------------------------------------------------------------------------------------------------

    def introduce(self, records: dict[int, Records]) -> None:
        """Note the names by which nodes call themselves, so that faults are entered under them."""
        for node, sent in sorted(records.items()):
            with suppress(FedCalError):
                others = {name for other, name in self.names.items() if other != node}
                self.names[node] = self._name(node, sent.get(REPLY), others)

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
        # Under privacy no summand is larger than another one may be, and how many there are is not told.
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
        for node, sent in sorted(records.items()):
            try:
                taken = {self.names[other] for other in found}
                name = self.names[node] = self._name(node, sent.get(REPLY), taken)
                found[node] = read(name, sent[REPLY])
            except FedCalError as error:
                self.blame(node, str(error))
        return found

    def _name(self, node: int, record: Any, taken: Container[str]) -> str:
        name = record.get("client") if record is not None else None
        if not isinstance(name, str):
            raise FedCalError(
                f"node {node} does not reply to FedCal: is calibration_mod the first of its ClientApp's mods?"
            )
        if not name.isprintable() or not 0 < len(name) <= LONGEST or name == POOLED:
            raise FedCalError(f"node {node} calls itself {name[:LONGEST]!r}, which cannot name a node")
        if name in taken or self.names.get(node, name) != name:
            raise FedCalError(f"node {node} calls itself {name}, which is another node's name")
        return name

    # --- rounds on the frozen model --------------------------------------------------------------------------------------

    def calibrate(
        self,
        grid: Grid,
        server: Server,
        nodes: list[int],
        model: ArrayRecord,
        timeout: float,
        after_round: Callable[[], None],
    ) -> list[int]:
        """Run calibration rounds until the server has its scaler.

        A node that gives no usable reply is not asked again, and the server goes on without it (`Server.drop`).

        Args:
            grid: of the run.
            server: asks, and receives.
            nodes: those to ask.
            model: the frozen model.
            timeout: seconds that nodes have for a round.
            after_round: called after every round, and where the fit begins again.

        Returns:
            The nodes that took part to the end.

        Raises:
            FedCalError: where no node gives a usable reply.
        """
        while (request := server.request) is not None:
            self.begin("calibration", request.round)
            faults = len(self.faults)
            asked = record_of(pack_request(server.plan, request), phase="reply", model=fingerprint(model), bins=0)
            records, cost = self.ask(grid, dict.fromkeys(nodes, asked), model, timeout)
            replies = self.read(server, records)
            if not any(reply.n for reply in replies.values()):
                reasons = "; ".join(str(fault["reason"]) for fault in self.faults[faults:]) or "none has samples"
                raise FedCalError(f"calibration round {request.round}: no node gives a usable reply ({reasons})")
            nodes = [node for node in nodes if node in replies]
            if server.drop(set(server.known) - {self.names[node] for node in nodes}):
                log(INFO, "FedCal: the fit begins again with the nodes that are left")
                after_round()
                continue
            self.receive(server, replies)
            self.end(nodes, cost)
            after_round()
        return nodes

    def measure(
        self, grid: Grid, server: Server, nodes: list[int], model: ArrayRecord, timeout: float, n_bins: int
    ) -> Measured:
        """Send the final scaler to nodes, and receive what they measure.

        Args:
            grid: of the run.
            server: has the scaler.
            nodes: those to ask.
            model: the frozen model.
            timeout: seconds that they have.
            n_bins: equal-width confidence bins.

        Returns:
            By node name, the model as it is ("uncal"), under the global scaler ("local") and under the node's personal
            one ("own").
        """
        self.begin("evaluation", server.ledger.rounds)
        data, k = pack_scaler(server.plan, server.scaler, server.privacy), server.plan.n_classes
        asked = record_of(data, phase="measure", model=fingerprint(model), bins=n_bins)
        records, cost = self.ask(grid, dict.fromkeys(nodes, asked), model, timeout)
        if server.privacy:
            return self._measured_privately(server, server.privacy, records, cost, n_bins)
        found = self.read_each(records, lambda name, record: unpack_measured(name, data_of(record), k, n_bins))
        for node, reason in far_losses({node: highest_loss(one) for node, one in found.items()}).items():
            del found[node]
            self.blame(node, reason)
        self.end(list(found), cost)
        if not found:
            return Measured({})
        # By name: nodes have other numbers in every federation, and the last bits of a sum depend on its order.
        in_order = sorted(found, key=self.names.__getitem__)
        total = add_up([found[node] for node in in_order])
        return total.select({view: view for view in VIEWS}, [self.names[node] for node in in_order])

    def _measured_privately(
        self, server: Server, privacy: Privacy, records: dict[int, Records], cost: Cost, n_bins: int
    ) -> Measured:
        """What nodes measured within the privacy budget, of all nodes together: no single node's is told."""
        query = Measure(server.plan.n_classes, 1.0, len(VIEWS), n_bins)
        request = Request(server.plan.federation, MEASURED, query, privacy)

        def reply_of(name: str, record: Any) -> Reply:
            _, reply = unpack_reply(data_of(record))
            like = {VALUES: np.zeros(query.size)}
            check_reply(name, reply, request, server.plan, None, like, True)
            return reply

        found = self.read_each(records, reply_of)
        self.end(list(found), cost)
        if not found:
            return Measured({})
        total = sum_of(reply.content[VALUES] for reply in found.values())
        return self.noised_measures(server, privacy, query, total, len(found))

    def noised_measures(
        self, server: Server, privacy: Privacy, query: Measure, total: np.ndarray, nodes: int
    ) -> Measured:
        """Return what nodes measured within the privacy budget, from the total of their replies.

        Every view has its own noise. Where the fit has left probabilities as they are, the global scaler's view is that of
        the model as it is: two draws of noise would show a difference that is none.
        """
        noised = privacy.at_server(query, {VALUES: total}, nodes)
        server.ledger.spent += privacy.cost(query)
        noise = query.most * float(noised["noise"])  # on a summed NLL, which travels in units of the most that counts
        tallies = [noised_tally(losses, table, query.k, noise) for losses, table in query.read(noised[VALUES])]
        by_view = dict(zip(VIEWS, tallies, strict=True))
        if "fallback" in server.fit.params:
            by_view["local"] = by_view["uncal"]
        self.nll_noise = noise / max(by_view["uncal"].n, 1)
        return Measured({view: {ALL_NODES: tally} for view, tally in by_view.items()})

    def evaluate(
        self,
        grid: Grid,
        server: Server,
        nodes: list[int],
        model: ArrayRecord,
        timeout: float,
        n_bins: int,
        thresholds: Sequence[float],
    ) -> Evaluation | None:
        """Evaluate the final scaler at the nodes that share their scores.

        Args:
            grid: of the run.
            server: has the scaler.
            nodes: those to ask.
            model: the frozen model.
            timeout: seconds that they have.
            n_bins: as in `measure`: a node tells of one scaler, in one number of bins.
            thresholds: probabilities at which decisions are made.

        Returns:
            The evaluation; None where no node shares, or none has samples.
        """
        from fedcal.assess.message import evaluate_messages
        from fedcal.transport.flower.evaluation import asked_of, pack_evaluation, read_node

        self.begin("evaluation", server.ledger.rounds)
        data, asked = pack_evaluation(server.plan, server.scaler, thresholds), asked_of(server.plan, thresholds)
        request = record_of(data, phase="evaluate", model=fingerprint(model), bins=n_bins)
        records, cost = self.ask(grid, dict.fromkeys(nodes, request), model, timeout)
        found = self.read_each(records, lambda name, record: read_node(name, data_of(record), asked))
        losses = {node: one.sums.total.samples[2] / max(one.sums.total.n, 1) for node, one in found.items()}
        for node, reason in far_losses(losses).items():
            del found[node]
            self.blame(node, reason)
        self.end(list(found), cost)
        held = [one for one in found.values() if one.sums.total.n]
        return evaluate_messages(held) if held else None

    def ask(
        self, grid: Grid, requests: Mapping[int, ConfigRecord], model: ArrayRecord, timeout: float
    ) -> tuple[dict[int, Records], Cost]:
        """Send every node its request, and return the nodes' records in reply, and what that cost.

        With a request that is about the frozen model, a node gets it once; again if it lost its logits.
        """
        contents = {node: {REQUEST: record} for node, record in requests.items()}
        cost = {"up": 0, "down": 0, "model_down": 0}
        began = time.monotonic()

        def with_model(nodes: Iterable[int]) -> dict[int, Records]:
            return {node: contents[node] | {MODEL: model} for node in nodes}

        def send(contents: dict[int, Records]) -> dict[int, Records]:
            messages = [Message(RecordDict(dict(one)), node, MessageType.TRAIN) for node, one in contents.items()]
            cost["down"] += sum(size([one[REQUEST]]) for one in contents.values())
            cost["model_down"] += sum(size([one[MODEL]]) for one in contents.values() if MODEL in one)
            replies = ask(grid, messages, max(1.0, began + timeout - time.monotonic()))
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


def highest_loss(measured: Measured) -> float:
    """Return the highest mean loss that a node measures under any view."""
    tallies = [tally for by_client in measured.tallies.values() for tally in by_client.values()]
    return max((tally.nll / max(tally.n, 1) for tally in tallies), default=0.0)


def far_losses(losses: Mapping[int, float]) -> dict[int, str]:
    """Find nodes that measure losses far beyond the others', with the reason."""
    others = of_others({str(node): loss for node, loss in losses.items()}, max)
    return {
        node: f"it measures a loss of {loss:.3g} per sample, the others at most {others[str(node)]:.3g}"
        for node, loss in losses.items()
        if str(node) in others and loss > FAR * max(1.0, others[str(node)])
    }


def _lost_logits(records: Records) -> bool:
    reply = records.get(REPLY)
    return reply is not None and bool(reply.get("missing", False))
