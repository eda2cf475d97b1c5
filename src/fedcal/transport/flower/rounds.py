"""Rounds on the frozen model: carry a `protocol.Server`'s requests to nodes and their replies back; measure; evaluate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import INFO
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.common import log

from fedcal.base.arrays import sum_of
from fedcal.errors import FedCalError
from fedcal.exact.private_queries import Measure
from fedcal.exact.private_query import VALUES
from fedcal.measure.noised import noised_tally
from fedcal.measure.views import Measured, add_up
from fedcal.protocol import Privacy, Reply, Request, Server
from fedcal.protocol.checks import FAR, check_reply, of_others
from fedcal.protocol.wire import pack_request, unpack, unpack_reply
from fedcal.transport.flower.measured import measured_of
from fedcal.transport.flower.records import (
    MEASURED,
    PRIVATE_VIEWS,
    VIEWS,
    Records,
    data_of,
    pack_scaler,
)
from fedcal.transport.flower.server import ALL_NODES, Cost, Frozen, Nodes

if TYPE_CHECKING:
    from fedcal.assess.evaluation import Evaluation


class Rounds:
    """Rounds on the frozen model, in which the server sees every node's reply.

    Args:
        nodes: as the server knows them.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes

    def calibrate(self, frozen: Frozen, nodes: list[int], after_round: Callable[[], None]) -> list[int]:
        """Run calibration rounds until the server has its scaler.

        A node that gives no usable reply is not asked again, and the server goes on without it (`Server.drop`).

        Args:
            frozen: the model, and the server that asks and receives.
            nodes: those to ask.
            after_round: called after every round, and where the fit begins again.

        Returns:
            The nodes that took part to the end.

        Raises:
            FedCalError: where no node gives a usable reply.
        """
        server = frozen.server
        while (request := server.request) is not None:
            self.nodes.begin("calibration", request.round)
            faults = len(self.nodes.faults)
            asked = frozen.request("reply", pack_request(server.plan, request))
            records, cost = self.nodes.ask(frozen, dict.fromkeys(nodes, asked))
            replies = self.nodes.read(server, records)
            if not any(reply.n for reply in replies.values()):
                reasons = "; ".join(str(fault["reason"]) for fault in self.nodes.faults[faults:]) or "none has samples"
                raise FedCalError(f"calibration round {request.round}: no node gives a usable reply ({reasons})")
            nodes = [node for node in nodes if node in replies]
            if server.drop(set(server.known) - {self.nodes.names[node] for node in nodes}):
                log(INFO, "FedCal: the fit starts again with the remaining nodes")
                after_round()
                continue
            self.nodes.receive(server, replies)
            self.nodes.end(nodes, cost)
            after_round()
        return nodes

    def measure(self, frozen: Frozen, nodes: list[int], n_bins: int) -> Measured:
        """Send the final scaler to nodes, and receive what they measure.

        Args:
            frozen: the model, and the server that has the scaler.
            nodes: those to ask.
            n_bins: equal-width confidence bins.

        Returns:
            By node name, the model as it is ("uncal"), under the global scaler ("local") and under the node's personal
            one ("own", not under privacy).
        """
        server = frozen.server
        self.nodes.begin("evaluation", server.ledger.rounds)
        data, k = pack_scaler(server.plan, server.scaler, server.privacy), server.plan.n_classes
        records, cost = self.nodes.ask(frozen, dict.fromkeys(nodes, frozen.request("measure", data, n_bins)))
        if server.privacy:
            return self._measured_privately(server, server.privacy, records, cost, n_bins)
        found = self.nodes.read_each(
            records, lambda name, record: measured_of(name, unpack(data_of(record))[0], k, n_bins)
        )
        self._end(found, {node: highest_loss(one) for node, one in found.items()}, cost)
        if not found:
            return Measured({})
        # By name: nodes have other numbers in every federation, and the last bits of a sum depend on its order.
        in_order = sorted(found, key=self.nodes.names.__getitem__)
        total = add_up([found[node] for node in in_order])
        return total.select({view: view for view in VIEWS}, [self.nodes.names[node] for node in in_order])

    def _measured_privately(
        self, server: Server, privacy: Privacy, records: dict[int, Records], cost: Cost, n_bins: int
    ) -> Measured:
        """What nodes measured within the privacy budget, of all nodes together: no single node's metrics are shown."""
        query = Measure(server.plan.n_classes, 1.0, len(PRIVATE_VIEWS), n_bins)
        request = Request(server.plan.federation, MEASURED, query, privacy)

        def reply_of(name: str, record: Any) -> Reply:
            _, reply = unpack_reply(data_of(record))
            like = {VALUES: np.zeros(query.size)}
            check_reply(name, reply, request, server.plan, None, like, True)
            return reply

        found = self.nodes.read_each(records, reply_of)
        self.nodes.end(list(found), cost)
        if not found:
            return Measured({})
        total = sum_of(reply.content[VALUES] for reply in found.values())
        return noised_measures(self.nodes, server, privacy, query, total, len(found))

    def evaluate(self, frozen: Frozen, nodes: list[int], n_bins: int, thresholds: Sequence[float]) -> Evaluation | None:
        """Evaluate the final scaler at the nodes that share their scores.

        Args:
            frozen: the model, and the server that has the scaler.
            nodes: those to ask.
            n_bins: as in `measure`: a node measures one scaler, with one number of bins.
            thresholds: probabilities at which decisions are made.

        Returns:
            The evaluation; None where no node shares, or none has samples.
        """
        from fedcal.assess.message import evaluate_messages
        from fedcal.transport.flower.evaluation import asked_of, pack_evaluation, read_node

        server = frozen.server
        self.nodes.begin("evaluation", server.ledger.rounds)
        data, asked = pack_evaluation(server.plan, server.scaler, thresholds), asked_of(server.plan, thresholds)
        records, cost = self.nodes.ask(frozen, dict.fromkeys(nodes, frozen.request("evaluate", data, n_bins)))
        found = self.nodes.read_each(records, lambda name, record: read_node(name, data_of(record), asked))
        losses = {node: one.sums.total.samples[2] / max(one.sums.total.n, 1) for node, one in found.items()}
        self._end(found, losses, cost)
        held = [one for one in found.values() if one.sums.total.n]
        return evaluate_messages(held) if held else None

    def _end(self, found: dict[int, Any], losses: Mapping[int, float], cost: Cost) -> None:
        """End a round that measures, without the nodes whose losses are far beyond the others'."""
        for node, reason in far_losses(losses).items():
            del found[node]
            self.nodes.blame(node, reason)
        self.nodes.end(list(found), cost)


def noised_measures(
    nodes: Nodes, server: Server, privacy: Privacy, query: Measure, total: np.ndarray, replied: int
) -> Measured:
    """Return what nodes measured within the privacy budget, from the total of their replies.

    Every view has its own noise. Where the fit has left probabilities as they are, the global scaler's view is that of
    the model as it is: two draws of noise would show a difference that is none.
    """
    noised = privacy.at_server(query, {VALUES: total}, replied)
    server.ledger.spent += privacy.cost(query)
    noise = query.most * float(noised["noise"])  # on a summed NLL, which travels in units of the most that counts
    tallies = [noised_tally(losses, table, query.k, noise) for losses, table in query.read(noised[VALUES])]
    by_view = dict(zip(PRIVATE_VIEWS, tallies, strict=True))
    if "fallback" in server.fit.params:
        by_view["local"] = by_view["uncal"]
    nodes.nll_noise = noise / max(by_view["uncal"].n, 1)
    return Measured({view: {ALL_NODES: tally} for view, tally in by_view.items()})


def highest_loss(measured: Measured) -> float:
    """Return the highest mean loss that a node measures under any view."""
    tallies = [tally for by_client in measured.tallies.values() for tally in by_client.values()]
    return max((tally.nll / max(tally.n, 1) for tally in tallies), default=0.0)


def far_losses(losses: Mapping[int, float]) -> dict[int, str]:
    """Find nodes that measure losses far beyond the others', with the reason."""
    return {
        node: f"it measures a loss of {losses[node]:.3g} per sample, the others at most {others:.3g}"
        for node, others in of_others(losses, np.max).items()
        if losses[node] > FAR * max(1.0, others)
    }
