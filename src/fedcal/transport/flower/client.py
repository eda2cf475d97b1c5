"""A node's half: `ClientApp(mods=[calibration_mod(logits)])` answers what a `CalibratedStrategy` asks.

`logits(arrays, context, split)` is the only thing that an app must say: the model's logits and the labels of this node's
samples, of a split: "held-out" (calibrated on), "test" (measured on) or "train". `logits_of` makes one for PyTorch.

What a node keeps (its own scaler, the frozen model's logits) lies in Flower's `context.state`, which outlives the
ClientApp's process. With `fedcal-state = "FOLDER"` in the node's config it is mirrored there, and outlives the SuperNode.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn

from fedcal.base.checks import as_logits, check_kind, check_labels
from fedcal.base.labels import check_classes
from fedcal.base.logits import Params
from fedcal.base.seeds import torch_rng
from fedcal.base.store import nest, read_tensors, unnest, write_tensors
from fedcal.base.threads import one_thread
from fedcal.data.samples import Samples
from fedcal.errors import FedCalError
from fedcal.measure.views import Measured
from fedcal.methods.method import Additive, Method
from fedcal.protocol.checks import digest
from fedcal.protocol.privacy import Privacy
from fedcal.protocol.rounds import plain
from fedcal.protocol.scaler_file import method_of
from fedcal.transport.flower.records import (
    ABOUT,
    ANSWER,
    ASKED,
    MODEL,
    PAIRED,
    QUESTION,
    SAID,
    TALLY,
    VIEWS,
    config_of,
    pack,
    take_out,
    unpack,
)

Logits = Callable[[ArrayRecord, Context, str], tuple[Any, Any]]
KEPT = "fedcal.kept"  # in the node's state: tensors, and what they are of


def calibration_mod(
    logits: Logits, privacy: Privacy | None = None, *, probs: bool | None = None, classes: Any = None
) -> Mod:
    """The mod for a ClientApp; it must come first in `mods`, so that no other one meets FedCal's records.

    `privacy` clips and noises what leaves this node, whatever the server says (local differential privacy). `probs` and
    `classes` say, as in `fedcal.calibrate`, that `logits` gives probabilities, and which label each column has.
    """
    samples = as_samples(logits, check_kind(probs), classes)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        records = take_out(message.content) if message.has_content() else {}
        if ABOUT not in records:
            return call_next(message, context)
        node = Node(message, context, records, samples, privacy)
        if node.about["phase"] in ("meet", "train"):
            return node.train(call_next)
        return Message(RecordDict(node.reply()), reply_to=message)

    return mod


def as_samples(logits: Logits, probs: bool | None, classes: Any) -> Logits:
    """The same function, with logits for probabilities and columns for labels."""

    def samples(arrays: ArrayRecord, context: Context, split: str) -> tuple[Tensor, Tensor]:
        scores, labels = logits(arrays, context, split)
        found = as_logits(scores, probs).double()
        named = None if classes is None else check_classes(classes, found.shape[1])
        return found, check_labels(labels, len(found), found.shape[1], classes=named)

    return samples


def logits_of(model: Callable[[], nn.Module], held_out: Callable[[Context], Any]) -> Logits:
    """`logits` for a PyTorch app: its model, and its batches (x, y), or dicts of two, that it does not train on.

    Every other sample is calibrated on, the rest is measured on: figures are never of samples that a scaler was fitted on.
    """

    def logits(arrays: ArrayRecord, context: Context, split: str) -> tuple[Tensor, Tensor]:
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


def _pair(batch: Any) -> tuple[Tensor, Tensor]:
    x, y = batch.values() if isinstance(batch, dict) else batch
    return x, y


def name_of(context: Context) -> str:
    """What the node is called in reports: its config's `name`, else its partition, else its number."""
    config = context.node_config
    if "name" in config:
        return str(config["name"])
    return f"client-{int(config['partition-id']):03d}" if "partition-id" in config else str(context.node_id)


class Node:
    """One message at one node."""

    def __init__(
        self, message: Message, context: Context, records: dict[str, Any], logits: Logits, privacy: Privacy | None
    ) -> None:
        self.message, self.context, self.records = message, context, records
        self.logits, self.privacy, self.name = logits, privacy, name_of(context)
        self.about: dict[str, Any] = dict(records[ABOUT])
        self.method: Method = method_of(self.about["method"], json.loads(self.about["options"]))
        self.sent = plain(unpack(records[QUESTION])) if QUESTION in records else {}
        self.kept, self.kept_of = self._recall()

    # --- phases ------------------------------------------------------------------------------------------------------

    def train(self, call_next: ClientAppCallable) -> Message:
        """Within a training round: the app's own training, and the scaler's half beside it (Algorithm 1, lines 12–21)."""
        meet = self.about["phase"] == "meet"  # the scaler's rounds come later: only the node's name is wanted
        received = next(iter(self.message.content.array_records.values()))
        look = not meet and self.method.logits_of == "received"
        before = self._samples(received, self.method.fit_on) if look else None
        reply = call_next(self.message, self.context)
        if reply.has_error():
            return reply
        if meet:
            reply.content[SAID] = config_of(self._said(0))
            return reply
        trained = next(iter(reply.content.array_records.values()))
        reply.content.update(self._answer(before or self._samples(trained, self.method.fit_on), self._own()))
        return reply

    def reply(self) -> dict[str, Any]:
        """On the frozen model: the answer to a question, or after the last one what measures the outcome."""
        model = self.records.get(MODEL)
        if model is None and self.kept_of.get("model") != self.about["model"]:
            return {SAID: config_of({**self._said(0), "missing": True})}
        if model is not None:
            self._look(model)
        if self.about["phase"] == "finish":
            return self._finish()
        samples = self.kept["logits"], self.kept["labels"]
        try:
            return self._answer(samples, self._own())
        except KeyError:  # an earlier question's outcome is asked for, and was lost here
            if ASKED not in self.records:
                return {SAID: config_of({**self._said(0), "missing": True})}
            return self._answer(samples, self._own_again(samples))

    # --- parts of the above --------------------------------------------------------------------------------------------

    @one_thread()
    def _answer(self, samples: Samples, own: Params) -> dict[str, Any]:
        """The method's client half; a node without samples says so and sends nothing."""
        logits, labels = samples
        if not len(labels) or logits.shape[1] != self.about["n_classes"]:  # the server will say what is wrong with K
            return {SAID: config_of(self._said(len(labels))), ANSWER: pack({})}
        rng = torch_rng(self.about["seed"], "scaler", self.about["round"] - 1, self.name)
        if self.privacy:
            self._spend(self.privacy)
        update = self.method.client(self.sent, own, logits, labels, rng)
        self._keep(own, update.own)
        content = update.content
        if policy := self.privacy or Privacy.clipping(self.about):
            content = policy.at_client(self.method, self.sent, own, samples, rng, update)
        said = self._said(len(labels)) | {"notes": update.notes}
        return {SAID: config_of(said), ANSWER: pack(content)}

    @one_thread()
    def _finish(self) -> dict[str, Any]:
        """Sums that measure: the model as it is, the global scaler, the node's own; the last one stays here."""
        method, params, own = self.method, self.sent, self._own()
        if isinstance(method, Additive) and len(self.kept["labels"]):
            own = method.personal(params, own, self.kept["logits"], self.kept["labels"])
        self._keep(own, own)
        logits, labels = self.kept["test_logits"], self.kept["test_labels"]
        applied = logits, method.apply(params, logits), method.apply_own(params, own, logits)
        measured = Measured.of(self.name, dict(zip(VIEWS, applied, strict=True)), labels, self.about["bins"])
        sent = {TALLY + view: pack(tallies[self.name].to_tensors()) for view, tallies in measured.tallies.items()}
        if measured.paired:
            sent[PAIRED] = pack(measured.paired.to_tensors())
        return {SAID: config_of(self._said(len(labels))), **sent}

    def _spend(self, privacy: Privacy) -> None:
        """One release more, also where a round is asked again: or none, once the budget is used up."""
        used = int(self.kept_of.get("releases", 0))
        if used >= privacy.rounds:
            raise FedCalError(f"{self.name}'s privacy budget of {privacy.rounds} releases is used up")
        self.kept_of["releases"] = used + 1

    def _said(self, n: int) -> dict[str, Any]:
        same = {key: self.about[key] for key in ("federation", "round")}
        used = int(self.kept_of.get("releases", 0))
        local = self.privacy.report("local", used) | {"left": self.privacy.rounds - used} if self.privacy else None
        return {
            **same,
            "kind": "answer",
            "question": digest(self.sent),
            "n_classes": self.kept_of.get("n_classes", self.about["n_classes"]),
            "site": self.name,
            "n": n,
            **({"privacy": local} if local else {}),
        }

    def _samples(self, arrays: ArrayRecord, split: str) -> Samples:
        logits, labels = self.logits(arrays, self.context, split)
        self.kept_of["n_classes"] = logits.shape[1]
        return logits, labels

    def _look(self, model: ArrayRecord) -> None:
        """The frozen model's logits, once: later questions come without the model."""
        own = self._own()
        self.kept["logits"], self.kept["labels"] = self._samples(model, self.method.fit_on)
        self.kept["test_logits"], self.kept["test_labels"] = self._samples(model, "test")
        self.kept_of["model"] = self.about["model"]
        self._keep(own, own)

    # --- what the node keeps -------------------------------------------------------------------------------------------

    def _own(self) -> Params:
        """The node's own scaler; a round that is asked again starts where it started."""
        if self.kept_of.get("federation") != self.about["federation"]:
            return {}
        return plain(unnest("before" if self.kept_of.get("round") == self.about["round"] else "after", self.kept))

    def _own_again(self, samples: Samples) -> Params:
        """What the node would have kept, had it answered all earlier questions: the last ones that stand by themselves."""
        asked = plain(unpack(self.records[ASKED]))
        numbers = sorted({int(name.split("/")[0]) for name in asked})
        questions = [unnest(f"{number:04d}", asked) for number in numbers]
        for first in reversed(range(len(questions))):
            own: Params = {}
            try:
                for question in questions[first:]:
                    own = self.method.client(question, own, *samples, torch_rng(0, "again")).own
                if own:
                    return own
            except KeyError:
                continue
        return {}

    def _recall(self) -> tuple[Params, dict[str, Any]]:
        state, mirror = self.context.state, self._mirror()
        if KEPT in state.config_records:
            return unpack(state.config_records[KEPT]), dict(state.config_records[KEPT + ".of"])
        return read_tensors(mirror) if mirror and mirror.exists() else ({}, {})

    def _keep(self, before: Params, after: Params) -> None:
        data = {name: value for name, value in self.kept.items() if "/" not in name}
        self.kept = data | nest("before", before) | nest("after", after)
        self.kept_of |= {"federation": self.about["federation"], "round": self.about["round"]}
        self.context.state.config_records[KEPT] = pack(self.kept)
        self.context.state.config_records[KEPT + ".of"] = ConfigRecord(dict(self.kept_of))
        if mirror := self._mirror():
            write_tensors(mirror, self.kept, self.kept_of)

    def _mirror(self) -> Path | None:
        folder = self.context.node_config.get("fedcal-state")
        return Path(str(folder)) / f"{self.name}.safetensors" if folder else None


def own_scaler(context: Context) -> Params:
    """A node's own scaler, for the app's use: `method.apply_own(params, own, logits)`."""
    kept = context.state.config_records.get(KEPT)
    return unnest("after", unpack(kept)) if kept is not None else {}
