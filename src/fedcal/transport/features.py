"""Clients that give features and the model's last layer, not only logits: made into rows (exact/head_samples.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from fedcal.base.arrays import Array
from fedcal.base.features import check_features, head_of
from fedcal.base.labels import as_labels, find_classes
from fedcal.base.last_layer import last_linear
from fedcal.data.samples import Samples, label_client, name_clients
from fedcal.errors import FedCalError, error_context, unknown
from fedcal.exact.head_samples import join
from fedcal.learn.local import predict

Read = dict[str, tuple[Array, np.ndarray]]


def feature_clients(
    clients: Any, train: Any, head: Any, classes: Any
) -> tuple[dict[str, Samples], np.ndarray | None, tuple[Array, Array]]:
    """Make rows of what a user gave.

    Args:
        clients: each client's features and labels, held out of training.
        train: the same of samples that the model was trained on; None: there are none.
        head: the model's last layer.
        classes: the labels of the columns, if given.

    Returns:
        Rows and labels by client, the label of each column if it has one, and the head's weight and bias.

    Raises:
        FedCalError: which names the client and what is wrong.
    """
    if head is None:
        raise FedCalError(
            "this method takes features and the model's last layer, not logits: give head=(weight, bias), or head=model.fc"
        )
    weight, bias = head_of(head)
    held_out = _read(clients, weight.shape[1], "")
    trained = {} if train is None else _read(train, weight.shape[1], "training ")
    for name in trained:
        if name not in held_out:
            raise FedCalError(f"train: {unknown('client', name, held_out)}; a client needs samples to calibrate on too")
    labels = [labels for read in (held_out, trained) for _, labels in read.values()]
    found = find_classes(labels, len(weight), classes)
    samples: dict[str, Samples] = {}
    for name, (features, own) in held_out.items():
        parts = [(features, own, False)]
        if name in trained:
            parts.append((*trained[name], True))
        rows, columns = [], []
        for x, y, kind in parts:
            logits = x.astype(float) @ weight.T + bias
            columns.append(label_client(name, logits, y, found)[1])
            rows.append(join(logits.astype(x.dtype), x, kind))
        samples[name] = np.concatenate([part.astype(rows[0].dtype) for part in rows]), np.concatenate(columns)
    return samples, found, (weight, bias)


def feature_rows(whole: nn.Module, x: Tensor, trained: bool = False) -> Array:
    """Make rows of inputs.

    Args:
        whole: a model that returns its features too (`with_features`).
        x: inputs.
        trained: whether the model was trained on them.

    Returns:
        The rows, on the CPU, in float32.
    """
    linear = last_linear(whole)[1]
    k = linear.out_features
    found = predict(whole, x).float().numpy() if len(x) else np.empty((0, k + linear.in_features), np.float32)
    return join(found[:, :k], found[:, k:], trained)


def _read(clients: Any, d: int, kind: str) -> Read:
    read: Read = {}
    for name, (features, labels) in name_clients(clients).items():
        with error_context(f"client {name}"):
            x, y = check_features(features, f"{kind}features"), as_labels(labels)
        if x.shape[1] != d:
            raise FedCalError(f"client {name}: {x.shape[1]} {kind}features, where the head takes {d}")
        read[name] = x, y
    return read
