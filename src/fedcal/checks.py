"""What users hand over, checked once at the door: shapes, types, ranges. Nothing is guessed from values.

Every function returns tensors, and raises `FedCalError` with one line that names the offending value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fedcal.errors import FedCalError, unknown

SPREAD = 1e9  # what a logit may lie below its row's top one: no temperature that a fit could find brings more to life
ROW_SUM_TOLERANCE = 1e-2  # float16 probabilities over 1 000 classes still add up to 1 within this
RULES: dict[str, tuple[Callable[[Any, Any], bool], str]] = {  # none of them holds of NaN
    "low": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "below": (operator.lt, "below"),
    "high": (operator.le, "at most"),
}


def as_tensor(values: Any, what: str) -> Tensor:
    """An array-like as a tensor on the CPU (no copy where none is needed)."""
    try:
        array = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(_plain(np.asarray(values)))
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise FedCalError(f"{what} must be a numeric array or tensor, not {type(values).__name__}: {reason}") from None
    if array.is_complex() or array.dtype == torch.bool:
        raise FedCalError(f"{what} must hold real numbers, not {array.dtype}")
    return array


def _plain(array: np.ndarray) -> np.ndarray:
    """What torch can share: this machine's byte order, forward strides, writable."""
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def check_matrix(values: Any, what: str) -> Tensor:
    """(N, K) real numbers, K ≥ 2, floating point."""
    matrix = as_tensor(values, what)
    if matrix.ndim != 2 or matrix.shape[1] < 2:
        raise FedCalError(f"{what} must have shape (samples, classes ≥ 2), not {tuple(matrix.shape)}")
    return matrix if matrix.is_floating_point() else matrix.double()


def check_logits(values: Any, what: str = "logits") -> Tensor:
    """(N, K) finite numbers, no two in a row further apart than SPREAD (those beyond are moved up to it)."""
    logits = check_matrix(values, what)
    low, high = torch.aminmax(logits) if logits.numel() else (torch.zeros(()), torch.zeros(()))  # NaN shows in both
    if not math.isfinite(float(low)) or not math.isfinite(float(high)):
        bad = (~torch.isfinite(logits)).any(dim=1)
        row = int(bad.nonzero()[0])
        raise FedCalError(f"{what} must be finite: row {row} holds NaN or infinity ({int(bad.sum())} such rows)")
    return logits if max(-float(low), float(high)) <= SPREAD else _within_spread(logits)


def _within_spread(logits: Tensor) -> Tensor:
    """Rows with numbers beyond all measure, counted from their top one: sums and squares of the rest stay finite."""
    logits = logits.clone()
    far = (logits.abs() > SPREAD).any(dim=1)
    rows = logits[far].double()
    logits[far] = (rows - rows.amax(dim=1, keepdim=True)).clamp_min(-SPREAD).to(logits.dtype)
    return logits


def check_probs(values: Any, what: str = "probs") -> Tensor:
    """(N, K) probabilities: within [0, 1], each row adding up to 1."""
    probs = check_matrix(values, what)
    if not len(probs):
        return probs
    sums = probs @ torch.ones(probs.shape[1], dtype=probs.dtype)  # a NaN or an infinity shows in its row's sum
    low, high = (float(x) for x in torch.aminmax(probs))
    off = (sums - 1).abs_() > ROW_SUM_TOLERANCE
    if not np.isfinite(float(sums.sum())):
        row = int((~torch.isfinite(sums)).nonzero()[0])
        raise FedCalError(f"{what} must be finite: row {row} holds NaN or infinity")
    if low < 0 or high > 1 + 1e-6 or off.any():
        fault = (
            f"row {int(off.nonzero()[0])} sums to {float(sums[off][0]):.4g}"
            if off.any()
            else f"range {low:.4g} to {high:.4g}"
        )
        raise FedCalError(f"{what} are not probabilities ({fault}): if they are logits, pass softmax(logits)")
    return probs


def check_labels(values: Any, n_samples: int, n_classes: int, what: str = "labels") -> Tensor:
    """(N,) integers in 0 … K−1, as many as there are rows."""
    labels = as_tensor(values, what)
    if labels.ndim != 1:
        raise FedCalError(
            f"{what} must have shape (samples,), not {tuple(labels.shape)}; one-hot labels need argmax first"
        )
    if labels.is_floating_point():
        whole = labels % 1 == 0  # not so for NaN and infinity
        if not whole.all():
            worst = float(labels[~whole][0])
            raise FedCalError(f"{what} must be whole numbers: found {worst:g} ({int((~whole).sum())} such)")
    labels = labels.long()
    if len(labels) != n_samples:
        raise FedCalError(f"{len(labels)} {what} for {n_samples} rows: they must be as many")
    low, high = (int(x) for x in torch.aminmax(labels)) if len(labels) else (0, 0)
    if low < 0 or high >= n_classes:
        worst = high if high >= n_classes else low
        raise FedCalError(f"{what} must lie in 0..{n_classes - 1}: found {worst}")
    return labels


def check_whole(value: Any, what: str, low: int = 1) -> int:
    """A whole number of at least `low`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
        raise FedCalError(f"{what} must be a whole number of at least {low}, not {value!r}")
    return int(value)


def check_value(what: str, value: Any, hint: Any, rules: Mapping[str, Any]) -> None:
    """A value of the annotated type (`kind`, `kind | None` or a Literal), within `rules` (see RULES)."""
    kinds = get_args(hint) or (hint,)
    kind: Any = kinds[0]
    if value is None and type(None) in kinds:
        return
    if isinstance(kind, str):  # a Literal
        if value not in kinds:
            raise unknown(what, value, kinds)
        return
    if not isinstance(value, int | float if kind is float else kind) or (isinstance(value, bool) and kind is not bool):
        raise FedCalError(f"{what} must be {kind.__name__}, not {value!r}")
    for rule, bound in rules.items():
        holds, words = RULES[rule]
        if not holds(value, bound):
            raise FedCalError(f"{what} must be {words} {bound}, not {value}")
