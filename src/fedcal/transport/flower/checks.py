"""Models that come back from nodes, checked before they are averaged. FedCal's records are the protocol's to check.

A node's reply is taken whole or not at all: the model of a node whose scaler is broken is not averaged either.
"""

from __future__ import annotations

import statistics
from collections import Counter

import numpy as np
from flwr.app import ArrayRecord, Message

from fedcal.protocol.checks import FAR, of_others

Signature = tuple[tuple[str, tuple[int, ...]], ...]


def bad_models(replies: dict[int, Message], sent: ArrayRecord) -> dict[int, str]:
    """Find models that cannot be averaged with the others.

    Args:
        replies: by node.
        sent: the model that the nodes were given.

    Returns:
        The reason by node; empty where all is well.
    """
    found: dict[int, str] = {}
    sizes: dict[int, float] = {}
    signatures: dict[int, Signature] = {}
    for node, reply in replies.items():
        arrays, metrics = list(reply.content.array_records.values()), list(reply.content.metric_records.values())
        if len(arrays) != 1 or len(metrics) != 1:
            found[node] = f"sent {len(arrays)} models and {len(metrics)} sets of metrics, where one of each is needed"
            continue
        try:
            finite = all(np.isfinite(value).all() for value in metrics[0].values())
            values = {name: array.numpy() for name, array in arrays[0].items()}
            numeric = all(value.dtype.kind in "biuf" for value in values.values())
        except Exception:  # whatever a stranger's bytes make a reader raise
            found[node] = "its model or metrics cannot be read"
            continue
        if not finite or not numeric:
            found[node] = "its model is not of numbers" if finite else "its metrics are not finite"
            continue
        signatures[node] = tuple((name, tuple(v.shape)) for name, v in values.items())
        if not all(np.isfinite(value).all() for value in values.values()):
            found[node] = "its model is not finite"
        else:
            sizes[node] = max((float(np.abs(v).max()) for v in values.values() if v.size), default=0.0)
    usual = _usual(signatures, sent)
    found |= {node: "its model has other names or shapes" for node, mine in signatures.items() if mine != usual}
    sizes = {node: largest for node, largest in sizes.items() if node not in found}
    for node, others in of_others({str(node): largest for node, largest in sizes.items()}, statistics.median).items():
        if sizes[int(node)] > FAR * max(1.0, others):
            found[int(node)] = f"its model reaches {sizes[int(node)]:.3g}, the others' about {others:.3g}"
    return found


def _usual(signatures: dict[int, Signature], sent: ArrayRecord) -> Signature:
    """The names and shapes that count: those of the model that was sent, or of most nodes where nobody keeps to them."""
    mine = tuple((name, tuple(array.shape)) for name, array in sent.items())
    kinds = Counter(signatures.values())
    return mine if mine in kinds or not kinds else kinds.most_common(1)[0][0]
