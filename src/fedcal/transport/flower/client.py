"""A node's side: `ClientApp(mods=[calibration_mod(logits)])` replies to what a `CalibratedStrategy` asks.

An app gives one function, `logits(arrays, context, split)`: the model's logits and the labels of this node's samples, of
the split "held-out" (to calibrate on), "test" (to measure on) or "train". `logits_of` makes one for PyTorch.

A node keeps the state of its `protocol.Client` and the frozen model's logits in Flower's `context.state`, which outlives
the ClientApp's process. With `fedcal-state = "FOLDER"` in the node's config they are also written there, and outlive the
SuperNode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from fedcal.base.arrays import Array, Params
from fedcal.base.checks import as_logits, check_kind, check_labels
from fedcal.base.labels import check_classes
from fedcal.base.store import nest, read_bytes, unnest, write_bytes
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError
from fedcal.exact.head_samples import join
from fedcal.exact.prepared import Prepared
from fedcal.exact.private_queries import VALUES, Measure
from fedcal.protocol import Client, Plan, Policy, Privacy, Reply, Request
from fedcal.protocol.checks import check_n_classes, example_reply
from fedcal.protocol.valid import check_client_state
from fedcal.protocol.wire import pack, pack_reply, unpack, unpack_request
from fedcal.transport.flower.records import (
    DATA,
    MEASURED,
    MODEL,
    REPLY,
    REQUEST,
    STAGES,
    VIEWS,
    Records,
    data_of,
    fingerprint,
    record_of,
    take_out,
    unpack_scaler,
)
from fedcal.transport.flower.secure_node import Sums, check_large_enough, reply_to_stages

if TYPE_CHECKING:
    from torch import nn

    from fedcal.data.samples import Samples
    from fedcal.measure.views import Measured

Logits = Callable[[ArrayRecord, Context, str], tuple[Any, Any]]
ClientAppCallable = Callable[[Message, Context], Message]  # as in Flower's typing module, which moved
Mod = Callable[[Message, Context, ClientAppCallable], Message]
STATE = "fedcal.state"  # in the node's context


@dataclass(frozen=True)
class Rows:
    """A node's samples with features beside the logits (exact/head_samples.py), as `features_of` gives them."""

    rows: Array
    n_classes: int


def calibration_mod(
    logits: Logits,
    privacy: Privacy | None = None,
    *,
    probs: bool | None = None,
    classes: Any = None,
    policy: Policy | None = None,
    secure: bool = False,
    share_scores: bool = False,
    groups: Callable[[Context], Mapping[str, Any]] | None = None,
) -> Mod:
    """Make the mod for a ClientApp. It must be the first of `mods`, so that no other one sees FedCal's records.

    Args:
        logits: the app's function of (arrays, context, split); for `fed-head`, what `features_of` makes.
        privacy: what leaves this node keeps to it, whatever the server asks; it counts its budget itself.
        probs: True if `logits` gives probabilities.
        classes: the label of each column, if labels are not the columns' numbers.
        policy: what this node tells at most, `Policy()` if not given. The node's config may name a file instead
            (`fedcal-policy`), and change two of its entries: `fedcal-allow-pooling`, `fedcal-min-count`.
        secure: refuse every request that does not come by secure aggregation, whatever the server says; so does
            `fedcal-secure=true` in the node's config.
        share_scores: whether this node takes part in evaluations (`CalibratedStrategy(thresholds=…)`), whose sums show the
            server the scores and labels of its test samples, also where it is `secure`; never under `privacy`. The node's
            config has the last word (`fedcal-share-scores`), and the only one where it says `fedcal-secure`.
        groups: gives, for those evaluations, the groups of the test samples by variable: {"sex": […], "age": […]}.

    Returns:
        The mod.

    Raises:
        FedCalError: from the mod, where the node refuses a request.
    """
    kind = check_kind(probs)
    samples = as_samples(logits, kind, classes)
    own = replace(policy or Policy(), **({"privacy": privacy} if privacy else {}))

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        records = take_out(message.content) if message.has_content() else {}
        if REQUEST not in records:
            return call_next(message, context)
        node = Node(context, records, samples, policy_of(context, own), bool(kind))
        only_secure = secure or context.node_config.get("fedcal-secure", False)
        if only_secure and node.phase not in ("meet", "evaluate") and STAGES not in node.about:
            raise FedCalError("this node replies under secure aggregation only: give the strategy secure=True")
        if node.phase in ("meet", "train"):
            return node.train(message, call_next)
        if node.phase == "evaluate":
            if not shares_scores(context, node.policy, share_scores):
                raise FedCalError("this node does not share its scores: calibration_mod(…, share_scores=True) would")
            node.groups = groups(context) if groups else {}
        return Message(RecordDict({REPLY: node.reply()}), reply_to=message)

    return mod


def policy_of(context: Context, policy: Policy) -> Policy:
    """Return a node's policy: the app's, unless the node's config names another."""
    config = context.node_config
    if "fedcal-policy" in config:
        loaded = Policy.load(str(config["fedcal-policy"]))
        policy = loaded if loaded.privacy else replace(loaded, privacy=policy.privacy)
    names = {"fedcal-allow-pooling": "allow_pooling", "fedcal-min-count": "min_count"}
    return replace(policy, **{entry: config[name] for name, entry in names.items() if name in config})


def shares_scores(context: Context, policy: Policy, share_scores: bool) -> bool:
    """Return whether a node takes part in evaluations: its config says so, or else the app, which may be another's."""
    config = context.node_config
    said = config.get("fedcal-share-scores", share_scores and not config.get("fedcal-secure", False))
    return said is True and policy.privacy is None


def as_samples(logits: Logits, probs: bool | None, classes: Any) -> Logits:
    """Return the same function, with logits for probabilities and columns for labels."""

    def samples(arrays: ArrayRecord, context: Context, split: str) -> tuple[Array, Array]:
        scores, labels = logits(arrays, context, split)
        if isinstance(scores, Rows):
            rows, k = scores.rows, scores.n_classes
        else:
            rows = as_logits(scores, probs).astype(float, copy=False)
            k = rows.shape[1]
        named = None if classes is None else check_classes(classes, k)
        return rows, check_labels(labels, len(rows), k, classes=named)

    return samples


def logits_of(model: Callable[[], nn.Module], held_out: Callable[[Context], Any]) -> Logits:
    """Make `logits` for a PyTorch app.

    Every other held-out sample is calibrated on and the rest is measured on: no sample serves for both.

    Args:
        model: makes the app's model.
        held_out: gives a node's batches (x, y), or dicts of two, that it does not train on.

    Returns:
        The function for `calibration_mod`.

    Raises:
        FedCalError: from that function, where a method fits on training data.
    """

    def logits(arrays: ArrayRecord, context: Context, split: str) -> tuple[Any, Any]:
        import torch

        if split == "train":
            raise FedCalError("this method fits on training data: give calibration_mod a function of your own for them")
        net = model()
        net.load_state_dict(arrays.to_torch_state_dict())
        net.eval()
        with torch.no_grad():
            parts = [(net(x), y) for x, y in map(_pair, held_out(context))]
        z, y = (torch.cat(list(part)).cpu() for part in zip(*parts, strict=True))
        mine = torch.arange(len(y)) % 2 == (split == "test")
        return z[mine], y[mine]

    return logits


def features_of(
    model: Callable[[], nn.Module], held_out: Callable[[Context], Any], train: Callable[[Context], Any] | None = None
) -> Logits:
    """Make the function for `calibration_mod` where the method takes features (`fed-head`).

    Features are what the model's last layer takes, which must be torch.nn.Linear. Every other held-out sample is calibrated
    on, and the rest is measured on.

    Args:
        model: makes the app's model.
        held_out: gives a node's batches (x, y), or dicts of two, that it does not train on.
        train: the same of what it trains on; if not given, heads are fitted on held-out samples alone.

    Returns:
        The function for `calibration_mod`.

    Raises:
        FedCalError: from that function, where the model's last layer is not linear.
    """

    def rows(arrays: ArrayRecord, context: Context, split: str) -> tuple[Rows, Array]:
        import torch

        from fedcal.base.last_layer import last_linear, with_features

        net = model()
        net.load_state_dict(arrays.to_torch_state_dict())
        whole, k = with_features(net).eval(), last_linear(net)[1].out_features

        def of(batches: Any, trained: bool) -> tuple[Array, Array]:
            with torch.no_grad():
                parts = [(whole(x).cpu(), y) for x, y in map(_pair, batches)]
            found, y = (torch.cat(list(part)).cpu().numpy() for part in zip(*parts, strict=True))
            return join(found[:, :k], found[:, k:], trained), y

        found, labels = of(held_out(context), False)
        mine = np.arange(len(labels)) % 2 == (split == "test")
        parts = [(found[mine], labels[mine])]
        if split != "test" and train is not None:
            parts.append(of(train(context), True))
        whole_rows, whole_labels = (np.concatenate(list(part)) for part in zip(*parts, strict=True))
        return Rows(whole_rows, k), whole_labels

    return rows


def personal_scaler(context: Context) -> Params:
    """Return a node's personal scaler, for use in its app: `method.apply_personal(params, personal, logits)`.

    Args:
        context: the node's, after the last round.

    Returns:
        Its parameters; empty where the global scaler serves.
    """
    kept = context.state.config_records.get(STATE)
    return unnest("personal", unpack(data_of(kept))[0]) if kept is not None else {}


def name_of(context: Context) -> str:
    """Return the node's name in reports: its config's `name`, else its partition, else its number."""
    config = context.node_config
    if "name" in config:
        return str(config["name"])
    return f"client-{int(config['partition-id']):03d}" if "partition-id" in config else str(context.node_id)


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
            stages, masked, openly = reply_to_stages(self.context, str(self.about[STAGES]), sums)
            return record_of(masked, client=self.name, stages=stages, openly=openly)
        if self.phase == "measure":
            from fedcal.transport.flower.measured import pack_measured

            measured = self._measure()
            private = isinstance(measured, Reply)
            data = pack_reply(measured, self.name) if private else pack_measured(self.name, measured)
            return record_of(data, client=self.name)
        plan, request = unpack_request(self.data)
        return self._reply(plan, request, self._frozen(plan))

    # --- what secure aggregation adds up ---------------------------------------------------------------------------------

    def _reply_sums(self) -> Sums:
        """The reply to the request; what is no sum of samples is said openly."""
        plan, request = unpack_request(self.data)
        samples = self._frozen(plan)
        if not (self.policy.privacy or request.privacy):  # under privacy all numbers are of one size
            check_large_enough(samples[0])
        client = self._client(plan, Prepared(lambda: samples))
        reply = client.reply(request)
        self._keep(client)
        openly = pack_reply(replace(reply, content={}, n=0, notes={}), self.name)
        return Sums(example_reply(plan.method, plan.n_classes, request.query), reply.content, reply.n, openly)

    def _measured_sums(self) -> Sums:
        from fedcal.transport.flower.measured import measured_arrays

        measured = self._measure()
        if isinstance(measured, Reply):
            openly = pack_reply(replace(measured, content={}, n=0, notes={}), self.name)
            return Sums({VALUES: np.zeros_like(measured.content[VALUES])}, measured.content, 1, openly)
        sums = measured_arrays(self.name, measured)
        return Sums(sums, sums, measured.pooled(VIEWS[0]).n)

    def _reply(self, plan: Plan, request: Request, samples: Samples) -> ConfigRecord:
        client = self._client(plan, Prepared(lambda: samples))
        data = pack_reply(client.reply(request), self.name)
        self._keep(client)
        return record_of(data, client=self.name)

    @one_thread()
    def _measure(self) -> Measured | Reply:
        """Make the personal scaler, which stays here, and sums that measure the views; noised ones under privacy."""
        from fedcal.measure.views import Measured

        plan, scaler, asked = unpack_scaler(self.data)
        frozen = self._frozen(plan)
        client = self._client(plan, Prepared(lambda: frozen))
        client.measure(plan.federation, scaler, int(self.about["bins"]))
        personal = client.personalize(scaler)
        self._keep(client, personal)
        shown = len(self.kept["test_labels"]) >= self.policy.min_count  # else it says that it has no samples
        logits, labels = (self.kept[f"test_{name}"][: None if shown else 0] for name in ("logits", "labels"))
        applied = (
            plan.method.logits(logits),
            plan.method.apply(scaler.params, logits),
            plan.method.apply_personal(scaler.params, personal, logits),
        )
        if privacy := self.policy.privacy or asked:
            views = Prepared(lambda: (np.concatenate(applied, 1), labels))
            return self._measure_privately(plan, views, privacy, personal)
        return Measured.of(self.name, dict(zip(VIEWS, applied, strict=True)), labels, int(self.about["bins"]))

    def _measure_privately(self, plan: Plan, views: Prepared, privacy: Privacy, personal: Params) -> Reply:
        """Measure within the privacy budget, once: the request is the same whatever the scaler is."""
        query = Measure(plan.n_classes, 1.0, len(VIEWS), int(self.about["bins"]))
        client = self._client(plan, views)
        reply = client.reply(Request(plan.federation, MEASURED, query, privacy))
        self._keep(client, personal)
        return reply

    @one_thread()
    def _evaluate(self) -> ConfigRecord:
        """Sums of the test samples' scores under the global scaler: the one whose metrics this node tells."""
        from fedcal.transport.flower.evaluation import node_sums

        plan, scaler, _ = unpack_scaler(self.data)
        frozen = self._frozen(plan)
        client = self._client(plan, Prepared(lambda: frozen))
        client.measure(plan.federation, scaler, int(self.about["bins"]))
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
        if len(labels) and logits.shape[1] != plan.method.width(plan.n_classes):
            if plan.method.takes == "features":
                raise FedCalError(
                    f"{self.name}: {plan.method.name} asks for {plan.method.width(plan.n_classes) - plan.n_classes - 1} "
                    f"features and {plan.n_classes} logits: give calibration_mod(features_of(…)) of that model"
                )
            check_n_classes(self.name, logits.shape[1], plan)
        return logits, labels

    # --- what the node keeps -------------------------------------------------------------------------------------------

    def _client(self, plan: Plan, samples: Prepared) -> Client:
        client = Client.of(plan.method, samples, policy=self.policy)
        client.probs = self.probs
        if "client" in self.kept_of:
            stored = {"tensors": unnest("client", self.kept), "about": self.kept_of["client"]}
            check_client_state(stored)
            client.load_state_dict(stored)
        return client

    def _keep(self, client: Client, personal: Params | None = None) -> None:
        state = client.state_dict()
        frozen = {name: value for name, value in self.kept.items() if "/" not in name}
        tensors = frozen | nest("client", state["tensors"]) | nest("personal", personal or {})
        data = pack(tensors, {**self.kept_of, "client": state["about"]})
        self.context.state.config_records[STATE] = ConfigRecord({DATA: data})
        if path := self._path():
            write_bytes(path, data, private=True)  # logits and labels are in it

    def _recall(self) -> tuple[Params, dict[str, Any]]:
        kept, path = self.context.state.config_records.get(STATE), self._path()
        if kept is not None:
            return unpack(data_of(kept))
        if path is None or not path.exists():
            return {}, {}
        try:
            return unpack(read_bytes(path))
        except FedCalError as error:
            raise FedCalError(f"{path} cannot be read ({error}): delete it, and the node starts again") from None

    def _path(self) -> Path | None:
        folder = self.context.node_config.get("fedcal-state")
        return Path(str(folder)) / f"{self.name}.safetensors" if folder else None


def _pair(batch: Any) -> tuple[Any, Any]:
    x, y = batch.values() if isinstance(batch, dict) else batch
    return x, y
