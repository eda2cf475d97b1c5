"""An evaluation over Flower: after the measuring round, nodes that agree send the sums of their test samples' scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedcal.assess.evaluation import SiteSums
from fedcal.assess.groups import check_groups
from fedcal.assess.message import Asked, SiteMessage
from fedcal.assess.sums import all_thresholds
from fedcal.base.arrays import Array
from fedcal.errors import FedCalError
from fedcal.protocol import Plan, Scaler
from fedcal.protocol.wire import pack, plan_to_json, unpack


def asked_of(plan: Plan, thresholds: Sequence[float]) -> Asked:
    """What all nodes measure."""
    names = plan.classes or tuple(range(plan.n_classes))
    return Asked(tuple(str(name) for name in names), tuple(float(t) for t in thresholds))


def pack_evaluation(plan: Plan, scaler: Scaler, thresholds: Sequence[float]) -> bytes:
    """The server's request: the scaler, and the thresholds."""
    all_thresholds(thresholds)
    return pack(scaler.params, plan_to_json(plan) | {"thresholds": [float(t) for t in thresholds]})


def thresholds_of(data: bytes) -> list[float]:
    """The thresholds of a request.

    Raises:
        FedCalError: there are none, or not between 0 and 1.
    """
    found = unpack(data)[1].get("thresholds")
    all_thresholds(found if isinstance(found, list) else [])
    return list(found or [])


def node_sums(
    site: str, plan: Plan, data: bytes, samples: tuple[Array, Array], groups: Mapping[str, Any], min_count: int
) -> bytes:
    """A node's reply: the sums of its calibrated test samples; groups of fewer than `min_count` samples are left out."""
    logits, labels = samples
    thresholds = thresholds_of(data)
    found = check_groups({site: groups} if groups else None, {site: len(labels)})[site]
    if len(labels) < min_count:  # it says that it has no samples
        logits, labels, found = logits[:0], labels[:0], {name: values[:0] for name, values in found.items()}
    sums = SiteSums.of(logits, labels, found, thresholds, min_count)
    return SiteMessage.of(site, asked_of(plan, thresholds), sums, found).pack()


def read_node(name: str, data: bytes, asked: Asked) -> SiteMessage:
    """Read a node's reply.

    Raises:
        FedCalError: where it is damaged, another node's, or about other classes or thresholds.
    """
    message = SiteMessage.unpack(data)
    if message.site != name or message.asked != asked:
        raise FedCalError(f"{name} sends the sums of another node, or of other classes or thresholds")
    return message
