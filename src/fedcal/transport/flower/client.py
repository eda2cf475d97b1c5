"""A node's side: `ClientApp(mods=[calibration_mod(logits)])` replies to what a `CalibratedStrategy` asks.

An app gives one function, `logits(arrays, context, split)`, for its samples (samples.py). What a node reveals is limited by
its policy, which its config may change, and not the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from flwr.app import Context, Message, RecordDict

from fedcal.base.checks import check_kind
from fedcal.errors import FedCalError
from fedcal.protocol import Policy, Privacy
from fedcal.transport.flower.node import ClientAppCallable, Node, one_message_at_a_time, state_path
from fedcal.transport.flower.records import REPLY, REQUEST, STAGES, Records, take_out
from fedcal.transport.flower.samples import Logits, as_samples
from fedcal.transport.flower.turns import take_turn

Mod = Callable[[Message, Context, ClientAppCallable], Message]


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
        privacy: the node's own differential privacy, whatever the server requests; the node counts the budget itself. With
            distributed noise the node is also `secure`: its share of the noise protects it only within a total.
        probs: True if `logits` gives probabilities.
        classes: the label of each column, if labels are not the columns' numbers.
        policy: limits on what this node reveals, `Policy()` if not given. The node's config may name a file instead
            (`fedcal-policy`), and change two of its entries: `fedcal-allow-pooling`, `fedcal-min-count`.
        secure: refuse every request that does not use secure aggregation; so does
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
        meets = records[REQUEST]["phase"] == "meet"  # it keeps nothing here, and may train for long
        with nullcontext() if meets else one_message_at_a_time(context):
            return handle(message, context, call_next, records)

    def handle(message: Message, context: Context, call_next: ClientAppCallable, records: Records) -> Message:
        node = Node(context, records, samples, policy_of(context, own), bool(kind))
        shares = node.policy.privacy is not None and node.policy.privacy.where == "distributed"
        only_secure = secure or shares or context.node_config.get("fedcal-secure", False)
        # What is said while training goes openly, whatever stages come with it.
        openly = node.phase == "train" or STAGES not in node.about
        if only_secure and openly and node.phase not in ("meet", "evaluate"):
            raise FedCalError("this node replies under secure aggregation only: give the strategy secure=True")
        path = state_path(context)  # with it, a budget is in a file that one message at a time reads and writes
        if STAGES in node.about or (node.policy.privacy and node.phase != "meet" and path is None):
            take_turn(context, path and path.with_suffix(".turns"))
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
