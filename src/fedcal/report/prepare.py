"""The numbers behind each figure: pure functions of the results, NaN where a value is undefined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcal.report.results import Results

Floats = NDArray[np.float64]


def _floats(values: Sequence[Any]) -> Floats:
    return np.array(values, dtype=np.float64)  # None becomes NaN


@dataclass(frozen=True)
class Curve:
    """A reliability diagram: one entry a bin. `low`..`high` holds 95 % of perfectly calibrated models."""

    method: str
    ece: float
    edges: Floats
    count: Floats
    confidence: Floats
    accuracy: Floats
    low: Floats
    high: Floats

    @property
    def in_band(self) -> NDArray[np.bool_]:
        """Bins whose gap is no larger than what sampling alone gives."""
        return (self.low <= self.accuracy) & (self.accuracy <= self.high)


def prepare_reliability(results: Results, method: str) -> Curve:
    r = results["methods"][method]["reliability"]
    fields = ("edges", "count", "confidence", "accuracy", "low", "high")
    ece = float(_floats([results["methods"][method]["global"]["ece"]])[0])
    return Curve(method, ece, *(_floats(r[field]) for field in fields))


@dataclass(frozen=True)
class MethodErrors:
    """Global ECE: one entry a method."""

    methods: list[str]
    ece: Floats
    low: Floats
    high: Floats
    floor: Floats


def prepare_ece(results: Results) -> MethodErrors:
    scores = [m["global"] for m in results["methods"].values()]
    keys = ("ece", "ece_low", "ece_high", "ece_floor")
    return MethodErrors(list(results["methods"]), *(_floats([s.get(k) for s in scores]) for k in keys))


@dataclass(frozen=True)
class ClientErrors:
    """ECE on each client's own test set: methods by clients."""

    group: str  # "local": the global scaler; "own": the client's own scaler
    methods: list[str]
    clients: list[str]
    ece: Floats
    floor: Floats

    def worst(self, method: int) -> int | None:
        """Index of the client with the largest ECE; None when no client has test samples."""
        return None if np.isnan(self.ece[method]).all() else int(np.nanargmax(self.ece[method]))


def prepare_clients(results: Results, group: str) -> ClientErrors:
    per_method = [m["clients"][group] for m in results["methods"].values()]
    return ClientErrors(
        group,
        list(results["methods"]),
        list(results["data"]["clients"]),
        _floats([m["ece"] for m in per_method]),
        _floats([m["ece_floor"] for m in per_method]),
    )


@dataclass(frozen=True)
class Skew:
    """Who holds which labels: clients by classes. A client without samples has share 0 everywhere."""

    clients: list[str]
    classes: list[str]
    counts: NDArray[np.int64]
    share: Floats


def prepare_skew(results: Results, split: str = "train") -> Skew:
    data = results["data"]
    counts = np.array(data[f"{split}_counts"], dtype=np.int64)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return Skew(list(data["clients"]), list(data["classes"]), counts, share)


@dataclass(frozen=True)
class Series:
    """One quantity by training round."""

    key: str  # in a file's name
    title: str
    rounds: Floats
    values: Floats


def prepare_training(rounds: Sequence[dict[str, Any]]) -> list[Series]:
    at = _floats([r["round"] for r in rounds])
    loss, accuracy, ece = (_floats([r[key] for r in rounds]) for key in ("loss", "accuracy", "ece"))
    return [
        Series("loss", "Training loss", at, loss),
        Series("accuracy", "Accuracy, %", at, 100 * accuracy),
        Series("ece", "ECE, %", at, 100 * ece),
    ]
