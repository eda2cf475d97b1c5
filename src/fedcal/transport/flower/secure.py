"""The server's side of secure aggregation: calibrate and measure as `Rounds` does, from the totals of groups alone.

A node that falls away is not asked again, and the fit goes on with those that are left. It does not begin again, as it does
without secure aggregation: the first request would then be answered by the same nodes with and without that one, and the
difference would be its sums.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord

from fedcal.base.arrays import Params, sum_of
from fedcal.errors import FedCalError
from fedcal.exact.private_queries import Measure
from fedcal.exact.private_query import VALUES
from fedcal.measure.views import Measured, add_up
from fedcal.protocol import Reply, Request, Server
from fedcal.protocol.checks import check_bytes, check_reply
from fedcal.protocol.wire import pack_request, unpack_reply
from fedcal.secure import FEWEST_NODES, Group, Layout, Total, divide
from fedcal.transport.flower.measured import measured_arrays, measured_of
from fedcal.transport.flower.records import (
    MEASURED,
    PRIVATE_VIEWS,
    STAGES,
    VIEWS,
    Phase,
    data_of,
    pack_scaler,
    parts_of,
)
from fedcal.transport.flower.rounds import noised_measures
from fedcal.transport.flower.server import ALL_NODES, Cost, Frozen, Nodes


class SecureRounds:
    """Rounds on the frozen model under secure aggregation.

    Args:
        nodes: as the server knows them.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.groups: dict[str, Group] = {}
        self.rounding = 0.0  # the most by which a sum differed from the exact total, so far
        self._openly: dict[str, Reply] = {}  # by node: what it said of itself with its last vector

    def calibrate(self, frozen: Frozen, nodes: list[int], after_round: Callable[[], None]) -> list[int]:
        """Run calibration rounds until the server has its scaler; see `Rounds.calibrate`."""
        server = frozen.server
        groups = divide([str(node) for node in nodes])
        if server.privacy:  # before anything is asked: the server sees the total of every group
            server.privacy.check_shares(min(map(len, groups)))
        names = [f"group {i}" for i in range(1, len(groups) + 1)] if len(groups) > 1 else [ALL_NODES]
        self.groups = {name: Group(group) for name, group in zip(names, groups, strict=True)}
        server.known.clear()  # what groups of an earlier start have declared
        summed: dict[str, tuple[str, ...]] = {}  # by group, the nodes of its last total
        while (request := server.request) is not None:
            self.nodes.begin("calibration", request.round)
            asked, like = self._members(), server.example
            totals, cost = self._totals(frozen, "reply", pack_request(server.plan, request), like)
            _check_shares(server, totals)
            replies = {name: self._reply(total, like, request.digest) for name, total in totals.items()}
            if not any(reply.n for reply in replies.values()):
                raise FedCalError(f"calibration round {request.round}: no node has samples")
            for name, total in totals.items():
                if summed.get(name) != total.nodes:
                    server.known.pop(name, None)  # its samples are others now
            summed = {name: total.nodes for name, total in totals.items()}
            server.drop(self._name(node) for node in sorted(asked - self._members()))
            server.receive(replies)
            self.nodes.end([int(node) for nodes in summed.values() for node in nodes], cost)
            after_round()
        return sorted(map(int, self._members()))

    def measure(self, frozen: Frozen, nodes: list[int], n_bins: int) -> Measured:
        """Send the final scaler to nodes, and receive the total of what they measure; see `Rounds.measure`."""
        server, k = frozen.server, frozen.server.plan.n_classes
        self.nodes.begin("evaluation", server.ledger.rounds)
        one = np.eye(1, k)
        like = measured_arrays("", Measured.of("", dict.fromkeys(VIEWS, one), np.zeros(1, np.int64), n_bins))
        query = Measure(k, 1.0, len(PRIVATE_VIEWS), n_bins)
        if server.privacy:
            like = {VALUES: np.zeros(query.size)}
        data = pack_scaler(server.plan, server.scaler, server.privacy)
        totals, cost = self._totals(frozen, "measure", data, like, n_bins)
        _check_shares(server, totals)
        took_part = [int(node) for total in totals.values() for node in total.nodes]
        self.nodes.end(took_part, cost)
        if server.privacy:
            request = Request(server.plan.federation, MEASURED, query, server.privacy)
            for name, total in totals.items():
                check_reply(name, self._reply(total, like, request.digest), request, server.plan, None, like, True)
            whole = sum_of(_arrays(total, like)[VALUES] for total in totals.values())
            return noised_measures(self.nodes, server, server.privacy, query, whole, len(took_part))
        return add_up(measured_of(ALL_NODES, _arrays(total, like), k, n_bins) for total in totals.values())

    def report(self) -> dict[str, Any]:
        """Return what results say of it."""
        return {
            "groups": [len(group.nodes) for group in self.groups.values()],
            "aggregations": sum(group.aggregations for group in self.groups.values()),
            "rounding": self.rounding,
        }

    # --- one total ---------------------------------------------------------------------------------------------------------

    def _totals(
        self, frozen: Frozen, phase: Phase, data: bytes, like: Params, bins: int = 0
    ) -> tuple[dict[str, Total], Cost]:
        """The total of every group, and what that cost."""
        layout, cost = Layout({name: tuple(t.shape) for name, t in like.items()}), Counter[str]()
        faults = len(self.nodes.faults)
        for group in self.groups.values():
            group.begin(layout)
        while waiting := self._waiting():
            requests: dict[int, ConfigRecord] = {}
            for group in waiting:
                sent = data if group.asks_for_vectors() else b""
                for node, parts in self._ask(group, faults).items():
                    requests[int(node)] = frozen.request(phase, sent, bins, **{STAGES: json.dumps(parts)})
            records, spent = self.nodes.ask(frozen, requests)
            cost.update(spent)
            replies = self.nodes.read_each(records, self._read)
            for group in waiting:
                mine = {node: replies[int(node)] for node in group.nodes if int(node) in replies}
                for node, reason in group.receive(mine).items():
                    self.nodes.blame(int(node), reason)
        totals = {name: group.total for name, group in self.groups.items() if group.total is not None}
        self.rounding = max([self.rounding, *(total.rounding for total in totals.values())])
        return totals, dict(cost)

    def _ask(self, group: Group, faults: int) -> dict[str, list[Any]]:
        """What a group's nodes are asked; where too few are left, the error gives up to three reasons of this round."""
        try:
            return group.ask()
        except FedCalError as error:
            reasons = sorted({str(fault["reason"]) for fault in self.nodes.faults[faults:]})
            raise FedCalError(f"{error} ({'; '.join(reasons[:3])})" if reasons else str(error)) from None

    def _waiting(self) -> list[Group]:
        """The groups whose total is still to come; those that have become too small are left out, if others are there."""
        small = [name for name, group in self.groups.items() if len(group.nodes) < FEWEST_NODES]
        for name in small if len(small) < len(self.groups) else []:
            for node in self.groups.pop(name).nodes:
                self.nodes.blame(int(node), "fewer than three nodes of its group are left")
        return [group for group in self.groups.values() if group.total is None]

    def _read(self, name: str, record: Any) -> tuple[list[Any], bytes]:
        if STAGES not in record:
            raise FedCalError(f"{name} does not take part in secure aggregation: use one version of fedcal")
        parts = parts_of(record[STAGES])
        if isinstance(openly := record.get("openly"), bytes) and openly:
            check_bytes(name, len(openly), {})
            self._openly[name] = unpack_reply(openly)[1]
        return parts, data_of(record)

    def _reply(self, total: Total, like: Params, digest: str) -> Reply:
        """A group's total as a reply. What it says of privacy is what the node says that has spent most."""
        said = [self._openly[name] for name in map(self._name, total.nodes) if name in self._openly]
        private = max((one.privacy for one in said if one.privacy), key=_spent, default={})
        probs = bool(said) and all(one.probs for one in said)
        content = _arrays(total, like) if total.n else {}
        return Reply(content, total.n, digest, privacy=private, probs=probs, clients=len(total.nodes))

    def _members(self) -> set[str]:
        return {node for group in self.groups.values() for node in group.nodes}

    def _name(self, node: str) -> str:
        return self.nodes.names.get(int(node), f"node {node}")


def _check_shares(server: Server, totals: dict[str, Total]) -> None:
    """Refuse totals in which too few nodes' noise is."""
    if privacy := server.privacy:
        privacy.check_shares(min(len(total.nodes) for total in totals.values()))


def _spent(told: dict[str, Any]) -> float:
    epsilon = told.get("epsilon")
    return float(epsilon) if isinstance(epsilon, int | float) else 0.0


def _arrays(total: Total, like: Params) -> Params:
    """The total as arrays of the types that a single node's reply has."""
    return {
        name: (total.values[name] if value.dtype.kind == "f" else np.rint(total.values[name])).astype(value.dtype)
        for name, value in like.items()
    }
