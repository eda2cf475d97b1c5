"""Models and metrics of nodes, checked before they are averaged. FedCal's own records are the protocol's to check.

A node's reply is taken whole or not at all: the model of a node whose scaler is broken is not averaged either.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord

from fedcal.base.query import magnitude
from fedcal.protocol.checks import FAR, of_others

Signature = tuple[Hashable, ...]


def bad_models(replies: dict[int, Message], sent: ArrayRecord, weight: str) -> dict[int, str]:
    """Find models that cannot be averaged with the others.

    Args:
        replies: by node.
        sent: the model that the nodes were given.
        weight: the metric that the strategy weighs nodes by.

    Returns:
        The reason by node; empty where all is well.
    """
    found: dict[int, str] = {}
    sizes: dict[int, float] = {}
    signatures: dict[int, Signature] = {}
    for node, reply in replies.items():
        arrays = list(reply.content.array_records.values())
        if len(arrays) != 1:
            found[node] = f"sent {len(arrays)} models, where one is needed"
            continue
        try:
            values = {name: array.numpy() for name, array in arrays[0].items()}
            numeric = all(value.dtype.kind in "biuf" for value in values.values())
        except Exception:  # whatever a stranger's bytes make a reader raise
            found[node] = "its model cannot be read"
            continue
        if not numeric:
            found[node] = "its model is not of numbers"
            continue
        signatures[node] = tuple((name, tuple(v.shape)) for name, v in values.items())
        if not all(np.isfinite(value).all() for value in values.values()):
            found[node] = "its model is not finite"
        else:
            sizes[node] = max(map(magnitude, values.values()), default=0.0)
    mine = tuple((name, tuple(array.shape)) for name, array in sent.items())
    found |= dict.fromkeys(_unusual(signatures, mine), "its model has other names or shapes")
    found |= _far({node: size for node, size in sizes.items() if node not in found}, "its model reaches")
    return bad_metrics({node: reply for node, reply in replies.items() if node not in found}, weight) | found


def bad_metrics(replies: Mapping[int, Message], weight: str) -> dict[int, str]:
    """Find metrics that cannot be averaged with the others.

    Args:
        replies: by node, of training or of evaluation.
        weight: the metric that the strategy weighs nodes by: the others' must be of the same order.

    Returns:
        The reason by node; empty where all is well.
    """
    found: dict[int, str] = {}
    signatures: dict[int, Signature] = {}
    weights: dict[int, float] = {}
    for node, reply in replies.items():
        records = list(reply.content.metric_records.values())
        if len(records) != 1:
            found[node] = f"sent {len(records)} sets of metrics, where one is needed"
        elif why := _odd(records[0], weight):
            found[node] = why
        else:
            signatures[node] = tuple(sorted((name, np.size(value)) for name, value in records[0].items()))
            if weight in records[0]:
                weights[node] = float(records[0][weight])  # type: ignore[arg-type] - `_odd` has looked
    found |= dict.fromkeys(_unusual(signatures, None), "its metrics have other names or lengths than the others'")
    return found | _far({node: n for node, n in weights.items() if node not in found}, f"its {weight} is")


def _odd(metrics: MetricRecord, weight: str) -> str:
    """Why these metrics cannot be averaged; empty where they can."""
    try:
        if not all(np.isfinite(value).all() for value in metrics.values()):
            return "its metrics are not finite"
    except Exception:  # whatever a stranger's bytes make a reader raise
        return "its metrics cannot be read"
    value: Any = metrics.get(weight, 1)
    if isinstance(value, list) or value <= 0:
        return f"its {weight} is {value!r}, which is no number above 0"
    return ""


def _unusual(signatures: dict[int, Signature], wanted: Signature | None) -> list[int]:
    """The nodes whose names and shapes are not the ones that count: those wanted, or of most nodes where nobody has them."""
    kinds = Counter(signatures.values())
    usual = wanted if wanted in kinds else max(kinds, key=lambda kind: (kinds[kind], -len(kind)), default=wanted)
    return [node for node, mine in signatures.items() if mine != usual]


def _far(sizes: dict[int, float], what: str) -> dict[int, str]:
    """Nodes whose size is far beyond the others'."""
    return {
        node: f"{what} {sizes[node]:.3g}, the others' about {usual:.3g}"
        for node, usual in of_others(sizes, statistics.median).items()
        if sizes[node] > FAR * max(1.0, usual)
    }
