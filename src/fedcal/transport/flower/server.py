"""The server's half over nodes: questions out, answers checked, and the next scaler made of what is left.

One object for both phases: within training rounds (Algorithm 1) its records ride along with the strategy's messages; on the
frozen model `fit` drives the rounds itself.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.common import log
from flwr.serverapp import Grid

from fedcal.base.checks import check_whole
from fedcal.base.logits import Params
from fedcal.base.store import nest
from fedcal.errors import FedCalError
from fedcal.measure.views import Measured, add_up
from fedcal.methods import Update
from fedcal.methods.method import Additive, Averaged, n_bytes, total
from fedcal.protocol.checks import Expected, declared_squares, digest
from fedcal.protocol.privacy import Privacy, stopped
from fedcal.protocol.rounds import advance, begin, check_method, plain
from fedcal.transport.files.server import stand_in
from fedcal.transport.flower.checks import check_said, local_privacy, read_answer, read_measured, too_far
from fedcal.transport.flower.grid import ask
from fedcal.transport.flower.records import (
    ABOUT,
    ASKED,
    MODEL,
    QUESTION,
    SAID,
    VIEWS,
    config_of,
    from_record,
    pack,
    size,
    take_out,
)
from fedcal.transport.flower.robust import Robust, robust_mean

RESTARTS = 3  # of an exact fit whose nodes fall away: as often it begins anew with those that are left


@dataclass
class Calibrator:
    """A method at work over nodes."""

    name: str  # of the method
    options: dict[str, Any]
    n_classes: int
    seed: int = 0
    robust: Robust | None = None
    privacy: Privacy | None = None
    n_bins: int = 15
    federation: str = field(default_factory=lambda: uuid.uuid4().hex)
    names: dict[int, str] = field(default_factory=dict)  # nodes by what they call themselves
    n: dict[str, int] = field(default_factory=dict)  # samples of each, of the fit that is on
    squares: dict[str, float] = field(default_factory=dict)  # and what their squared logits add up to
    asked: list[Params] = field(default_factory=list)  # questions of an exact fit so far
    faults: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)  # what a report says of each
    local: dict[str, dict[str, Any]] = field(default_factory=dict)  # what nodes say of their own privacy
    heard: set[int] = field(default_factory=set)  # nodes whose word of the last round counts
    fitted: int = 0  # rounds on the frozen model so far
    releases: int = 0  # sums that a program has seen, over all beginnings: what a privacy budget counts
    restarts: int = 0

    def __post_init__(self) -> None:
        self.method = check_method(self.name, self.options)
        check_whole(self.n_classes, "n_classes", low=2)
        if self.method.needs_pooled_data:
            raise FedCalError(
                f"{self.name} sends every logit and label to the server: choose fed-ts, which is its equal"
            )
        if self.robust not in (None, "median", "trimmed"):
            raise FedCalError(f"robust must be median or trimmed, not {self.robust!r}")
        if self.robust and not isinstance(self.method, Averaged):
            raise FedCalError(
                f"{self.name} adds sums up, of which there is no median: robust is for fedcal and its kin"
            )
        if self.privacy:
            self.privacy.check(self.method)
        self.state = begin(self.method, self.n_classes, self.seed, self.name)
        self._mark, self._seen = "", set[int]()  # the frozen model's fingerprint, and the nodes that have seen it

    @property
    def question(self) -> Params:
        return self.state.question if isinstance(self.method, Additive) else self.state.params

    @property
    def done(self) -> bool:
        return self.state.done

    # --- a round ---------------------------------------------------------------------------------------------------------

    def records(self, phase: str, model: str = "") -> dict[str, Any]:
        """What goes out, whichever way it travels."""
        sent = self.state.params if phase == "finish" else self.question
        about = {
            "phase": phase, "federation": self.federation, "round": self.state.rounds + 1, "method": self.name,
            "options": asdict(self.method), "n_classes": self.n_classes, "seed": self.seed, "model": model,
            "bins": self.n_bins,
        }  # fmt: skip
        if self.privacy:
            about |= {"clip": self.privacy.clip, "unit": self.privacy.unit}
        return {ABOUT: config_of(about)} | ({} if phase == "meet" else {QUESTION: pack(sent)})

    def meet(self, replies: dict[int, dict[str, Any]]) -> dict[str, Update]:
        """The names of nodes that only trained."""
        found: dict[str, Update] = {}
        self.heard = set()
        for node, records in sorted(replies.items()):
            try:
                found[self._name(node, records, found)] = Update({}, 0)
                self.heard.add(node)
            except FedCalError as error:
                self.blame(node, str(error))
        return found

    def _name(self, node: int, records: dict[str, Any], taken: dict[str, Update]) -> str:
        site = check_said(node, records.get(SAID))["site"]
        if site in taken or self.names.get(node, site) != site:
            raise FedCalError(f"node {node} calls itself {site}, which is another node's name")
        self.names[node] = site
        return site

    def read(self, replies: dict[int, dict[str, Any]]) -> dict[str, Update]:
        """The usable answers by name, sorted; every other one is refused, and said to be."""
        content = stand_in(self.method, self.n_classes, [*self.asked, self.question])
        asked, found = digest(self.question), dict[str, Update]()
        self.heard = set()
        for node, records in sorted(replies.items()):
            try:
                site = self._name(node, records, found)
                expected = Expected(
                    self.federation, self.state.rounds + 1, asked, self.n_classes, [site], self.n, self.squares,
                    content, self.question, private=self.privacy is not None,
                )  # fmt: skip
                update, told = read_answer(node, records, expected)[1], local_privacy(node, records[SAID])
                found[site] = update
                self.heard.add(node)
                self.local |= {site: told} if told else {}
            except FedCalError as error:
                self.blame(node, str(error))
        for name, reason in too_far(found, self.method, self.squares).items():
            del found[name]
            (node,) = (node for node in self.heard if self.names[node] == name)
            self.heard.remove(node)
            self.blame(node, reason)
        return dict(sorted(found.items()))

    def conclude(self, updates: dict[str, Update]) -> Params:
        """The server's half of the method, and the round's costs. Returns what it comes to: the sums, or new params."""
        state, method = self.state, self.method
        spoke = {name: update for name, update in updates.items() if update.content}
        sent, up = self.question, max((n_bytes(update.content) for update in spoke.values()), default=0)
        state.rounds += 1
        if not spoke:
            return {}
        state.bytes_up, state.bytes_down = max(state.bytes_up, up), max(state.bytes_down, n_bytes(sent))
        state.total_up, state.total_down = state.total_up + up, state.total_down + n_bytes(sent)
        for update in updates.values():
            state.notes.update(update.notes)
            state.updates += 1
        if isinstance(method, Averaged):
            words = spoke
            if method.average == "latest":
                state.latest.update(spoke)
                words = dict(sorted(state.latest.items()))
            heard = list(words.values())
            state.params = robust_mean(heard, self.robust) if self.robust else method.server(state.params, heard)
            return state.params
        sums = total(list(spoke.values()))
        if self.privacy:
            sums = self.privacy.noised(sums)
        self.take(sums)
        return sums

    def take(self, sums: Params) -> None:
        """An exact fit's sums: the next question, or the scaler."""
        self.asked.append(self.state.question)
        self.releases += 1
        try:
            advance(self.state, sums)
        except (RuntimeError, ArithmeticError, KeyError, IndexError) as error:
            raise FedCalError(
                f"round {self.state.rounds}: the sums lead nowhere ({str(error).splitlines()[0]})"
            ) from None
        over = self.privacy is not None and self.releases >= self.privacy.rounds
        if self.local:  # one node's word must not end everybody's fit
            over |= statistics.median(told["left"] for told in self.local.values()) <= 0
        if over and not self.done:
            self.state.params, self.state.program = plain(stopped(self.method, self.state.question)), None

    def blame(self, node: int, reason: str) -> None:
        """Log what a node did, with the round that goes on without it."""
        who = self.names.get(node, f"node {node}")
        self.faults.append({"round": self.state.rounds + 1, "node": str(node), "name": who, "reason": reason})
        log(WARNING, "FedCal: round %d goes on without %s: %s", self.state.rounds + 1, who, reason)

    # --- rounds on the frozen model --------------------------------------------------------------------------------------

    def fit(
        self, grid: Grid, nodes: list[int], model: ArrayRecord, timeout: float, after: Callable[[Params], None]
    ) -> list[int]:
        """Rounds of these nodes until the scaler is there; returns the nodes that were with it to the end.

        A node that gives no usable answer is not asked again. An exact fit then begins anew with the others, so that it is
        exact for those who took part; not where that would cost privacy twice. `after` gets each round's sums, or the new
        params.
        """
        while not self.done and self.fitted < self.method.rounds:
            began, faults = time.perf_counter(), len(self.faults)
            replies, cost = self._ask(grid, nodes, "answer", model, timeout)
            updates = self.read(replies)
            left = [node for node in nodes if node in self.heard]
            if not any(update.n for update in updates.values()):
                reasons = "; ".join(str(fault["reason"]) for fault in self.faults[faults:]) or "none has samples"
                raise FedCalError(f"calibration round {self.state.rounds + 1}: no node's answer is usable ({reasons})")
            fell_away, nodes = len(left) < len(nodes), left
            if fell_away and self.asked and self.restarts < RESTARTS and not (self.privacy or self.local):
                self._begin_again()
                continue
            self.n = {name: update.n for name, update in updates.items() if update.n}
            if not (self.privacy or self.local):
                self.squares = declared_squares(self.squares, updates)
            outcome = self.conclude(updates)
            self.fitted += 1
            self.note("calibration", updates, cost, began)
            after(outcome)
        return nodes

    def _begin_again(self) -> None:
        log(INFO, "FedCal: the fit begins anew with the nodes that are left")
        fresh, old = begin(self.method, self.n_classes, self.seed, self.name), self.state
        fresh.rounds, fresh.total_up, fresh.total_down = old.rounds + 1, old.total_up, old.total_down
        self.state, self.asked, self.n, self.squares = fresh, [], {}, {}
        self.fitted, self.restarts = 0, self.restarts + 1

    def measure(self, grid: Grid, nodes: list[int], model: ArrayRecord, timeout: float) -> Measured:
        """Each node's samples under no scaler (`uncal`), the global one (`local`) and its own (`own`), by node name."""
        began = time.perf_counter()
        replies, cost = self._ask(grid, nodes, "finish", model, timeout)
        found: dict[str, Measured] = {}
        for node, records in sorted(replies.items()):
            try:
                name = self._name(node, records, dict.fromkeys(found, Update({}, 0)))
                found[name] = read_measured(name, records, self.n_classes, self.n_bins)
            except FedCalError as error:
                self.blame(node, str(error))
        self.note("evaluation", dict.fromkeys(found, Update({}, 0)), cost, began)
        return add_up(found.values()).select({view: view for view in VIEWS}, sorted(found)) if found else Measured({})

    def _ask(
        self, grid: Grid, nodes: list[int], phase: str, model: ArrayRecord, timeout: float
    ) -> tuple[dict[int, dict[str, Any]], dict[str, int]]:
        """Every node's records in reply. A node gets the model once; one that lost it, or its state, gets both again."""
        if not self._mark:
            self._mark = digest(from_record(model))
        content = self.records(phase, self._mark)
        whole = content | {MODEL: model}
        cost = {"up": 0, "down": 0, "model_down": 0}
        until = time.monotonic() + timeout

        def send(asked: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
            messages = [Message(RecordDict(dict(c)), node, MessageType.TRAIN) for node, c in asked.items()]
            cost["model_down"] += sum(size([c[MODEL]]) for c in asked.values() if MODEL in c)
            cost["down"] += sum(size([r for key, r in c.items() if key != MODEL]) for c in asked.values())
            found = {}
            for reply in ask(grid, messages, max(1.0, until - time.monotonic())):
                node = reply.metadata.src_node_id
                if reply.has_error():
                    self.blame(node, f"error: {reply.error.reason}")
                else:
                    found[node] = take_out(reply.content)
                    cost["up"] += size(found[node].values())
            for node in asked.keys() - found.keys() - {int(f["node"]) for f in self.faults[faults:]}:
                self.blame(node, f"no reply within {timeout:.0f} s")
            return found

        faults = len(self.faults)
        replies = send({node: content if node in self._seen else whole for node in nodes})
        lost = [node for node, records in replies.items() if (records.get(SAID) or {}).get("missing")]
        if lost:
            history = {k: v for i, q in enumerate(self.asked) for k, v in nest(f"{i:04d}", q).items()}
            replies = {node: r for node, r in replies.items() if node not in lost}
            replies |= send(dict.fromkeys(lost, whole | {ASKED: pack(history)}))
        self._seen.update(replies)
        return replies, cost

    def note(self, phase: str, updates: dict[str, Update], cost: dict[str, int], began: float) -> None:
        self.rounds.append(
            {"phase": phase, "round": self.state.rounds, "took_part": sorted(updates), "bytes": cost,
             "seconds": time.perf_counter() - began}
        )  # fmt: skip
