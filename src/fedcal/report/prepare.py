"""The data of each figure: functions of the results alone, NaN where a value is undefined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcal.measure.reliability import Reliability
from fedcal.report.results import Results

Floats = NDArray[np.float64]


def floats(values: Sequence[Any]) -> Floats:
    """Numbers as an array; None becomes NaN."""
    return np.array(values, dtype=np.float64)


@dataclass(frozen=True)
class Curve:
    """A reliability diagram, one entry per bin. 95 % of perfectly calibrated models are between `low` and `high`."""

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
        """The bins whose gap may be sampling noise."""
        return (self.low <= self.accuracy) & (self.accuracy <= self.high)

    @property
    def equal_widths(self) -> bool:
        """Whether all bins are equally wide."""
        return bool(np.allclose(np.diff(self.edges), np.diff(self.edges)[0]))


def curve_of(bins: Reliability, name: str) -> Curve:
    """The reliability diagram of samples that were summed up in bins.

    Args:
        bins: the sums.
        name: what was measured: a method, or a point in time.
    """
    return Curve(name, bins.ece(), bins.edges, bins.count.astype(np.float64), *bins.curve(), *bins.band())


def prepare_reliability(results: Results, method: str) -> Curve:
    """The reliability diagram of a method's global scaler."""
    about = results["methods"][method]
    return curve_from_json(about["reliability"], method, about["global"]["ece"])


def curve_from_json(bins: Mapping[str, Any], name: str, ece: float | None) -> Curve:
    """A reliability diagram as results.json has it.

    Args:
        bins: the lists of edges, counts and so on.
        name: what was measured.
        ece: its ECE; None if it is not defined.
    """
    fields = ("edges", "count", "confidence", "accuracy", "low", "high")
    return Curve(name, float(floats([ece])[0]), *(floats(bins[field]) for field in fields))


@dataclass(frozen=True)
class MethodErrors:
    """The global ECE, one entry per method."""

    methods: list[str]
    ece: Floats
    low: Floats
    high: Floats
    floor: Floats


def prepare_ece(results: Results) -> MethodErrors:
    """Every method's global ECE, its interval and its noise floor."""
    scores = [m["global"] for m in results["methods"].values()]
    keys = ("ece", "ece_low", "ece_high", "ece_floor")
    return MethodErrors(list(results["methods"]), *(floats([s[k] for s in scores]) for k in keys))


@dataclass(frozen=True)
class ClientErrors:
    """The ECE on each client's test set: methods by clients."""

    methods: list[str]
    clients: list[str]
    ece: Floats
    floor: Floats

    def worst(self, method: int) -> int | None:
        """The index of the client with the largest ECE; None if no client has test samples."""
        return None if np.isnan(self.ece[method]).all() else int(np.nanargmax(self.ece[method]))


def prepare_clients(results: Results, group: str) -> ClientErrors:
    """Every method's ECE at every client, under the global scaler (`local`) or each client's own (`own`)."""
    per_method = [m["clients"][group] for m in results["methods"].values()]
    return ClientErrors(
        list(results["methods"]),
        list(results["data"]["clients"]),
        floats([m["ece"] for m in per_method]),
        floats([m["ece_floor"] for m in per_method]),
    )


@dataclass(frozen=True)
class Skew:
    """The label distributions: clients by classes. A client without samples has a share of 0 everywhere."""

    clients: list[str]
    classes: list[str]
    counts: NDArray[np.int64]
    share: Floats


def prepare_skew(results: Results) -> Skew:
    """The clients' label distributions in their training samples."""
    data = results["data"]
    counts = np.array(data["train_counts"], dtype=np.int64)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return Skew(list(data["clients"]), list(data["classes"]), counts, share)


@dataclass(frozen=True)
class Series:
    """One quantity by training round."""

    key: str  # part of the file's name
    title: str
    rounds: Floats
    values: Floats


def prepare_training(rounds: Sequence[dict[str, Any]]) -> list[Series]:
    """Training loss, accuracy and ECE by round."""
    at = floats([r["round"] for r in rounds])
    loss, accuracy, ece = (floats([r[key] for r in rounds]) for key in ("loss", "accuracy", "ece"))
    return [
        Series("loss", "Training loss", at, loss),
        Series("accuracy", "Accuracy, %", at, 100 * accuracy),
        Series("ece", "ECE, %", at, 100 * ece),
    ]
