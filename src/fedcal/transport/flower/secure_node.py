"""A node's side of secure aggregation: what it would send is masked, and its secrets lie in `context.state` only.

They are not written to the folder of `fedcal-state`: a node that is started again is left out of the aggregation that is on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Context

from fedcal.base.arrays import Array, Params
from fedcal.base.query import magnitude
from fedcal.errors import FedCalError
from fedcal.secure import Layout, SecureNode
from fedcal.secure.fixed import Words
from fedcal.secure.identity import identity_of
from fedcal.transport.flower.records import parts_of

SECRETS = "fedcal.secrets"  # in the node's context
SMALLEST = 1e-6  # of a node's largest logit: sums are rounded to 2⁻⁶⁵, and squares of less would lose their digits


@dataclass(frozen=True)
class Sums:
    """What a node adds to the total."""

    like: Params  # names and shapes
    content: Params  # empty: nothing
    n: int  # samples
    openly: bytes = b""  # what the server may read: no sums


def reply_to_stages(
    context: Context, stages: str, sums: Callable[[], Sums], fewest: int = 0
) -> tuple[str, bytes, bytes]:
    """Reply to the stages of a message.

    Args:
        context: the node's.
        stages: as JSON.
        sums: gives the node's sums; called where they are asked for.
        fewest: nodes in a total at least.

    Returns:
        The replies as JSON, the masked vector, and what is said openly with it.
    """
    kept: Any = context.state.config_records.get(SECRETS)
    members, openly = json.loads(kept["members"]) if kept else [], b""
    node = SecureNode.from_json(members, identity_of(context.node_config), fewest)

    def encode(words: int) -> Words:
        nonlocal openly
        mine = sums()
        openly = mine.openly
        layout = Layout({name: value.shape for name, value in mine.like.items()}, words)
        return layout.encode({name: value.astype(float) for name, value in mine.content.items()}, mine.n)

    replies, vector = node.reply(parts_of(stages), encode)
    context.state.config_records[SECRETS] = ConfigRecord({"members": json.dumps(node.to_json())})
    return json.dumps(replies), vector, openly


def check_large_enough(logits: Array) -> None:
    """Refuse logits whose squares are lost in rounding.

    Raises:
        FedCalError: which says what to do.
    """
    largest = magnitude(logits)
    if 0 < largest < SMALLEST:
        raise FedCalError(f"the largest logit is {largest:.1g}: multiply logits by a constant for secure aggregation")
