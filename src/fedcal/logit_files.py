"""A site's file: logits or probabilities, and labels, as .npz, .csv or .parquet. Nothing that is read here can run code.

What an array or a column holds follows from its name, or from what the user says of it, never from its values:

    .npz              logits (N, K) or probs (N, K); labels (N,)
    .csv, .parquet    columns logit_0 … or p_0 … (also prob_0 …), one a class; label

Probabilities are taken as logits log p. A site is named by its file.
"""

from __future__ import annotations

import csv
import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedcal.checks import check_labels, check_logits, check_probs
from fedcal.errors import FedCalError
from fedcal.store import write_bytes

Kind = Literal["logits", "probs"]
Site = tuple[Tensor, Tensor | None]  # logits (N, K) in float64 and labels (N,), where the file has them
LABELS = ("labels", "label")
NOT_SCORES = (*LABELS, "predictions", "prediction")
KINDS: dict[str, Kind] = {"logits": "logits", "logit": "logits"}
KINDS |= dict.fromkeys(("probs", "prob", "p", "probabilities", "probability"), "probs")
COLUMN = re.compile(rf"({'|'.join(KINDS)})_(\d+)")
SMALLEST = torch.finfo(torch.float32).tiny  # a probability of 0 counts as this


# --- what the files hold ----------------------------------------------------------------------------------------------


def read_site(path: Path, kind: Kind | None = None) -> Site:
    """Checked logits and labels. `kind` says what arrays of other names are, or which of two to take."""
    readers: dict[str, Callable[[Path, Kind | None], Any]] = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise FedCalError(
            f"{path}: a site's file is one of {', '.join(readers)}, not {path.suffix or 'without ending'!r}"
        )
    try:
        name, scores, labels = reader(path, kind)
        logits = _as_logits(scores, KINDS.get(name, kind or "logits"), sure=kind is not None)
        if not len(logits):
            raise FedCalError("no samples: leave this site out")
        return logits, None if labels is None else check_labels(labels, len(logits), logits.shape[1]).clone()
    except FedCalError as error:
        raise FedCalError(f"{path}: {error}") from None


def read_sites(paths: Sequence[Path], kind: Kind | None = None) -> dict[str, tuple[Tensor, Tensor]]:
    """Labelled sites by name, sorted, all with as many classes."""
    sites: dict[str, tuple[Tensor, Tensor]] = {}
    for path in paths:
        if path.stem in sites:
            raise FedCalError(f"{path}: another file is named {path.stem!r} too: a site is named by its file")
        sites[path.stem] = read_labelled(path, kind)
        width, first = sites[path.stem][0].shape[1], next(iter(sites.values()))[0].shape[1]
        if width != first:
            raise FedCalError(f"{path}: {width} classes, where {paths[0]} has {first}: give all classes in every file")
    return dict(sorted(sites.items()))


def read_labelled(path: Path, kind: Kind | None = None) -> tuple[Tensor, Tensor]:
    """A site that must have labels."""
    logits, labels = read_site(path, kind)
    if labels is None:
        raise FedCalError(f"{path}: no labels: add an array `labels`, or a column `label`")
    return logits, labels


def _as_logits(scores: Any, kind: Kind, sure: bool) -> Tensor:
    """Fresh float64 logits; what is called logits but reads as probabilities is refused unless the user is sure."""
    if kind == "probs":
        try:
            return check_probs(scores).double().clamp_min(SMALLEST).log()
        except FedCalError as error:
            raise FedCalError(str(error).replace("pass softmax(logits)", "name them logits")) from None
    logits = check_logits(scores).double().clone()
    low, sums = float(logits.min()) if len(logits) else -1.0, logits.sum(dim=1)
    if not sure and low >= 0 and bool(((sums - 1).abs() < 1e-3).all()):
        raise FedCalError("logits look like probabilities (every row sums to 1): name them probs, or say --logits")
    return logits


def _choose(names: Iterable[str], kind: Kind | None) -> str:
    """The one array that holds the scores."""
    names = [name for name in names if name not in NOT_SCORES]
    known = [name for name in names if name in KINDS]
    fitting = [name for name in known if kind in (None, KINDS[name])] if known else names if kind else []
    if len(fitting) == 1:
        return fitting[0]
    found = ", ".join(names) or "nothing else"
    if len(fitting) > 1:
        raise FedCalError(f"which of {found} is meant? Leave one, or say --logits or --probs")
    if known:
        raise FedCalError(f"--{kind} is said, but the file has {found}: rename that, or leave the option out")
    raise FedCalError(f"neither logits nor probs, but {found}: rename that, or say --logits or --probs")


def _npz(path: Path, kind: Kind | None) -> tuple[str, Any, Any]:
    try:
        with path.open("rb") as file:
            held = np.load(file, allow_pickle=False)
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise FedCalError("a single array, not an .npz: np.savez(path, logits=…, labels=…)")
            name = _choose(held.files, kind)
            labels = [key for key in LABELS if key in held.files]
            return name, held[name], held[labels[0]] if labels else None
    except FileNotFoundError:
        raise FedCalError("no such file") from None
    except (OSError, ValueError, EOFError, KeyError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FedCalError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FedCalError(f"damaged, or no .npz of plain arrays ({reason})") from None


# --- tables -----------------------------------------------------------------------------------------------------------


def _plan(header: list[str], kind: Kind | None) -> tuple[str, list[int], int | None]:
    """Which columns hold the scores, in the order of classes, and which the labels."""
    at: dict[str, dict[int, int]] = {}
    others = [i for i, name in enumerate(header) if name not in NOT_SCORES]
    if len(set(header)) < len(header):
        raise FedCalError("two columns have one name: name them apart")
    for i in others:
        if match := COLUMN.fullmatch(header[i]):
            at.setdefault(match[1], {})[int(match[2])] = i
    labels = [i for i, name in enumerate(header) if name in LABELS]
    if not at and kind is None:
        raise FedCalError(
            f"columns {', '.join(header) or 'none'}: name them logit_0 … or p_0 …, or say --logits or --probs"
        )
    name = _choose(at or ["columns"], kind)
    columns = at.get(name, dict(enumerate(others)))
    if missing := [k for k in range(len(columns)) if k not in columns]:
        raise FedCalError(f"column {name}_{missing[0]} is missing: classes are numbered from 0")
    return name, [columns[k] for k in range(len(columns))], labels[0] if labels else None


def _csv(path: Path, kind: Kind | None) -> tuple[str, Any, Any]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, warnings.catch_warnings():
            header = [name.strip() for name in next(csv.reader([file.readline()]), [])]
            name, columns, label = _plan(header, kind)
            warnings.simplefilter("ignore")  # of a file without rows
            used = columns if label is None else [*columns, label]
            table = np.loadtxt(file, delimiter=",", quotechar='"', usecols=used, ndmin=2, comments=None)
    except FileNotFoundError:
        raise FedCalError("no such file") from None
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, FedCalError):
            raise
        raise FedCalError(f"cannot be read as CSV ({str(error).splitlines()[0]})") from None
    table = table.reshape(-1, len(used))
    return name, table[:, : len(columns)], None if label is None else table[:, -1]


def _parquet(path: Path, kind: Kind | None) -> tuple[str, Any, Any]:
    arrow, parquet = _pyarrow()
    try:
        file = parquet.ParquetFile(path)
        header = list(file.schema_arrow.names)
        name, columns, label = _plan(header, kind)
        table = file.read(columns=[header[i] for i in columns] + ([header[label]] if label is not None else []))
        taken = [table.column(header[i]).to_numpy() for i in columns]
        labels = None if label is None else table.column(header[label]).to_numpy()
    except FileNotFoundError:
        raise FedCalError("no such file") from None
    except (OSError, arrow.lib.ArrowException) as error:
        raise FedCalError(f"cannot be read as Parquet ({str(error).splitlines()[0]})") from None
    return name, np.stack(taken, axis=1), labels


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


def write_probs(path: Path, probs: Tensor, labels: Tensor | None) -> None:
    """Probabilities, predictions and labels, in the form that the path's ending says; `read_site` reads it back."""
    check_output(path)
    p, top = probs.numpy(), probs.argmax(dim=1).numpy()
    truth = {} if labels is None else {"label": labels.numpy()}
    columns = {f"p_{k}": p[:, k] for k in range(p.shape[1])} | {"prediction": top} | truth
    raw = io.BytesIO()
    if path.suffix.lower() == ".npz":
        arrays: dict[str, Any] = {"probs": p, "predictions": top} | ({"labels": truth["label"]} if truth else {})
        np.savez(raw, **arrays)
    elif path.suffix.lower() == ".parquet":
        arrow, parquet = _pyarrow()
        parquet.write_table(arrow.table(columns), raw)
    else:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(columns)
        rows.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        raw.write(text.getvalue().encode())
    write_bytes(path, raw.getvalue())
