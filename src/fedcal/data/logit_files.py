"""Files of logits or probabilities, with labels and sites: .npz, .csv or .parquet. Nothing that is read here can run code.

What an array or a column holds follows from its name, or from what the user says of it, never from its values:

    .npz              logits or probs, (N, K) or (N,) of two classes; labels (N,); sites (N,)
    .csv, .parquet    columns logit_0 … or p_0 … (also prob_0 …), one per class, or a single logit, score or p;
                      label; site

Probabilities are taken as logits log p, a single column as that of class 1. Labels are numbers or strings (labels.py).
`site` (also `client`) splits a file into clients; without it, the file is one client, named by the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.checks import (
    as_logits,
    by_index,
    check_labels,
    check_labels_alone,
    check_shown,
    look_like_probs,
    warn_if_swapped,
    warn_of_masks,
)
from fedcal.base.labels import as_labels, find_classes, rows_of_each
from fedcal.base.store import MOST_BYTES, write_bytes
from fedcal.data.columns import KINDS, UNNAMED, Kind
from fedcal.data.readers import SUFFIXES, Content, below_header, pyarrow, read_content
from fedcal.errors import FedCalError, error_context, unknown

LOGITS, PROBS = "logits (columns logit_0 …)", "probs (columns p_0 …; two classes: p)"


@dataclass(frozen=True)
class Rows:
    """A file's samples."""

    logits: Array  # (N, K)
    labels: np.ndarray | None  # (N,) numbers or strings, where the file has them
    sites: np.ndarray | None  # (N,) names
    probs: bool  # whether it held probabilities
    groups: dict[str, np.ndarray] = field(default_factory=dict)  # (N,) each: the further columns that were asked for

    def by_site(self, default: str) -> dict[str, Any]:
        """Each site's rows; all of them are of `default` where the file does not say."""
        if self.sites is None:
            return {check_shown(default): slice(None)}
        return {check_shown(name): rows for name, rows in rows_of_each(self.sites).items()}


@dataclass(frozen=True)
class Sites:
    """Labelled clients, from any number of files."""

    samples: dict[str, tuple[Array, Array]]  # logits and columns by name, sorted
    classes: np.ndarray | None  # the label of each column; None where labels are the columns' numbers
    probs: bool  # whether all files held probabilities
    groups: dict[str, dict[str, np.ndarray]]  # by site, the further columns that were asked for


# --- what the files hold ----------------------------------------------------------------------------------------------


def read_rows(path: Path, kind: Kind | None = None, most_bytes: int = MOST_BYTES, columns: Sequence[str] = ()) -> Rows:
    """Checked samples.

    Args:
        path: the file.
        kind: what arrays of other names are, or which of two to take.
        most_bytes: that the file's arrays may take in memory.
        columns: further ones to read, such as subgroups.
    """
    with error_context(path):
        held = read_content(path, kind, most_bytes, columns)
        meant = kind or KINDS[held.name]
        name_row = below_header if path.suffix.lower() == ".csv" else by_index
        logits = _as_logits(held, meant, kind is not None, name_row)
        if not len(logits):
            raise FedCalError("no samples: leave this site out")
        labels, sites = _column(held.labels, "labels", len(logits)), _column(held.sites, "sites", len(logits))
        groups = {name: np.asarray(_column(values, name, len(logits))) for name, values in held.others.items()}
        return Rows(logits, labels, None if sites is None else sites.astype(np.str_), meant == "probs", groups)


def _twice(paths: Sequence[Path]) -> Path:
    """The first file that was named before."""
    seen = [path.resolve() for path in paths]
    return next(path for i, path in enumerate(paths) if seen[i] in seen[:i])


def read_sites(
    paths: Sequence[Path],
    kind: Kind | None = None,
    classes: Any = None,
    most_bytes: int = MOST_BYTES,
    columns: Sequence[str] = (),
    on_file: Callable[[int], None] = lambda number: None,
) -> Sites:
    """Labelled sites, all with as many classes.

    Rows that a `site` column gives one name are one client, whichever files they are in. A name that only a file's name
    suggests must be the only one of its kind: two such files are more likely a mistake. `columns` are further ones to read,
    such as subgroups. `on_file` is called after each file, with how many are read.
    """
    files: list[tuple[Path, Rows]] = []
    if len({path.resolve() for path in paths}) < len(paths):
        raise FedCalError(f"{_twice(paths)}: given twice: name each file once")
    for path in paths:
        files.append((path, read_rows(path, kind, most_bytes, columns)))
        on_file(len(files))
    width = files[0][1].logits.shape[1]
    for path, rows in files:
        if rows.logits.shape[1] != width:
            raise FedCalError(
                f"{path}: {rows.logits.shape[1]} classes, where {paths[0]} has {width}: give all classes in every file"
            )
    found = find_classes((_labelled(path, rows) for path, rows in files), width, classes)
    parts: dict[str, list[tuple[Array, Array]]] = {}
    groups: dict[str, dict[str, list[np.ndarray]]] = {}
    by_file: set[str] = set()
    for path, rows in sorted(files, key=lambda file: file[0]):  # so that the order of arguments changes nothing
        labels = _columns(path, rows, found)
        for name, chosen in rows.by_site(path.stem).items():
            if name in parts and (rows.sites is None or name in by_file):
                raise FedCalError(f"{path}: another file has a site {name!r} too: rename one, or add a column `site`")
            if rows.sites is None:
                by_file.add(name)
            parts.setdefault(name, []).append((rows.logits[chosen], labels[chosen]))
            for column, values in rows.groups.items():
                groups.setdefault(name, {}).setdefault(column, []).append(values[chosen])
    samples = {name: _joined(some) for name, some in sorted(parts.items())}
    if classes is None:
        warn_if_swapped(samples.values(), found)
    joined = {name: {column: np.concatenate(some) for column, some in of.items()} for name, of in groups.items()}
    return Sites(samples, found, all(rows.probs for _, rows in files), joined)


def read_site(
    path: Path, kind: Kind | None = None, classes: Any = None, name: str | None = None, most_bytes: int = MOST_BYTES
) -> tuple[str, Array, Array | None, bool]:
    """One site's name and logits, its labels as columns, if it has any, and whether its file held probabilities.

    `name` chooses the site where there are several.
    """
    rows = read_rows(path, kind, most_bytes)
    labels = None if rows.labels is None else _columns(path, rows, classes, check_labels_alone)
    if labels is not None and classes is not None:
        warn_if_swapped([(rows.logits, labels)], np.asarray(classes), named=True)
    elif labels is not None:
        found = np.unique(_labelled(path, rows))
        words = found.dtype.kind == "U"
        warn_if_swapped([(rows.logits, labels)], found if words else None, named=not words)
    sites = rows.by_site(name or path.stem)
    if name is not None and name not in sites:
        raise FedCalError(f"{path}: {unknown('site', name, sites)}")
    if name is None and len(sites) > 1:
        raise FedCalError(f"{path}: {len(sites)} sites: choose one with --name, such as --name {next(iter(sites))}")
    name, chosen = (name, sites[name]) if name is not None else next(iter(sites.items()))
    return name, rows.logits[chosen], None if labels is None else labels[chosen], rows.probs


def _labelled(path: Path, rows: Rows) -> np.ndarray:
    if rows.labels is None:
        raise FedCalError(f"{path}: no labels: add an array `labels`, or a column `label`")
    return rows.labels


def _columns(path: Path, rows: Rows, classes: Any, check: Callable[..., Array] = check_labels) -> Array:
    """The labels as columns."""
    with error_context(path):
        return check(_labelled(path, rows), len(rows.logits), rows.logits.shape[1], classes=classes).copy()


def _joined(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """One client's samples from all files that hold some."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([logits for logits, _ in parts]), np.concatenate([labels for _, labels in parts])


def _column(values: Any, what: str, n: int) -> np.ndarray | None:
    """Labels or sites, as many as there are rows; whole numbers as integers, whichever way the file has them."""
    if values is None:
        return None
    column = as_labels(values, what)
    if len(column) != n:
        raise FedCalError(f"{len(column)} {what} for {n} rows: give one for each row")
    whole = column.dtype.kind == "f" and bool((column % 1 == 0).all())
    return column.astype(np.int64) if whole else column


def _as_logits(held: Content, kind: Kind, sure: bool, name_row: Callable[[int], str]) -> Array:
    """Logits, in the type they came in; those that read as probabilities are refused unless the user is sure."""
    try:
        logits = as_logits(held.scores, kind == "probs", name_row)
    except FedCalError as error:
        instead = f"name them {LOGITS}"
        if held.name == UNNAMED:
            instead = "pass --logits. Every column but the label and the site is taken as a class: leave out all others"
        raise FedCalError(str(error).replace("pass softmax(logits)", instead)) from None
    if kind == "logits" and not sure and look_like_probs(logits):
        raise FedCalError(f"logits look like probabilities (every row sums to 1): name them {PROBS}, or pass --logits")
    warn_of_masks(logits)
    return logits


# --- what comes out ---------------------------------------------------------------------------------------------------


def check_output(path: Path) -> None:
    """Whether `write_probs` can write there, asked before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        raise FedCalError(f"{path}: probabilities are written as .npz, .csv or .parquet, not {path.suffix!r}")
    if path.suffix.lower() == ".parquet":
        pyarrow()


def write_probs(
    path: Path, probs: Array, classes: Sequence[Any] = (), like: Rows | None = None, sets: Array | None = None
) -> None:
    """Probabilities and predictions, in the form that the path's ending says; `read_rows` reads it back.

    Predictions are the columns' labels where they are known, else their numbers. Labels and sites are those of `like`.
    `sets` are booleans like `probs`: an array `sets` in .npz, else a column `set` that lists the classes (in .csv with | in
    between).
    """
    check_output(path)
    if not bool(np.isfinite(probs).all()):
        raise FedCalError("the probabilities are not finite: is the scaler one of this model?")
    names = list(classes) if len(classes) else list(range(probs.shape[1]))
    said = {"prediction": np.asarray(names)[probs.argmax(1)]}
    if like is not None and like.labels is not None:
        said["label"] = like.labels
    if like is not None and like.sites is not None:
        said["site"] = like.sites
    raw = io.BytesIO()
    if path.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {"probs": probs, **{f"{name}s": values for name, values in said.items()}}
        arrays |= {} if sets is None else {"sets": sets}
        np.savez(raw, **arrays)
    else:
        columns = {f"p_{k}": probs[:, k] for k in range(probs.shape[1])} | said
        table: dict[str, list[Any]] = {name: values.tolist() for name, values in columns.items()}
        if sets is not None:
            table["set"] = [[names[k] for k in np.flatnonzero(row)] for row in sets]
        raw.write(_parquet(table) if path.suffix.lower() == ".parquet" else _csv(table))
    write_bytes(path, raw.getvalue(), private=True)


def _parquet(table: Mapping[str, list[Any]]) -> bytes:
    arrow, parquet = pyarrow()
    raw = io.BytesIO()
    parquet.write_table(arrow.table({name: arrow.array(values) for name, values in table.items()}), raw)
    return raw.getvalue()


def _csv(table: Mapping[str, list[Any]]) -> bytes:
    columns = [
        ["|".join(map(str, members)) for members in values] if name == "set" else values
        for name, values in table.items()
    ]
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(table)
    rows.writerows(zip(*columns, strict=True))
    return text.getvalue().encode()
