"""Labels of any kind (numbers, strings, booleans) as columns of the logits: the one rule, for arrays, clients and files.

A label is, in this order:

1. one of `classes`, where the user, a fitted scaler or its file says which label each column has;
2. a number: the number of its column;
3. one of the strings found over all clients, sorted, where they are exactly as many as the columns.

Anything else is refused: nobody can tell which column is meant. Other numbers are never sorted: 1, 2, 3 would mean the
columns 0, 1, 2, but without a sample of class 3 the columns 1 and 2. Only −1 and 1, of two classes, are taken for what they
are. (The estimator does sort, as all of scikit-learn's do.)
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fedcal.base.arrays import as_array
from fedcal.errors import FedCalError, counted, reason_of

NUMBERS = "biuf"  # NumPy's kinds: booleans, integers, floating point


def as_labels(values: Any, what: str = "labels") -> np.ndarray:
    """(N,) numbers or strings, none of them missing; also given as a single column (N, 1)."""
    refuse_masked(values, what)
    try:
        labels: Any = as_array(values)
        if labels.dtype.kind == "U" and isinstance(values, list | tuple):  # NumPy writes numbers among strings as text
            labels = np.asarray(values, dtype=object)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FedCalError(f"{what} must be an array, not {type(values).__name__}: {reason_of(error)}") from None
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise FedCalError(f"{what} must have shape (samples,), not {labels.shape}; one-hot labels need argmax first")
    if labels.dtype.kind == "O":
        try:
            np.unique(labels)  # fails where they have no order: numbers among strings, or missing ones
            labels = np.array(labels.tolist()) if len(labels) else np.zeros(0)
        except (TypeError, ValueError):
            raise FedCalError(f"{what} must be all numbers or all strings, none of them missing") from None
    if labels.dtype.kind == "S":
        labels = np.array([label.decode(errors="replace") for label in labels.tolist()], dtype=np.str_)
    elif labels.dtype.kind == "T":  # NumPy's strings of any length
        labels = np.array(labels.tolist(), dtype=np.str_)
    if labels.ndim != 1 or labels.dtype.kind not in f"{NUMBERS}U":
        raise FedCalError(f"{what} must be numbers or strings, not {labels.dtype}")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise FedCalError(f"{what} must be finite: found NaN or infinity")
    if labels.dtype.kind == "U" and (labels == "").any():
        raise FedCalError(f"{what} must not be empty: row {int((labels == '').argmax())} has none")
    return labels


def refuse_masked(values: Any, what: str) -> None:
    """A mask says that values are missing; nothing here could leave them out."""
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise FedCalError(f"{what} have masked values: leave those samples out, or fill them")


def check_classes(classes: Any, n_classes: int) -> np.ndarray:
    """The label of each column, as the user gave them."""
    try:
        flat = np.ndim(classes) == 1
    except ValueError:  # there are lists in the list
        flat = False
    given = as_labels(classes, "classes") if flat else np.zeros(0)
    if flat and given.dtype.kind != "b" and any(isinstance(label, bool | np.bool_) for label in classes):
        raise FedCalError(f"classes have True and False among numbers, {reprlib.repr(classes)}: use one kind of labels")
    if len(given) == len(np.unique(given)) > n_classes:
        raise FedCalError(
            f"{counted(n_classes, 'column')} for {len(given)} classes ({listed(given)}): give each class its column"
        )
    if len(given) != n_classes or len(np.unique(given)) != n_classes:
        raise FedCalError(
            f"classes must be a list of {n_classes} different labels, as many as there are columns, "
            f"not {reprlib.repr(classes)}"
        )
    return given


def find_classes(labels: Iterable[np.ndarray], n_classes: int, classes: Any = None) -> np.ndarray | None:
    """The label of each column; None where labels are the columns' numbers.

    Args:
        labels: each client's, from `as_labels`.
        n_classes: the number of columns.
        classes: what the user says the columns' labels are.
    """
    if classes is not None:
        return check_classes(classes, n_classes)
    filled = [own for own in labels if len(own)]
    if all(_are_columns(own, n_classes) for own in filled):
        return None
    found = np.unique(np.concatenate([np.unique(own) for own in filled]))
    if found.dtype.kind == "U":
        if len(found) != n_classes:
            raise FedCalError(
                f"{counted(len(found), 'different label')} for {n_classes} columns ({listed(found)}): "
                f"use 0..{n_classes - 1}, or give `classes` (--classes at the command line), the label of each column"
            )
        if all(label.isdecimal() for label in found) and sorted(found, key=int) != found.tolist():
            raise FedCalError("labels are numbers written as text, whose order is unclear: give `classes`")
        return found
    if n_classes == 2 and found.tolist() == [-1, 1]:  # as of a decision function; neither can be another column
        return found
    return None  # `check_labels` names the one that is wrong


def listed(found: np.ndarray) -> str:
    """The first and the last few labels: what is not meant to be one, such as NA, is often among them."""
    names = [name[:20] for name in found.tolist()]
    return ", ".join(names if len(names) <= 6 else [*names[:3], "…", *names[-3:]])


def _are_columns(labels: np.ndarray, n_classes: int) -> bool:
    if labels.dtype.kind not in NUMBERS:
        return False
    whole = labels.dtype.kind != "f" or bool((labels % 1 == 0).all())
    return whole and labels.min() >= 0 and labels.max() < n_classes


def to_columns(labels: np.ndarray, classes: Sequence[Any] | np.ndarray) -> np.ndarray:
    """The column of each label. The text of a number stands for it, as in files: "3" for 3, 3.0 for "3"."""
    if not len(labels):
        return np.zeros(0, dtype=np.int64)
    known = {label: column for column, label in enumerate(np.asarray(classes).tolist())}
    written = {text: column for label, column in known.items() for text in _texts(label)}
    found, inverse = np.unique(labels, return_inverse=True)
    columns = []
    for label in found.tolist():
        column = known.get(label)
        if column is None:
            column = next((written[text] for text in _texts(label) if text in written), None)
        if column is None:
            raise FedCalError(f"unknown label {label!r}: the classes are {', '.join(map(str, list(known)[:20]))}")
        columns.append(column)
    return np.array(columns, dtype=np.int64)[inverse]


def rows_of_each(values: np.ndarray) -> dict[Any, np.ndarray]:
    """The rows of each different value, sorted by value."""
    found, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    rows = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts))
    return dict(zip(found.tolist(), rows, strict=False))  # after the last value there are no rows


def _texts(label: Any) -> list[str]:
    """How a label may be written."""
    whole = isinstance(label, bool | int | float) and label == int(label)
    return [str(label), str(int(label))] if whole else [str(label)]
