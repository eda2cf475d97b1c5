"""UCI heart disease: 920 patients of four hospitals, a natural federation (see heart/ATTRIBUTION.md).

Nothing is imputed here: a missing value is NaN, and becomes the mean over the *training* patients once
clients are made (standardise.py). That holds for the one-hot columns too: a patient whose `thal` is unknown
gets the training frequencies of its values, which standardise to zeros, so "unknown" never looks like a
category of its own.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
from torch import Tensor

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

_COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg",
    "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip
_CODES = {"cp": (1, 2, 3, 4), "restecg": (0, 1, 2), "slope": (1, 2, 3), "thal": (3, 6, 7)}

# Zero mmHg or zero mg/dl is nobody's reading: all 123 Swiss patients and 49 of the V.A. have chol 0, one has
# trestbps 0, where other hospitals write "?". Left in, cholesterol would be a label of the hospital.
_ZERO_IS_MISSING = ("trestbps", "chol")

FEATURES = tuple(
    feature
    for column in _COLUMNS
    for feature in ([f"{column}={code}" for code in _CODES[column]] if column in _CODES else [column])
)


def read() -> tuple[Tensor, Tensor, Tensor]:
    """Features (920, 22), NaN where missing; labels (0 healthy, 1 disease); each patient's hospital."""
    tables = [_table(hospital) for hospital in HOSPITALS]
    rows = np.concatenate(tables)
    hospital = np.repeat(np.arange(len(HOSPITALS)), [len(table) for table in tables])
    columns = [_encode(name, rows[:, j]) for j, name in enumerate(_COLUMNS)]
    x = torch.from_numpy(np.concatenate(columns, axis=1).astype(np.float32))
    y = torch.from_numpy((rows[:, -1] > 0).astype(np.int64))  # 1..4 grade the disease
    return x, y, torch.from_numpy(hospital.astype(np.int64))


def _table(hospital: str) -> np.ndarray:
    text = resources.files("fedcal.data").joinpath("heart", f"processed.{hospital}.data").read_text("ascii")
    return np.genfromtxt(text.splitlines(), delimiter=",", missing_values="?", filling_values=np.nan)


def _encode(name: str, values: np.ndarray) -> np.ndarray:
    """One column as (n, 1), or as (n, number of codes) where its numbers are only names."""
    missing = np.isnan(values)
    if name in _ZERO_IS_MISSING:
        missing |= values == 0
    encoded = values[:, None] == np.array(_CODES[name]) if name in _CODES else values[:, None]
    return np.where(missing[:, None], np.nan, encoded)
