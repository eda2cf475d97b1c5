"""A node's samples: the function `logits(arrays, context, split)` that an app gives to `calibration_mod`.

It returns the model's logits and the labels of this node's samples, of the split "held-out" (to calibrate on), "test" (to
measure on) or "train". `logits_of` and `features_of` make one for PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Context

from fedcal.base.arrays import Array
from fedcal.base.checks import as_logits, check_labels
from fedcal.base.labels import check_classes
from fedcal.errors import FedCalError
from fedcal.exact.head_samples import join

if TYPE_CHECKING:
    from torch import Tensor, nn

Logits = Callable[[ArrayRecord, Context, str], tuple[Any, Any]]


@dataclass(frozen=True)
class Rows:
    """A node's samples with features beside the logits (exact/head_samples.py), as `features_of` gives them."""

    rows: Array
    n_classes: int


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

    Every second held-out sample is used for calibration, the others for measuring.

    Args:
        model: makes the app's model.
        held_out: gives a node's batches (x, y), or dicts of two, that it does not train on.

    Returns:
        The function for `calibration_mod`.

    Raises:
        FedCalError: from that function, where a method fits on training data.
    """

    def logits(arrays: ArrayRecord, context: Context, split: str) -> tuple[Any, Any]:
        if split == "train":
            raise FedCalError("this method fits on training data: give calibration_mod a function of your own for them")
        net = model()
        net.load_state_dict(arrays.to_torch_state_dict())
        z, y = _predict(net.eval(), held_out(context))
        mine = np.arange(len(y)) % 2 == (split == "test")
        return z[mine], y[mine]

    return logits


def features_of(
    model: Callable[[], nn.Module], held_out: Callable[[Context], Any], train: Callable[[Context], Any] | None = None
) -> Logits:
    """Make the function for `calibration_mod` where the method takes features (`fed-head`).

    Features are the inputs of the model's last layer, which must be torch.nn.Linear. Every second held-out sample is used for
    calibration, the others for measuring.

    Args:
        model: makes the app's model.
        held_out: gives a node's batches (x, y), or dicts of two, that it does not train on.
        train: the same for the samples that it trains on; if not given, heads are fitted only on held-out samples.

    Returns:
        The function for `calibration_mod`.

    Raises:
        FedCalError: from that function, where the model's last layer is not linear.
    """

    def rows(arrays: ArrayRecord, context: Context, split: str) -> tuple[Rows, Array]:
        from fedcal.base.last_layer import last_linear, with_features

        net = model()
        net.load_state_dict(arrays.to_torch_state_dict())
        whole, k = with_features(net).eval(), last_linear(net)[1].out_features

        def of(batches: Any, trained: bool) -> tuple[Array, Array]:
            found, y = (part.numpy() for part in _predict(whole, batches))
            return join(found[:, :k], found[:, k:], trained), y

        found, labels = of(held_out(context), False)
        mine = np.arange(len(labels)) % 2 == (split == "test")
        parts = [(found[mine], labels[mine])]
        if split != "test" and train is not None:
            parts.append(of(train(context), True))
        whole_rows, whole_labels = (np.concatenate(list(part)) for part in zip(*parts, strict=True))
        return Rows(whole_rows, k), whole_labels

    return rows


def _predict(net: nn.Module, batches: Any) -> tuple[Tensor, Tensor]:
    """What the model returns for all batches, and their labels, on the CPU."""
    import torch

    parts = []
    with torch.no_grad():
        for batch in batches:
            x, y = batch.values() if isinstance(batch, dict) else batch
            parts.append((net(x).cpu(), y.cpu()))
    scores, labels = (torch.cat(list(part)) for part in zip(*parts, strict=True))
    return scores, labels
