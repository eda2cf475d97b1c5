"""Further columns of users' files, such as subgroups: by name, from .npz, .csv or .parquet."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.errors import FedCalError, unknown


def read_columns(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Those columns (in .npz arrays) of a file that `logit_files.read_rows` can read.

    Raises:
        FedCalError: the file has no such column.
    """
    if not names:
        return {}
    readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    return readers[path.suffix.lower()](path, names)


def _check(path: Path, names: Sequence[str], held: Sequence[str]) -> None:
    for name in names:
        if name not in held:
            raise FedCalError(f"{path}: {unknown('column', name, held)}")


def _npz(path: Path, names: Sequence[str]) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as held:
        _check(path, names, held.files)
        return {name: held[name] for name in names}


def _csv(path: Path, names: Sequence[str]) -> dict[str, Any]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        header = [name.strip() for name in next(rows, [])]
        _check(path, names, header)
        table = [row for row in rows if row]
    at = {name: header.index(name) for name in names}
    return {name: np.array([row[i].strip() for row in table], dtype=np.str_) for name, i in at.items()}


def _parquet(path: Path, names: Sequence[str]) -> dict[str, Any]:
    from pyarrow import parquet  # type: ignore[import-not-found, unused-ignore]

    file = parquet.ParquetFile(path)
    _check(path, names, list(file.schema_arrow.names))
    table = file.read(columns=list(names))
    return {name: np.array(table.column(name).to_pylist()) for name in names}
