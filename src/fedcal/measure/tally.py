"""Tally: every metric of a set of samples from constant-size sums that add with `+`.

A client makes the tally of its own test set; the sum over clients is the tally of the pooled test set. That is how
the simulator measures, and how a real federation can: no logit and no label leaves a client.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from torch import Tensor

from fedcal.errors import FedCalError
from fedcal.measure.metrics import classwise, rank_of_label, squared_error
from fedcal.measure.reliability import Reliability, equal_width

# Fine bins for equal-mass ECE: even in log-odds from 1e-3 to 1 − 1e-9, where confidences of good models crowd.
FINE = np.concatenate([[0.0], 1 / (1 + np.exp(-np.linspace(np.log(1e-3), np.log(1e9), 1023))), [1.0]])


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
    classwise: tuple[Reliability, ...]

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, n_bins: int = 15) -> Tally:
        """From (N, K) calibrated logits in float64: ranks are read off them, for probabilities underflow."""
        if not logits.isfinite().all():
            raise FedCalError("logits are not finite, so the model or a scaler diverged: lower lr or scaler_lr")
        log_probs, rank = logits.log_softmax(dim=1), rank_of_label(logits, labels)
        probs, correct = log_probs.exp(), (rank == 0).numpy()
        confidence = probs.amax(dim=1).numpy() if len(labels) else np.empty(0)
        return cls(
            n=len(labels),
            correct=int(correct.sum()),
            top3=int((rank < 3).sum()),
            nll=float(-log_probs.gather(1, labels[:, None]).sum()),
            brier=float(squared_error(probs, labels).sum()),
            confidence=float(confidence.sum()),
            reliability=Reliability.of_top(confidence, correct, equal_width(n_bins)),
            fine=Reliability.of_top(confidence, correct, FINE),
            classwise=classwise(probs, labels, n_bins),
        )

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.n + other.n,
            self.correct + other.correct,
            self.top3 + other.top3,
            self.nll + other.nll,
            self.brier + other.brier,
            self.confidence + other.confidence,
            self.reliability + other.reliability,
            self.fine + other.fine,
            tuple(a + b for a, b in zip(self.classwise, other.classwise, strict=True)),
        )

    def summary(self, interval: bool = False) -> dict[str, float]:
        """The metrics by name, as fractions; an ECE never comes without its noise floor."""
        n = self.n or float("nan")
        found = {
            "accuracy": self.correct / n,
            "top3": self.top3 / n,
            "confidence": self.confidence / n,
            "nll": self.nll / n,
            "brier": self.brier / n,
            "ece": self.reliability.ece(),
            "ece_floor": self.reliability.floor(),
            "equal_mass_ece": self.fine.merge_to(len(self.reliability.count)).ece(),
            "classwise_ece": float(np.mean([one.ece() for one in self.classwise])),
            "mce": self.reliability.mce(),
            "debiased_l2": self.reliability.debiased_l2(),
        }
        if interval:
            found["ece_low"], found["ece_high"] = self.reliability.interval()
        return found


def pooled(tallies: list[Tally]) -> Tally:
    """The tally of all samples together."""
    return reduce(add, tallies)


def over_clients(names: list[str], tallies: list[Tally]) -> dict[str, Any]:
    """Mean of each metric over the clients that have test samples (equal weights), and the worst client's ECE."""
    rows = {name: tally.summary() for name, tally in zip(names, tallies, strict=True) if tally.n}
    if not rows:
        return {"clients": 0}
    first = next(iter(rows.values()))
    means: dict[str, Any] = {key: _mean([row[key] for row in rows.values()]) for key in first}
    worst = max(rows, key=lambda name: rows[name]["ece"])
    return {"clients": len(rows), **means, "worst_ece": rows[worst]["ece"], "worst_client": worst}


def _mean(values: list[float]) -> float:
    """The mean of those that are defined."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else float("nan")
