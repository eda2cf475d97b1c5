"""What users hand over, checked once at the door: shapes, types, ranges. Nothing is guessed from values.

Scores are logits or, where the caller says so (`probs`), probabilities. A 1-D array or a single column is binary: a
decision score of class 1, or P(class 1).

Every function returns arrays, and raises `FedCalError` with one line that names the offending value.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fedcal.base.arrays import Array, as_array, double, namespace, softmax, tracing
from fedcal.base.labels import NUMBERS, as_labels, find_classes, listed, refuse_masked, to_columns
from fedcal.base.logits import keep_order
from fedcal.base.schema import NAME
from fedcal.errors import FedCalError, FedCalWarning, counted, reason_of, unknown

# How far a logit may lie below its row's top one: squares of more, summed up, would lose all digits of the rest.
SPREAD = 1e15
ROW_SUM_TOLERANCE = 1e-2  # float16 probabilities over 1 000 classes still add up to 1 within this
SMALLEST = float(np.finfo(np.float32).tiny)  # a probability of 0 counts as this
# Whose frames are not the user's: ours, and decorators'.
OURS = (str(Path(__file__).parents[1]), contextlib.__file__, str(Path(np.__file__).parent))
ENOUGH = 1 << 14  # samples of a client, to tell whether its scores are swapped
SURE = 4  # standard errors, from which on scores are called swapped
FEW = 20  # of fewer scores, all may lie between 0 and 1 by chance
MASK = 1e3  # how many times larger than the others a logit is that masks its class
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
RULES: dict[str, tuple[Callable[[Any, Any], bool], str]] = {  # none of them holds of NaN
    "low": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "below": (operator.lt, "below"),
    "high": (operator.le, "at most"),
}


def check_array(values: Any, what: str) -> Array:
    """Real numbers, given as an array, a tensor or a list, as an array (no copy where none is needed)."""
    refuse_masked(values, what)
    try:
        array = as_array(values)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = reason_of(error)
        raise FedCalError(f"{what} must be a numeric array or tensor, not {type(values).__name__}: {reason}") from None
    if array.dtype.kind in "bc":
        raise FedCalError(f"{what} must hold real numbers, not {array.dtype}")
    if array.dtype.kind not in NUMBERS:
        raise FedCalError(
            f"{what} must be a numeric array or tensor, not one of {array.dtype}: convert it, as by .astype(float)"
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:  # tensors know no longer ones
        return array.astype(float)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_shown(name: str) -> str:
    """Refuse a name that a terminal cannot show, or without end: files with it would be refused as a stranger's."""
    if len(name) > NAME.most:
        raise FedCalError(f"the name of site {name[:20]!r}… has {len(name)} characters: give it at most {NAME.most}")
    if not name.isprintable():
        raise FedCalError(f"the name of site {name!r} cannot be shown: rename it")
    return name


def check_matrix(values: Any, what: str, probs: bool = False) -> Array:
    """(N, K) real numbers, K ≥ 2, floating point; binary scores as two columns."""
    matrix = check_array(values, what)
    if matrix.ndim not in (1, 2) or (matrix.ndim == 2 and matrix.shape[1] < 1):
        raise FedCalError(
            f"{what} must have shape (samples, classes), or (samples,) of two classes, not {tuple(matrix.shape)}"
        )
    return two_columns(matrix if matrix.dtype.kind == "f" else matrix.astype(float), probs)


def two_columns(scores: Any, probs: bool) -> Any:
    """Binary scores, 1-D or a single column, as two columns: [0, s] of a decision score, [1 − p, p] of P(class 1).

    More columns are left as they are. Takes an array or a tensor; traced graphs may hold this.
    """
    if scores.ndim == 2 and scores.shape[1] > 1:
        return scores
    one, xp = scores.reshape(-1), namespace(scores)
    if probs:
        one = double(one)  # so that 1 − p is exact; float32 may lie a rounding error beyond 1
        one = xp.where((one > 1) & (one <= 1 + 1e-6), xp.ones_like(one), one)
    return xp.stack([1 - one if probs else xp.zeros_like(one), one], 1)


def by_index(row: int) -> str:
    """A row in words, as arrays count them: from 0."""
    return f"row {row}"


def check_logits(values: Any, name_row: Callable[[int], str] = by_index) -> Array:
    """(N, K) finite numbers, no two in a row further apart than SPREAD (those beyond are moved up to it)."""
    logits = check_matrix(values, "logits")
    low, high = (float(logits.min()), float(logits.max())) if logits.size else (0.0, 0.0)  # NaN shows in both
    if not math.isfinite(low) or not math.isfinite(high):
        bad = (~np.isfinite(logits)).any(1)
        row = int(bad.argmax())
        raise FedCalError(
            f"logits must be finite: {name_row(row)} holds NaN or infinity ({counted(int(bad.sum()), 'such row')})"
        )
    with np.errstate(over="ignore"):  # what overflows is moved up
        return logits if max(-low, high) <= SPREAD else within_spread(logits)


def within_spread(logits: Any) -> Any:
    """Rows with numbers beyond all measure, counted from their top one: sums and squares of the rest stay finite.

    Takes an array or a tensor; traced graphs may hold this.
    """
    xp = namespace(logits)
    far = (abs(logits) > SPREAD).any(1)[:, None]
    rows = logits - xp.amax(logits, 1)[:, None]
    return xp.where(far, xp.clip(rows, -SPREAD, None), logits)


def check_probs(values: Any, what: str = "probs", name_row: Callable[[int], str] = by_index) -> Array:
    """(N, K) probabilities: within [0, 1], each row adding up to 1; P(class 1) alone as two columns."""
    probs = check_matrix(values, what, probs=True)
    if not len(probs):
        return probs
    sums = probs @ np.ones(probs.shape[1], probs.dtype)  # a NaN or an infinity shows in its row's sum
    low, high = float(probs.min()), float(probs.max())
    off = np.abs(sums - 1) > ROW_SUM_TOLERANCE
    if not np.isfinite(float(sums.sum())):
        row = int((~np.isfinite(sums)).argmax())
        raise FedCalError(f"{what} must be finite: {name_row(row)} holds NaN or infinity")
    if low < 0 or high > 1 + 1e-6 or off.any():
        if off.any():
            fault = f"{name_row(int(off.argmax()))} sums to {float(sums[off][0]):.4g}"
        else:  # the last of a row's bad values: the given one, where P(class 1) alone was given
            bad = (probs < 0) | (probs > 1 + 1e-6)
            row = int(bad.any(1).argmax())
            fault = f"{name_row(row)} holds {float(probs[row][bad[row]][-1]):.4g}"
        raise FedCalError(f"{what} are not probabilities ({fault}): if they are logits, pass softmax(logits)")
    return probs


def log_probs(probs: Any) -> Any:
    """Logarithms of probabilities, in float64. Takes an array or a tensor; traced graphs may hold this."""
    xp = namespace(probs)
    return xp.log(xp.clip(double(probs), SMALLEST, None))


def probs_as_logits(probs: Any) -> Any:
    """Their logarithms, with the same decisions: two probabilities that differ in the last bit mostly have one logarithm."""
    logits = log_probs(probs)
    if not tracing(logits) and bool((moved := logits.argmax(1) != probs.argmax(1)).any()):
        logits[moved] = keep_order(logits[moved], probs[moved])
    return logits


def as_logits(values: Any, probs: bool | None = False, name_row: Callable[[int], str] = by_index) -> Array:
    """Scores as (N, K) logits: the one definition of what logits and probabilities are taken as.

    Logits stay of the type they came in, which saves memory; the logarithms of probabilities are float64.
    """
    return probs_as_logits(check_probs(values, name_row=name_row)) if probs else check_logits(values, name_row)


def check_kind(probs: Any) -> bool | None:
    """What a user says of scores: probabilities (True), logits (False), or nothing (None)."""
    if probs is None or isinstance(probs, bool):
        return probs
    raise FedCalError(f"probs must be True or False (are the scores probabilities?), not {type(probs).__name__}")


def look_like_probs(logits: Array) -> bool:
    """Whether what was given as logits is never negative and every row adds up to one, or is one column within [0, 1]."""
    if not len(logits) or float(logits[0].min()) < 0:  # most logits show it in their first row
        return False
    if logits.shape[1] == 2 and not bool(logits[:, 0].any()):  # decision scores
        return len(logits) >= FEW and float(logits.min()) >= 0 and float(logits.max()) <= 1
    return _add_up(logits[:1]) and float(logits.min()) >= 0 and _add_up(logits)


def _add_up(rows: Array) -> bool:
    return bool((np.abs(rows.sum(1, dtype=float) - 1) < ROW_SUM_TOLERANCE).all())


def warn_of_probs() -> None:
    """Say, once, that logits look like probabilities."""
    warn_user(
        "the logits look like probabilities (none is negative, every row adds up to one): pass probs=True, "
        "or probs=False if they are logits"
    )


def warn_of_masks(logits: Array) -> None:
    """Warn of logits that mask classes: the same hugely negative number, several times.

    The scale of all logits is estimated from their squares, in which such numbers hide the others.
    """
    low = float(logits.min(initial=0.0))
    if low > -MASK or (count := int((masks := logits == low).sum())) < 2:
        return
    usual = float(np.median(np.abs(logits[~masks]))) if count < logits.size else 0.0
    if usual > 1 / MASK and -low > MASK * usual:  # the others are of a usual size
        warn_user(
            f"{count} logits are {low:g}, and half of the others are at most {usual:.3g} in size: if they mask classes, give "
            "them a value about 50 below the largest of the row"
        )


def warn_if_swapped(samples: Iterable[tuple[Array, Array]], classes: np.ndarray | None, *, named: bool = False) -> None:
    """Warn where the columns are probably in another order than the classes.

    Args:
        samples: each client's (N, K) logits and columns. Clients are compared within themselves: they may differ in
            both scores and label distribution.
        classes: the label of each column; None where labels are the columns' numbers.
        named: whether the order is a federation's or the user's; else they are the sorted labels or their numbers.
    """
    if classes is not None and classes.dtype.kind != "U":
        return
    agree, squares = np.zeros(()), np.zeros(())  # of each class's probability with its label
    for logits, columns in samples:
        if len(columns):
            every, k = -(-len(columns) // ENOUGH), logits.shape[1]
            p, columns = softmax(logits[::every], 1), columns[::every]  # not logits: no sample counts for too much
            p = p - p.mean(0)
            its = p[np.arange(len(p)), columns]
            share = np.bincount(columns, minlength=k) / len(p)
            agree = agree + np.bincount(columns, its, k) - share * p.sum(0)  # the sum is 0 but for rounding
            squares = squares + share**2 * (p**2).sum(0) + (1 - 2 * share) * np.bincount(columns, its**2, k)
    wrong = np.flatnonzero(agree < -SURE * np.sqrt(np.maximum(squares, 0)))  # of one class alone: 0 but for rounding
    if len(wrong) < 2:  # another order moves at least two
        return
    k, numbered = agree.size, classes is None
    names = np.arange(k).astype(str) if classes is None else classes
    first, second = names[wrong[:2]].tolist()
    if named or numbered or k > 2:
        source = "label 0 is the first" if numbered else "so the classes were named" if named else "labels were sorted"
        advice = "write the file's in this order" if named else "pass classes=[…] (--classes …) in that order"
        warn_user(
            f"scores of {first!r} are lower where the label is {first!r}, and so for {len(wrong) - 1} more of {k} classes: "
            f"the columns are taken for {listed(names)} ({source}); if your model's are in another order, {advice}"
        )
    else:
        warn_user(
            f"scores are lower where the label is {second!r}: labels were sorted, so that a single score, or the last "
            f"column, is that of {second!r}; if it is that of {first!r}, pass classes=[{second!r}, {first!r}] "
            f"(--classes {second},{first})"
        )


def warn_user(message: str) -> None:
    """Warn, once per line of the user's: that is the line that is shown."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and frame.f_code.co_filename.startswith(OURS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, FedCalWarning, stacklevel=level)


def check_labels(values: Any, n_samples: int, n_classes: int, classes: Any = None) -> Array:
    """The column of each label, as many as there are rows: integers in 0 … K−1, or any of `classes`, if given."""
    labels = as_labels(values)
    if len(labels) != n_samples:
        raise FedCalError(f"{len(labels)} labels for {n_samples} rows: give one for each row")
    if classes is not None:
        return to_columns(labels, classes)
    if labels.dtype.kind == "U":
        raise FedCalError(
            f"labels are strings, such as {str(labels[0])!r}: "
            "give `classes` (--classes at the command line), the label of each column"
        )
    if labels.dtype.kind == "f":
        whole = labels % 1 == 0
        if not whole.all():
            worst = float(labels[~whole][0])
            raise FedCalError(f"labels must be whole numbers: found {worst:g} ({int((~whole).sum())} such)")
    low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
    if low < 0 or high >= n_classes:
        worst = high if high >= n_classes else low
        raise FedCalError(
            f"labels must lie in 0..{n_classes - 1}: found {worst}; or name them by `classes` (--classes at the command line)"
        )
    return np.ascontiguousarray(labels, np.int64)


def check_measured(probs: Any, labels: Any, classes: Any = None) -> tuple[Array, Array]:
    """Probabilities and labels to measure: what every metric takes."""
    probs = check_probs(probs)
    return probs, check_labels_alone(labels, len(probs), probs.shape[1], classes)


def check_labels_alone(values: Any, n_samples: int, n_classes: int, classes: Any = None) -> Array:
    """The column of each label of a set that is seen by itself: to be measured, or at its site.

    Numbers are columns, whatever their values: labels that are missing from this set must not change what the others
    mean. Strings may be sorted, since a set that lacks one is refused.
    """
    labels = as_labels(values)
    if classes is not None or labels.dtype.kind == "U":
        classes = find_classes([labels], n_classes, classes)
    return check_labels(labels, n_samples, n_classes, classes=classes)


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
        raise FedCalError(f"{what} must be {WORDS[kind]}, not {value!r}")
    if kind is float and isinstance(value, int) and abs(value) > sys.float_info.max:
        raise FedCalError(f"{what} must be a number that a float can hold: give a smaller one")
    for rule, bound in rules.items():
        holds, words = RULES[rule]
        if not holds(value, bound):
            raise FedCalError(f"{what} must be {words} {bound}, not {value}")
