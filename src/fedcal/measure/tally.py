"""Tally: every metric of a set of samples from constant-size sums that add with `+`.

A client makes the tally of its own test set; the sum over clients is the tally of the pooled test set. The simulator and
real federations measure like this: no logit and no label leaves a client.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params, log_softmax
from fedcal.errors import FedCalError
from fedcal.measure.metrics import rank_of_label, squared_error
from fedcal.measure.possible import contradiction
from fedcal.measure.reliability import Reliability, blocks, class_sums, equal_width, root

# Fine bins for the equal-mass ECE: evenly spaced in log-odds from 1e-3 to 1 − 1e-9, dense where confidences are.
FINE = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(np.log(1e-3), np.log(1e9), 1023))), [1.0]])

PARTS = ("counts", "sums", "reliability", "fine", "classwise")  # of a tally as arrays


@dataclass(frozen=True)
class Tally:
    """Sums over samples. `summary()` reads the metrics off them."""

    n: int
    correct: int
    top3: int
    nll: float
    brier: float
    confidence: float
    reliability: Reliability
    fine: Reliability
    classes: np.ndarray  # (K, 4, bins) each class's reliability sums

    @classmethod
    def of(cls, logits: Any, labels: Any, n_bins: int = 15) -> Tally:
        """Tally samples, in float64 and block by block to save memory.

        Args:
            logits: (N, K) calibrated logits, an array or a tensor. Ranks come from them, because probabilities underflow.
            labels: (N,) column numbers.
            n_bins: equal-width confidence bins.

        Raises:
            FedCalError: a logit is not finite.
        """
        return pooled([cls._of_block(z.astype(float, "C", copy=False), y, n_bins) for z, y in blocks(logits, labels)])

    @classmethod
    def _of_block(cls, logits: Array, labels: Array, n_bins: int) -> Tally:
        if not np.isfinite(logits).all():
            raise FedCalError("logits are not finite, so the model or a scaler diverged: lower lr, or the method's lr")
        log_probs, rank = log_softmax(logits, 1), rank_of_label(logits, labels)
        probs, correct = np.exp(log_probs), rank == 0
        confidence = probs.max(1) if len(labels) else np.empty(0)
        edges = equal_width(n_bins)
        return cls(
            n=len(labels),
            correct=int(correct.sum()),
            top3=int((rank < 3).sum()),
            nll=float(-log_probs[np.arange(len(labels)), labels].sum()),
            brier=float(squared_error(probs, labels).sum()),
            confidence=float(confidence.sum()),
            reliability=Reliability.of_top(confidence, correct, edges),
            fine=Reliability.of_top(confidence, correct, FINE),
            classes=class_sums(probs, labels, edges),
        )

    @property
    def classwise(self) -> tuple[Reliability, ...]:
        """Each class's reliability."""
        return tuple(Reliability(self.reliability.edges, *one) for one in self.classes)

    def __add__(self, other: Tally) -> Tally:
        if len(self.classes) != len(other.classes):
            raise FedCalError(f"tallies of {len(self.classes)} and {len(other.classes)} classes do not add")
        return Tally(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    def summary(self, interval: bool = False) -> dict[str, float]:
        """The metrics by name, as fractions.

        Args:
            interval: whether to add the 95 % interval of the ECE (`ece_low`, `ece_high`).
        """
        n, top = self.n or float("nan"), self.reliability
        found = {
            "accuracy": self.correct / n,
            "top3": self.top3 / n,
            "confidence": self.confidence / n,
            "nll": self.nll / n,
            "brier": self.brier / n,
            "ece": top.ece(),
            "ece_floor": top.floor(),
            "equal_mass_ece": self.fine.merge_to(len(top.count)).ece(),
            "classwise_ece": float(np.mean([one.ece() for one in self.classwise])),
            "mce": top.mce(),
            "debiased_l2": top.debiased_l2(),
        }
        if interval:
            found["ece_low"], found["ece_high"] = top.interval()
        return found

    # --- on the wire -------------------------------------------------------------------------------------------

    def to_arrays(self) -> Params:
        """A flat dict of arrays, for a message or a file. `from_arrays` makes exactly this tally of it."""
        return {
            "counts": np.array([self.n, self.correct, self.top3], np.int64),
            "sums": np.array([self.nll, self.brier, self.confidence]),
            "reliability": self.reliability.sums(),
            "fine": self.fine.sums(),
            "classwise": self.classes,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Tally:
        """Read what `to_arrays` gave.

        Raises:
            FedCalError: shapes, types or counts are not those of a tally.
        """
        kind = {name: np.float64 if name == "sums" else np.int64 for name in PARTS}
        wrong = [name for name in PARTS if name not in arrays or arrays[name].dtype != kind[name]]
        if wrong:
            raise FedCalError(f"not a tally: {wrong[0]!r} is missing or of another type")
        counts, sums, top, fine, each = (arrays[name] for name in PARTS)
        k, bins = (len(each), top.shape[-1]) if each.ndim and top.ndim else (0, 0)
        shapes = ((3,), (3,), (4, bins), (4, len(FINE) - 1), (k, 4, bins))
        for name, shape in zip(PARTS, shapes, strict=True):
            if arrays[name].shape != shape:
                raise FedCalError(f"not a tally: {name!r} has shape {arrays[name].shape}, not {shape}")
        (n, correct, top3), (nll, brier, confidence) = counts.tolist(), sums.tolist()
        bins_of = Reliability(equal_width(bins), *top), Reliability(FINE, *fine), each
        tally = cls(n, correct, top3, nll, brier, confidence, *bins_of)
        if why := contradiction(tally):
            raise FedCalError(f"not a tally: {why}")
        return tally


def pooled(tallies: list[Tally]) -> Tally:
    """The tally of all samples together."""
    return reduce(add, tallies)


def over_clients(names: list[str], tallies: list[Tally]) -> dict[str, Any]:
    """Mean of each metric over the clients that have samples (equal weights), its spread, and the worst client's ECE.

    Of the debiased error, it is the root of the mean square.

    Args:
        names: the clients.
        tallies: the tally of each client.
    """
    rows = {name: tally.summary() for name, tally in zip(names, tallies, strict=True) if tally.n}
    if not rows:
        return {"clients": 0}
    columns = {key: np.array([row[key] for row in rows.values()]) for key in next(iter(rows.values()))}
    defined = {key: values[~np.isnan(values)] for key, values in columns.items()}
    means = {key: float(np.mean(values)) if values.size else float("nan") for key, values in defined.items()}
    squares = [tally.reliability.debiased_square() for tally in tallies if tally.n]
    known = [square for square in squares if not math.isnan(square)]
    # The mean of the clients' roots, 0 where a square is negative, would keep the noise that cancels in the squares.
    means["debiased_l2"] = root(float(np.mean(known))) if known else float("nan")
    spread = {key: _spread(values) for key, values in defined.items() if values.size}
    worst = max(rows, key=lambda name: rows[name]["ece"])
    return {
        "clients": len(rows),
        **means,
        "worst_ece": rows[worst]["ece"],
        "worst_client": worst,
        "spread": spread,
    }


def _spread(values: np.ndarray) -> dict[str, float]:
    """The spread over clients: standard deviation, extremes, deciles and the median."""
    quantiles = np.quantile(values, [0, 0.1, 0.5, 0.9, 1])
    found = dict(zip(("min", "q10", "median", "q90", "max"), map(float, quantiles), strict=True))
    return {"std": float(np.std(values)), **found}
