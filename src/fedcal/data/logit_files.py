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
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedcal.base.checks import as_logits, check_labels, check_labels_alone, look_like_probs
from fedcal.base.labels import as_labels, find_classes
from fedcal.base.store import write_bytes
from fedcal.data.columns import read_columns
from fedcal.errors import FedCalError, unknown

Kind = Literal["logits", "probs"]
LABELS = ("labels", "label")
SITES = ("site", "sites", "client", "clients")
NOT_SCORES = (*LABELS, *SITES, "predictions", "prediction")
EITHER = "score"  # a score may be a probability, if the user says so
KINDS: dict[str, Kind] = {"logits": "logits", "logit": "logits", EITHER: "logits"}
KINDS |= dict.fromkeys(("probs", "prob", "p", "probabilities", "probability"), "probs")
COLUMN = re.compile(rf"({'|'.join(KINDS)})_(\d+)")


class Content(NamedTuple):
    """A file's arrays as they are, and the name of the one with the scores."""

    name: str
    scores: Any
    labels: Any
    sites: Any


@dataclass(frozen=True)
class Rows:
    """A file's samples."""

    logits: Tensor  # (N, K)
    labels: np.ndarray | None  # (N,) numbers or strings, where the file has them
    sites: np.ndarray | None  # (N,) names
    probs: bool  # whether it held probabilities

    def by_site(self, default: str) -> dict[str, Any]:
        """Each site's rows; all of them are of `default` where the file does not say."""
        if self.sites is None:
            return {default: slice(None)}
        names, inverse, counts = np.unique(self.sites, return_inverse=True, return_counts=True)
        rows = np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
        return dict(zip(names.tolist(), rows, strict=True))


@dataclass(frozen=True)
class Sites:
    """Labelled clients, from any number of files."""

    samples: dict[str, tuple[Tensor, Tensor]]  # logits and columns by name, sorted
    classes: np.ndarray | None  # the label of each column; None where labels are the columns' numbers
    probs: bool  # whether all files held probabilities
    groups: dict[str, dict[str, np.ndarray]]  # by site, the further columns that were asked for


# --- what the files hold ----------------------------------------------------------------------------------------------


def read_rows(path: Path, kind: Kind | None = None, others: Sequence[str] = ()) -> Rows:
    """Checked samples. `kind` says what arrays of other names are, or which of two to take; `others` are no scores."""
    readers: dict[str, Callable[[Path, Kind | None, Sequence[str]], Content]] = {
        ".npz": _npz,
        ".csv": _csv,
        ".parquet": _parquet,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FedCalError(
            f"{path}: a site's file is one of {', '.join(readers)}, not {path.suffix or 'without ending'!r}"
        )
    try:
        held = reader(path, kind, others)
        meant = kind or KINDS[held.name]
        logits = _as_logits(held.scores, meant, sure=kind is not None)
        if not len(logits):
            raise FedCalError("no samples: leave this site out")
        labels, sites = _column(held.labels, "labels", len(logits)), _column(held.sites, "sites", len(logits))
        return Rows(logits, labels, None if sites is None else sites.astype(np.str_), meant == "probs")
    except FedCalError as error:
        raise FedCalError(f"{path}: {error}") from None


def read_sites(
    paths: Sequence[Path], kind: Kind | None = None, classes: Any = None, columns: Sequence[str] = ()
) -> Sites:
    """Labelled sites, all with as many classes.

    Rows that a `site` column gives one name are one client, whichever files they are in. A name that only a file's name
    suggests must be the only one of its kind: two such files are more likely a mistake. `columns` are further ones to read,
    such as subgroups.
    """
    files = [(path, read_rows(path, kind, columns)) for path in paths]
    width = files[0][1].logits.shape[1]
    for path, rows in files:
        if rows.logits.shape[1] != width:
            raise FedCalError(
                f"{path}: {rows.logits.shape[1]} classes, where {paths[0]} has {width}: give all classes in every file"
            )
    found = find_classes((_labelled(path, rows) for path, rows in files), width, classes)
    parts: dict[str, list[tuple[Tensor, Tensor]]] = {}
    by_file: set[str] = set()
    groups: dict[str, dict[str, list[np.ndarray]]] = {}
    for path, rows in sorted(files, key=lambda file: file[0]):  # so that the order of arguments changes nothing
        labels, further = _columns(path, rows, found), read_columns(path, columns)
        for name, chosen in rows.by_site(path.stem).items():
            if name in parts and (rows.sites is None or name in by_file):
                raise FedCalError(f"{path}: another file has a site {name!r} too: rename one, or add a column `site`")
            if rows.sites is None:
                by_file.add(name)
            parts.setdefault(name, []).append((rows.logits[chosen], labels[chosen]))
            for column, values in further.items():
                values = _column(values, column, len(rows.logits))
                groups.setdefault(name, {}).setdefault(column, []).append(np.asarray(values)[chosen])
    samples = {name: _joined(some) for name, some in sorted(parts.items())}
    joined = {name: {column: np.concatenate(some) for column, some in of.items()} for name, of in groups.items()}
    return Sites(samples, found, all(rows.probs for _, rows in files), joined)


def read_site(
    path: Path, kind: Kind | None = None, classes: Any = None, name: str | None = None
) -> tuple[str, Tensor, Tensor | None, bool]:
    """One site's name and logits, its labels as columns, if it has any, and whether its file held probabilities.

    `name` chooses the site where there are several.
    """
    rows = read_rows(path, kind)
    labels = None if rows.labels is None else _columns(path, rows, classes, check_labels_alone)
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


def _columns(path: Path, rows: Rows, classes: Any, check: Callable[..., Tensor] = check_labels) -> Tensor:
    """The labels as columns."""
    try:
        return check(_labelled(path, rows), len(rows.logits), rows.logits.shape[1], classes=classes).clone()
    except FedCalError as error:
        raise FedCalError(f"{path}: {error}") from None


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One client's samples from all files that hold some."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat([logits for logits, _ in parts]), torch.cat([labels for _, labels in parts])


def _column(values: Any, what: str, n: int) -> np.ndarray | None:
    """Labels or sites, as many as there are rows; whole numbers as integers, whichever way the file has them."""
    if values is None:
        return None
    column = as_labels(values, what)
    if len(column) != n:
        raise FedCalError(f"{len(column)} {what} for {n} rows: they must be as many")
    whole = column.dtype.kind == "f" and bool((column % 1 == 0).all())
    return column.astype(np.int64) if whole else column


def _as_logits(scores: Any, kind: Kind, sure: bool) -> Tensor:
    """Logits, in the type they came in; those that read as probabilities are refused unless the user is sure."""
    try:
        logits = as_logits(scores, kind == "probs")
    except FedCalError as error:
        raise FedCalError(str(error).replace("pass softmax(logits)", "name them logits")) from None
    if kind == "logits" and not sure and look_like_probs(logits):
        raise FedCalError("logits look like probabilities (every row sums to 1): name them probs, or say --logits")
    return logits


def _choose(names: Iterable[str], kind: Kind | None, others: Sequence[str] = ()) -> str:
    """The one array that holds the scores."""
    names = [name for name in names if name not in (*NOT_SCORES, *others)]
    known = [name for name in names if name in KINDS]
    fitting = (
        [name for name in known if kind in (None, KINDS[name]) or name == EITHER] if known else names if kind else []
    )
    if len(fitting) == 1:
        return fitting[0]
    found = ", ".join(names) or "nothing else"
    if len(fitting) > 1:
        raise FedCalError(f"which of {found} is meant? Leave one, or say --logits or --probs")
    if known:
        raise FedCalError(f"--{kind} is said, but the file has {found}: rename that, or leave the option out")
    raise FedCalError(f"neither logits nor probs, but {found}: rename that, or say --logits or --probs")


def _one_of(names: Sequence[str], found: Iterable[str]) -> str | None:
    """The one of several names for the same thing that a file uses."""
    held = [name for name in found if name in names]
    if len(held) > 1:
        raise FedCalError(f"{' and '.join(held)} are one thing: leave one of them")
    return held[0] if held else None


def _npz(path: Path, kind: Kind | None, others: Sequence[str] = ()) -> Content:
    try:
        with path.open("rb") as file:
            held = np.load(file, allow_pickle=False)
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise FedCalError("a single array, not an .npz: np.savez(path, logits=…, labels=…)")
            name = _choose(held.files, kind, others)
            labels, sites = _one_of(LABELS, held.files), _one_of(SITES, held.files)
            return Content(name, held[name], held[labels] if labels else None, held[sites] if sites else None)
    except FileNotFoundError:
        raise FedCalError("no such file") from None
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FedCalError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FedCalError(f"damaged, or no .npz of plain arrays ({reason})") from None


# --- tables -----------------------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """Which columns of a table to take."""

    name: str
    scores: list[int]  # in the order of classes
    label: int | None
    site: int | None


def _plan(header: list[str], kind: Kind | None, further: Sequence[str] = ()) -> Plan:
    at: dict[str, dict[int, int]] = {}
    others = [i for i, name in enumerate(header) if name not in (*NOT_SCORES, *further)]
    if len(set(header)) < len(header):
        raise FedCalError("two columns have one name: name them apart")
    for i in others:
        if match := COLUMN.fullmatch(header[i]):
            at.setdefault(match[1], {})[int(match[2])] = i
    if not at:  # a single column of two classes
        at = {header[i]: {0: i} for i in others if header[i] in KINDS}
    if not at and kind is None:
        raise FedCalError(
            f"columns {', '.join(header) or 'none'}: name them logit_0 … or p_0 …, or say --logits or --probs"
        )
    name = _choose(at or ["columns"], kind)
    columns = at.get(name, dict(enumerate(others)))
    if missing := [k for k in range(len(columns)) if k not in columns]:
        raise FedCalError(f"column {name}_{missing[0]} is missing: classes are numbered from 0")
    label, site = (_one_of(names, header) for names in (LABELS, SITES))
    return Plan(
        name,
        [columns[k] for k in range(len(columns))],
        None if label is None else header.index(label),
        None if site is None else header.index(site),
    )


def _csv(path: Path, kind: Kind | None, others: Sequence[str] = ()) -> Content:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            header = [name.strip() for name in next(csv.reader([file.readline()]), [])]
            plan, start = _plan(header, kind, others), file.tell()
            warnings.simplefilter("ignore")  # of a file without rows

            def read(columns: list[int], kind: Any = float) -> np.ndarray:
                file.seek(start)
                table = np.loadtxt(file, kind, delimiter=",", quotechar='"', usecols=columns, ndmin=2, comments=None)
                return table.reshape(-1, len(columns))

            def words(column: int | None) -> Any:
                return None if column is None else np.char.strip(read([column], str)[:, 0])

            scores, labels = _numbers(read, words, plan)
            return Content(plan.name, scores, labels, words(plan.site))
    except FileNotFoundError:
        raise FedCalError("no such file") from None
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, FedCalError):
            raise
        raise FedCalError(f"cannot be read as CSV ({str(error).splitlines()[0]})") from None


def _numbers(read: Callable[[list[int]], np.ndarray], words: Callable[[int], Any], plan: Plan) -> tuple[Any, Any]:
    """Scores and labels: in one go where labels are numbers, which is fast, else labels as words."""
    if plan.label is None:
        return read(plan.scores), None
    try:
        table = read([*plan.scores, plan.label])
        return table[:, :-1], table[:, -1]
    except ValueError:
        return read(plan.scores), words(plan.label)


def _parquet(path: Path, kind: Kind | None, others: Sequence[str] = ()) -> Content:
    arrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        header = list(file.schema_arrow.names)
        plan = _plan(header, kind, others)
        wanted = [*plan.scores, *(i for i in (plan.label, plan.site) if i is not None)]
        table = file.read(columns=[header[i] for i in wanted])

        def column(i: int | None) -> Any:
            return None if i is None else table.column(header[i]).to_numpy()

        scores = np.stack([column(i) for i in plan.scores], axis=1)
        return Content(plan.name, scores, column(plan.label), column(plan.site))
    except FileNotFoundError:
        raise FedCalError("no such file") from None
    except (OSError, arrow.lib.ArrowException) as error:
        raise FedCalError(f"cannot be read as Parquet ({str(error).splitlines()[0]})") from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow  # type: ignore[import-not-found, unused-ignore]
        import pyarrow.parquet  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise FedCalError("Parquet needs pyarrow: pip install 'fedcal[parquet]'") from None
    return pyarrow, pyarrow.parquet


# --- what comes out ---------------------------------------------------------------------------------------------------


def check_output(path: Path) -> None:
    """Whether `write_probs` can write there, asked before any work is done."""
    if path.suffix.lower() not in (".npz", ".csv", ".parquet"):
        raise FedCalError(f"{path}: probabilities are written as .npz, .csv or .parquet, not {path.suffix!r}")
    if path.suffix.lower() == ".parquet":
        _pyarrow()


def write_probs(path: Path, probs: Tensor, classes: Sequence[Any] = (), like: Rows | None = None) -> None:
    """Probabilities and predictions, in the form that the path's ending says; `read_rows` reads it back.

    Predictions are the columns' labels where they are known, else their numbers. Labels and sites are those of `like`.
    """
    check_output(path)
    p, top = probs.numpy(), probs.argmax(dim=1).numpy()
    said = {"prediction": np.asarray(classes)[top] if len(classes) else top}
    if like is not None and like.labels is not None:
        said["label"] = like.labels
    if like is not None and like.sites is not None:
        said["site"] = like.sites
    columns = {f"p_{k}": p[:, k] for k in range(p.shape[1])} | said
    raw = io.BytesIO()
    if path.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {"probs": p, **{f"{name}s": values for name, values in said.items()}}
        np.savez(raw, **arrays)
    elif path.suffix.lower() == ".parquet":
        arrow, parquet = _pyarrow()
        parquet.write_table(arrow.table({name: arrow.array(values.tolist()) for name, values in columns.items()}), raw)
    else:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        raw.write(text.getvalue().encode())
    write_bytes(path, raw.getvalue())
