"""Users' own data in a file, for the simulator. Nothing that is read here can run code.

.npz              arrays as own.py names them: x, y; client; test_x, test_y, test_client; classes
.csv, .parquet    one row per sample: a column `label`, perhaps `client` (or site), perhaps `split` with the words
                  train and test; every other column is a feature
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.base.limits import MOST_BYTES
from fedcal.data.columns import FEATURES
from fedcal.data.own import PARTS
from fedcal.data.readers import SUFFIXES, below_header, read_arrays, read_content
from fedcal.errors import FedCalError, error_context

SPLIT = "split"


def names_a_file(text: str) -> bool:
    """Whether a `--data` is a file, and not the name of a data set."""
    return Path(text).suffix.lower() in SUFFIXES


def read_own(path: Path) -> dict[str, Any]:
    """Read a file's arrays, by their names in own.py. In memory they may take FEDCAL_MAX_BYTES, or 2 GiB.

    Args:
        path: a .npz, .csv or .parquet.

    Raises:
        FedCalError: where the file is missing, damaged, too large, or lacks a column.
    """
    most_bytes = os.environ.get("FEDCAL_MAX_BYTES") or str(MOST_BYTES)
    if not most_bytes.isdecimal():
        raise FedCalError(f"FEDCAL_MAX_BYTES must be a number of bytes, not {most_bytes!r}")
    with error_context(path):
        if path.suffix.lower() == ".npz":
            return read_arrays(path, PARTS, int(most_bytes))
        return _table(path, int(most_bytes))


def _table(path: Path, most_bytes: int) -> dict[str, Any]:
    held = read_content(path, FEATURES, most_bytes, (SPLIT,))
    if held.labels is None:
        raise FedCalError("no labels: add a column `label`")
    if (bad := ~np.isfinite(held.scores)).any():
        row, column = np.argwhere(bad)[0].tolist()
        what = f"{below_header(row)}: feature {column + 1} is {held.scores[row, column]}"
        raise FedCalError(f"{what}: fill missing values, or leave them out")
    columns = {"x": held.scores, "y": held.labels, "client": held.sites}
    columns = {name: np.asarray(values) for name, values in columns.items() if values is not None}
    if (split := held.others.get(SPLIT)) is None:
        return columns
    words = np.asarray(split).astype(np.str_)
    if (odd := ~np.isin(words, ("train", "test"))).any():
        raise FedCalError(f"column {SPLIT}: {str(words[odd.argmax()])!r} is neither train nor test")
    test = words == "test"
    found = {name: values[~test] for name, values in columns.items()}
    return found | {f"test_{name}": values[test] for name, values in columns.items()}
