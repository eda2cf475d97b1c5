"""A node that handles one message: it trains, replies to a request, measures, or evaluates.

A node keeps the state of its `protocol.Client` and the frozen model's logits in Flower's `context.state`, which outlives
the ClientApp's process. With `fedcal-state = "FOLDER"` in the node's config they are also written there, and outlive the
SuperNode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from fedcal.base.arrays import Params
from fedcal.base.lock import locked
from fedcal.base.store import make_folder, nest, read_bytes, unnest, write_bytes
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError
from fedcal.exact.prepared import Prepared
from fedcal.exact.private_queries import Measure
from fedcal.exact.private_query import VALUES
from fedcal.protocol import Client, Plan, Policy, Privacy, Reply, Request, Scaler
from fedcal.protocol.checks import check_n_classes, example_reply
from fedcal.protocol.valid import check_client_state
from fedcal.protocol.wire import pack, pack_reply, unpack, unpack_request
from fedcal.transport.flower.records import (
    DATA,
    MEASURED,
    MODEL,
    PRIVATE_VIEWS,
    REPLY,
    REQUEST,
    STAGES,
    VIEWS,
    Records,
    data_of,
    fingerprint,
    record_of,
    unpack_scaler,
)
from fedcal.transport.flower.samples import Logits
from fedcal.transport.flower.secure_node import Sums, check_large_enough, reply_to_stages

if TYPE_CHECKING:
    from fedcal.data.samples import Samples
    from fedcal.measure.views import Measured

ClientAppCallable = Callable[[Message, Context], Message]  # as in Flower's typing module, which moved
STATE = "fedcal.state"  # in the node's context
PATIENCE = 60.0  # seconds that a message waits for one of another run: less than a server waits for a reply


def personal_scaler(context: Context) -> Params:
    """Return a node's personal scaler, for use in its app: `method.apply_personal(params, personal, logits)`.

    Args:
        context: the node's, after the last round.

    Returns:
        Its parameters; empty if the node uses the global scaler.
    """
    kept = context.state.config_records.get(STATE)
    return unnest("personal", unpack(data_of(kept))[0]) if kept is not None else {}


def name_of(context: Context) -> str:
    """Return the node's name in reports: its config's `name`, else its partition, else its number."""
    config = context.node_config
    if "name" in config:
        return str(config["name"])
    return f"client-{int(config['partition-id']):03d}" if "partition-id" in config else str(context.node_id)


def state_path(context: Context) -> Path | None:
    """Return the file of what a node keeps, if its config names a folder for it."""
    folder = context.node_config.get("fedcal-state")
    return Path(str(folder)) / f"{name_of(context)}.safetensors" if folder else None


def one_message_at_a_time(context: Context) -> AbstractContextManager[None]:
    """Let a message wait until this node has handled another one: two runs at once would spend one privacy budget twice."""
    if (path := state_path(context)) is None:
        return nullcontext()
    with suppress(OSError):  # a folder that cannot be made cannot be locked either, which is said
        make_folder(path.parent, private=True)
    return locked(path.with_suffix(".busy"), "a message of another run", PATIENCE)


class Node:
    """A node that handles one message."""

    def __init__(self, context: Context, records: Records, logits: Logits, policy: Policy, probs: bool) -> None:
        self.context, self.logits, self.policy, self.probs = context, logits, policy, probs
        self.name, self.model = name_of(context), records.get(MODEL)
        self.about: dict[str, Any] = dict(records[REQUEST])
        self.phase, self.data = self.about["phase"], data_of(records[REQUEST])
        self.kept, self.kept_of = self._recall()
        self.groups: Mapping[str, Any] = {}  # of the test samples, for an evaluation

    def train(self, message: Message, call_next: ClientAppCallable) -> Message:
        """Train as the app does; reply to the request of an interleaved method too (Algorithm 1, lines 12–21)."""
        if self.phase == "meet":
            reply = call_next(message, self.context)
            if not reply.has_error():
                reply.content[REPLY] = record_of(b"", client=self.name)
            return reply
        plan, request = unpack_request(self.data)
        received = next(iter(message.content.array_records.values()))
        before = self._samples(plan, received, plan.method.fit_on) if plan.method.logits_of == "received" else None
        reply = call_next(message, self.context)
        if reply.has_error():
            return reply
        trained = next(iter(reply.content.array_records.values()))
        reply.content[REPLY] = self._reply(plan, request, before or self._samples(plan, trained, plan.method.fit_on))
        return reply

    def reply(self) -> ConfigRecord:
        """Reply about the frozen model: to a request, or after the last one with what measures the outcome."""
        if self.data and self.model is None and self.kept_of.get("model") != self.about["model"]:
            return record_of(b"", client=self.name, missing=True)
        if self.phase == "evaluate":
            return self._evaluate()
        if STAGES in self.about:
            sums = self._measured_sums if self.phase == "measure" else self._reply_sums
            # Without so many nodes in the total, the shares of noise would add up to too little.
            shares = self.policy.privacy.shares if self.policy.privacy else 0
            stages, masked, openly = reply_to_stages(self.context, str(self.about[STAGES]), sums, shares)
            return record_of(masked, client=self.name, stages=stages, openly=openly)
        if self.phase == "measure":
            from fedcal.transport.flower.measured import measured_arrays

            measured = self._measure()
            if isinstance(measured, Reply):
                return record_of(pack_reply(measured, self.name), client=self.name)
            return record_of(pack(measured_arrays(self.name, measured), {}), client=self.name)
        plan, request = unpack_request(self.data)
        return self._reply(plan, request, self._frozen(plan))

    # --- what secure aggregation adds up ---------------------------------------------------------------------------------

    def _reply_sums(self) -> Sums:
        """The reply to the request; what is no sum of samples is said openly."""
        plan, request = unpack_request(self.data)
        samples = self._frozen(plan)
        reply = self._reply_of(self._client(plan, samples), request)
        # Only now that the model is kept: else the server could try others, and see which of them are refused.
        if reply.n and not (self.policy.privacy or request.privacy):  # under privacy all numbers are of one size
            check_large_enough(samples[0])
        openly = self._openly(reply)
        return Sums(example_reply(plan.method, plan.n_classes, request.query), reply.content, reply.n, openly)

    def _measured_sums(self) -> Sums:
        from fedcal.transport.flower.measured import measured_arrays

        measured = self._measure()
        if isinstance(measured, Reply):
            like = {VALUES: np.zeros_like(measured.content[VALUES])}
            return Sums(like, measured.content, 1, self._openly(measured))
        sums = measured_arrays(self.name, measured)
        return Sums(sums, sums, measured.pooled(VIEWS[0]).n)

    def _openly(self, reply: Reply) -> bytes:
        """What of a reply is no sum of samples."""
        return pack_reply(replace(reply, content={}, n=0, notes={}), self.name)

    def _reply(self, plan: Plan, request: Request, samples: Samples) -> ConfigRecord:
        data = pack_reply(self._reply_of(self._client(plan, samples), request), self.name)
        return record_of(data, client=self.name)

    def _reply_of(self, client: Client, request: Request) -> Reply:
        """The client's reply; what it keeps is kept, also that it has refused."""
        try:
            reply = client.reply(request)
        except FedCalError:
            if client.talk.refused:
                self._keep(client, unnest("personal", self.kept))
            raise
        self._keep(client)
        return reply

    @one_thread()
    def _measure(self) -> Measured | Reply:
        """Make the personal scaler, which stays here, and sums that measure the views; noised ones under privacy."""
        from fedcal.measure.views import Measured

        plan, scaler, asked = unpack_scaler(self.data)
        private = self.policy.privacy or asked
        client = self._measuring(plan, scaler, private is not None)
        personal = client.personalize(scaler)
        self._keep(client, personal)
        logits, labels = self.kept["test_logits"], self.kept["test_labels"]
        if not private and len(labels) < self.policy.min_count:  # it says that it has no samples
            logits, labels = logits[:0], labels[:0]
        applied = plan.method.logits(logits), plan.method.apply(scaler.params, logits)
        if private:
            return self._measure_privately(plan, (np.concatenate(applied, 1), labels), asked, personal)
        applied += (plan.method.apply_personal(scaler.params, personal, logits),)
        return Measured.of(self.name, dict(zip(VIEWS, applied, strict=True)), labels, int(self.about["bins"]))

    def _measure_privately(self, plan: Plan, views: Samples, asked: Privacy | None, personal: Params) -> Reply:
        """Measure within the privacy budget, once: the request is the same whatever the scaler is.

        It is the server's, with the privacy that was asked for; a node with a privacy of its own keeps to that.
        """
        query = Measure(plan.n_classes, 1.0, len(PRIVATE_VIEWS), int(self.about["bins"]))
        client = self._client(plan, views)
        reply = client.reply(Request(plan.federation, MEASURED, query, asked), check=False)  # it is this node's own
        self._keep(client, personal)
        return reply

    @one_thread()
    def _evaluate(self) -> ConfigRecord:
        """Sums of the test samples' scores under the global scaler: the one whose metrics this node sends."""
        from fedcal.transport.flower.evaluation import node_sums

        plan, scaler, _ = unpack_scaler(self.data)
        client = self._measuring(plan, scaler)
        self._keep(client, unnest("personal", self.kept))
        samples = plan.method.apply(scaler.params, self.kept["test_logits"]), self.kept["test_labels"]
        sums = node_sums(self.name, plan, self.data, samples, self.groups, self.policy.min_count)
        return record_of(sums, client=self.name)

    # --- samples -------------------------------------------------------------------------------------------------------

    def _frozen(self, plan: Plan) -> Samples:
        """The frozen model's logits, which are computed once: later requests come without the model."""
        if self.model is not None:
            mark, joined = fingerprint(self.model), self.kept_of.get("client", {}).get("talk", {}).get("federation")
            if mark != self.kept_of.get("model", mark) and joined == plan.federation:
                raise FedCalError(
                    "the server sends another model than the one that this federation calibrates: refused"
                )
            for prefix, split in {"": plan.method.fit_on, "test_": "test"}.items():
                self.kept[f"{prefix}logits"], self.kept[f"{prefix}labels"] = self._samples(plan, self.model, split)
            self.kept_of["model"] = mark
        return self.kept["logits"], self.kept["labels"]

    def _samples(self, plan: Plan, arrays: ArrayRecord, split: str) -> Samples:
        logits, labels = self.logits(arrays, self.context, split)
        # Under a privacy of its own, a node must not show by a refusal whether it has samples.
        told = len(labels) or self.policy.privacy
        if told and logits.shape[1] != plan.method.width(plan.n_classes):
            if plan.method.takes == "features":
                raise FedCalError(
                    f"{self.name}: {plan.method.name} asks for {plan.method.width(plan.n_classes) - plan.n_classes - 1} "
                    f"features and {plan.n_classes} logits: give calibration_mod(features_of(…)) of that model"
                )
            check_n_classes(self.name, logits.shape[1], plan)
        return logits, labels

    # --- what the node keeps -------------------------------------------------------------------------------------------

    def _measuring(self, plan: Plan, scaler: Scaler, private: bool | None = None) -> Client:
        """The node's client, once its policy has allowed that this scaler's metrics are sent."""
        client = self._client(plan, self._frozen(plan))
        client.measure(plan.federation, scaler, int(self.about["bins"]), private)
        return client

    def _client(self, plan: Plan, samples: Samples) -> Client:
        client = Client.of(plan.method, Prepared(lambda: samples), policy=self.policy)
        client.probs = self.probs
        if "client" in self.kept_of:
            stored = {"tensors": unnest("client", self.kept), "about": self.kept_of["client"]}
            check_client_state(stored)
            client.load_state_dict(stored)
        return client

    def _keep(self, client: Client, personal: Params | None = None) -> None:
        state = client.state_dict()
        frozen = {name: value for name, value in self.kept.items() if "/" not in name}
        self.kept = frozen | nest("client", state["tensors"]) | nest("personal", personal or {})
        self.kept_of["client"] = state["about"]  # this message may go on to build on it
        data = pack(self.kept, self.kept_of)
        self.context.state.config_records[STATE] = ConfigRecord({DATA: data})
        if path := state_path(self.context):
            write_bytes(path, data, private=True)  # logits and labels are in it

    def _recall(self) -> tuple[Params, dict[str, Any]]:
        """What it kept. The file counts before the context: another run, with a context of its own, may have written it."""
        kept, path = self.context.state.config_records.get(STATE), state_path(self.context)
        if path is None or not path.exists():
            return ({}, {}) if kept is None else unpack(data_of(kept))
        try:
            return unpack(read_bytes(path))
        except FedCalError as error:
            raise FedCalError(f"{path} cannot be read ({error}): delete it, and the node starts again") from None
