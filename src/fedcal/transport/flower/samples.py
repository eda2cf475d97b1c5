"""A node's samples: the function `logits(arrays, context, split)` that an app gives to `calibration_mod`.

It returns the model's logits and the labels of this node's samples, of the split "held-out" (to calibrate on), "test" (to
measure on) or "train". `logits_of` and `features_of` make one for PyTorch.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, Context

from fedcal.base.arrays import Array, as_array
from fedcal.base.checks import as_logits, check_labels, look_like_probs, warn_of_masks, warn_of_probs
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
            warn_of_masks(rows)
            if probs is None and look_like_probs(rows):
                warn_of_probs()
            k = rows.shape[1]
        named = None if classes is None else check_classes(classes, k)
        return rows, check_labels(labels, len(rows), k, classes=named)

    return samples


def logits_of(model: Callable[[], nn.Module], held_out: Callable[[Context], Any]) -> Logits:
    """Make `logits` for a PyTorch app.

    About half of the held-out samples are used for calibration, the others for measuring: which half, a sample's own numbers
    say.

    Args:
        model: makes the app's model.
        held_out: gives a node's batches (x, y), or dicts of two, that it does not train on; in any order, but with the same
            numbers every time.

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
        z, y, tested = _predict(net.eval(), held_out(context), lambda: _outputs(net))
        mine = tested == (split == "test")
        return z[mine], y[mine]

    return logits


def features_of(
    model: Callable[[], nn.Module], held_out: Callable[[Context], Any], train: Callable[[Context], Any] | None = None
) -> Logits:
    """Make the function for `calibration_mod` where the method takes features (`fed-head`).

    Features are the inputs of the model's last layer, which must be torch.nn.Linear. Held-out samples are divided as by
    `logits_of`.

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
        whole, last = with_features(net).eval(), last_linear(net)[1]
        k = last.out_features

        def of(batches: Any, trained: bool) -> tuple[Array, Array, Array]:
            found, y, tested = _predict(whole, batches, lambda: k + last.in_features)
            return join(found[:, :k], found[:, k:], trained), y, tested

        found, labels, tested = of(held_out(context), False)
        mine = tested == (split == "test")
        parts = [(found[mine], labels[mine])]
        if split != "test" and train is not None:
            parts.append(of(train(context), True)[:2])
        whole_rows, whole_labels = (np.concatenate(list(part)) for part in zip(*parts, strict=True))
        return Rows(whole_rows, k), whole_labels

    return rows


def _predict(net: nn.Module, batches: Any, width: Callable[[], int]) -> tuple[Array, Array, Array]:
    """What the model returns for all batches, their labels, and which of them to measure on; `width`: of a row."""
    import torch

    parts, seen = [], Counter[bytes]()
    with torch.no_grad():
        for batch in batches:
            x, y = batch.values() if isinstance(batch, dict) else batch
            parts.append((as_array(net(x)), as_array(y), to_measure_on(x, y, seen)))
    if not parts:  # a node without samples replies too: it has none
        return np.zeros((0, width())), np.zeros(0, np.int64), np.zeros(0, bool)
    scores, labels, tested = (np.concatenate(part) for part in zip(*parts, strict=True))
    return scores, labels, tested


def _outputs(net: nn.Module) -> int:
    """How many logits a model gives, where there is no batch to see it by."""
    from fedcal.base.last_layer import last_linear

    try:
        return last_linear(net)[1].out_features
    except FedCalError:
        raise FedCalError(
            "there are no held-out samples, and the model's last layer does not tell the number of classes: give "
            "calibration_mod a function that returns logits of shape (0, K)"
        ) from None


def to_measure_on(x: Any, y: Tensor, seen: Counter[bytes]) -> Array:
    """Which samples of a batch to measure on: about half of them, and every second one of those that are equal.

    It does not depend on the other samples, nor on their order. If it did, differential privacy would not hold: one sample
    more or less would change on which side others are.

    Args:
        x: inputs: a tensor, or a list or dict of tensors.
        y: labels.
        seen: how often each sample was in the batches before.
    """
    import torch

    inputs = list(x.values()) if isinstance(x, Mapping) else list(x) if isinstance(x, list | tuple) else [x]
    bits = [part[:, None].detach().cpu().flatten(1).contiguous().view(torch.uint8).numpy() for part in (*inputs, y)]
    found = np.zeros(len(y), bool)
    for i, row in enumerate(np.concatenate(bits, 1)):
        sample = hashlib.blake2b(row.tobytes(), digest_size=8).digest()
        found[i] = (sample[0] + seen[sample]) % 2
        seen[sample] += 1
    return found
