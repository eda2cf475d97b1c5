"""What a site sends now and then: sums over the samples of a batch, as bytes. They are checked as data from a stranger."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from enum import StrEnum
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcal.base.arrays import softmax
from fedcal.base.arrays import tensors as tensors_of
from fedcal.base.checks import check_labels, check_whole
from fedcal.base.codec import check_finite, pack, unpack
from fedcal.base.schema import Exactly, Number, Record, Text, check
from fedcal.base.store import read_bytes, write_bytes
from fedcal.errors import FedCalError, counted
from fedcal.methods import method_to_json
from fedcal.monitor.alternatives import calibration_sums, check_sums, class_counts, n_alternatives
from fedcal.protocol import Scaler
from fedcal.protocol.checks import check_client_name
from fedcal.protocol.messages import MOST_SAMPLES
from fedcal.protocol.valid import CLASSES

KIND, SCHEMA = "monitor-batch", 1
MIN_COUNT = 5  # samples of a batch, below which nothing is sent
TOLERANCE = 0.25  # log-odds by which a probability may be off: true chances of 44 to 56 % where 50 % is predicted
MOST_TOLERANCE = 5.0
MOST_BYTES = 1 << 28


class About(StrEnum):
    """What a batch holds."""

    LABELLED = "labelled"  # label counts, and the calibration's log-likelihood ratios
    PREDICTIONS = "predictions"  # sums of predicted probabilities
    REFERENCE = "reference"  # label counts and sums of probabilities that later batches are compared with


_PARTS = {
    About.LABELLED: {"counts", "ratios"},
    About.PREDICTIONS: {"expected"},
    About.REFERENCE: {"counts", "expected"},
}
_HEADER = Record(
    {
        "kind": Exactly((KIND,)),
        "schema": Exactly((SCHEMA,)),
        "about": Exactly(tuple(map(str, About))),
        "site": Text(200),
        "batch": Text(200),
        "n": Number(1, MOST_SAMPLES, whole=True),
        "n_classes": CLASSES,
        "tolerance": Number(0, MOST_TOLERANCE),
        "scaler": Text(32),
    }
)


def _none() -> Tensor:
    return torch.zeros(0, dtype=torch.float64)


@dataclass(frozen=True)
class Batch:
    """The sums of a site's batch of samples.

    >>> batch = fedcal.Monitor.sums(scaler, "hospital A", "2025-W07", logits, labels)
    >>> batch.save("hospital-A-2025-W07.sums")
    """

    site: str
    batch: str  # its name: a site sends each name once
    about: About
    n: int
    n_classes: int
    tolerance: float
    scaler: str  # fingerprint of the global scaler
    counts: Tensor = field(default_factory=_none)  # (K,) of labels
    expected: Tensor = field(default_factory=_none)  # (K,) sums of probabilities
    ratios: Tensor = field(default_factory=_none)  # (A,) log-likelihood ratios
    assumed: Tensor = field(default_factory=_none)  # (K,) by the prior shift

    def pack(self) -> bytes:
        """The batch as bytes."""
        tensors = {
            name: value for name in ("counts", "expected", "ratios", "assumed") if len(value := getattr(self, name))
        }
        about = {
            "kind": KIND,
            "schema": SCHEMA,
            "about": str(self.about),
            **{name: getattr(self, name) for name in ("site", "batch", "n", "n_classes", "tolerance", "scaler")},
        }
        check(about, _HEADER, "the batch")
        return pack(tensors, about)

    @classmethod
    def unpack(cls, data: bytes) -> Batch:
        """Read a batch; it may come from a stranger.

        Args:
            data: what `pack` gave.

        Raises:
            FedCalError: the bytes are no batch, or hold sums that no samples give.
        """
        if len(data) > MOST_BYTES:
            raise FedCalError(f"{len(data)} bytes, where a batch has at most {MOST_BYTES}")
        try:
            arrays, about = unpack(data)
        except FedCalError as error:
            raise FedCalError(f"not a batch of sums ({error}): write it with `fedcal monitor sums`") from None
        tensors = tensors_of(arrays)
        if about.get("kind") != KIND or about.get("schema") != SCHEMA:
            raise FedCalError("not a batch of sums: write it with `fedcal monitor sums`")
        check(about, _HEADER, "not a batch of sums")
        kind, k, n = About(about["about"]), about["n_classes"], about["n"]
        check_client_name(about["site"])
        length = {"counts": k, "expected": k, "assumed": k, "ratios": n_alternatives(k)}
        if set(tensors) - {"assumed"} != _PARTS[kind]:
            raise FedCalError("not a batch of sums: some are missing, or have no place")
        for name, value in tensors.items():
            if value.dtype != torch.float64 or value.shape != (length[name],):
                raise FedCalError(f"not a batch of sums: {name!r} has another shape or type")
        check_finite(tensors)
        found = cls(about["site"], about["batch"], kind, n, k, float(about["tolerance"]), about["scaler"], **tensors)
        found.check_plausible()
        return found

    def check_plausible(self) -> None:
        """Refuse sums that n samples cannot have.

        Raises:
            FedCalError: which names the sums.
        """
        if self.n < 1:
            raise FedCalError(f"{self.site}: sums of no samples")
        whole = bool((self.counts == self.counts.round()).all()) and bool((self.counts >= 0).all())
        if len(self.counts) and not (whole and float(self.counts.sum()) == self.n):
            raise FedCalError(f"{self.site}: its label counts are not those of {self.n} samples")
        parts = bool((self.expected >= 0).all()) and abs(float(self.expected.sum()) - self.n) <= 1e-6 * self.n
        if len(self.expected) and not parts:
            raise FedCalError(f"{self.site}: its sums of probabilities are not those of {self.n} samples")
        if len(self.ratios) and not check_sums(self.ratios, self.counts, self.n_classes):
            raise FedCalError(f"{self.site}: its log-likelihood ratios are more than {self.n} samples can give")
        sound = bool((self.assumed > 0).all()) and abs(float(self.assumed.sum()) - 1) <= 1e-6
        if len(self.assumed) and not sound:
            raise FedCalError(f"{self.site}: what it assumes is no label distribution")

    @property
    def digest(self) -> str:
        """Of all it holds but its name: the same samples sent again, in any order, have the same."""
        rounded = {name: _significant(getattr(self, name)) for name in ("expected", "ratios")}
        return hashlib.blake2b(replace(self, batch="", **rounded).pack(), digest_size=16).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write it for the server, atomically; only this user may read it.

        Args:
            path: the file.
        """
        write_bytes(Path(path), self.pack(), private=True)

    @classmethod
    def load(cls, path: str | Path) -> Batch:
        """Read what `save` wrote.

        Args:
            path: the file.

        Raises:
            FedCalError: the file is missing, damaged, or no batch.
        """
        try:
            return cls.unpack(read_bytes(Path(path), MOST_BYTES))
        except FedCalError as error:
            raise FedCalError(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _significant(sums: Tensor) -> Tensor:
    """Round to nine digits, so that the order of summation does not count.

    Not to decimal places: samples that a model is sure of differ by a millionth.
    """
    mantissa, exponent = torch.frexp(sums)
    return torch.ldexp((mantissa * 2**30).round(), exponent - 30) + 0.0  # no -0.0


def fingerprint(scaler: Scaler) -> str:
    """Of the global scaler: sites and server must mean the same. Personal parts are left out, as they may stay at sites."""
    about = {**method_to_json(scaler.method), "n_classes": scaler.n_classes}
    return hashlib.blake2b(pack(scaler.params, about), digest_size=16).hexdigest()


def sums_of(
    scaler: Scaler,
    site: str,
    batch: str,
    logits: Any,
    labels: Any,
    reference: bool,
    tolerance: float,
    min_count: int,
    probs: bool | None,
) -> Batch:
    """The sums of a batch; see `Monitor.sums`."""
    site = check_client_name(str(site))
    personal = site if site in scaler.personal else None
    calibrated = torch.as_tensor(scaler.apply(logits, personal, probs=probs)).double()
    n, k = calibrated.shape
    if n < max(1, check_whole(min_count, "min_count", low=0)):
        needed = max(1, min_count)
        raise FedCalError(f"{site}, batch {batch}: {counted(n, 'sample')}, and a batch needs {needed}: wait for more")
    tensors: dict[str, Tensor] = {}
    if labels is not None:
        columns = torch.from_numpy(check_labels(labels, n, k, classes=scaler.classes or None))
        tensors["counts"] = class_counts(columns, k)
        if not reference:
            tensors["ratios"] = calibration_sums(calibrated, columns, check_tolerance(tolerance))
    if labels is None or reference:
        tensors["expected"] = calibrated.softmax(1).sum(0)
    if reference and labels is None:
        raise FedCalError(f"{site}: a reference needs labels: give the calibration samples")
    about = About.REFERENCE if reference else About.LABELLED if labels is not None else About.PREDICTIONS
    if (assumed := assumed_by(scaler, personal)) is not None:
        tensors["assumed"] = assumed
    return Batch(site, str(batch), about, n, k, check_tolerance(tolerance), fingerprint(scaler), **tensors)


def assumed_by(scaler: Scaler, client: str | None) -> Tensor | None:
    """The label distribution that a client's prior shift assumes; None where there is no such shift."""
    shift = scaler.personal_of(client).get("shift")
    if shift is None:
        return None
    return torch.from_numpy(softmax(np.log(scaler.params["prior"]) + shift, 0))


def check_tolerance(tolerance: float) -> float:
    """Refuse a tolerance that is no number of log-odds.

    Raises:
        FedCalError: which says what it may be.
    """
    if isinstance(tolerance, bool) or not isinstance(tolerance, Real) or not 0 <= tolerance <= MOST_TOLERANCE:
        raise FedCalError(f"tolerance {tolerance!r}: give log-odds from 0 to {MOST_TOLERANCE:g}, such as {TOLERANCE}")
    return float(tolerance)
