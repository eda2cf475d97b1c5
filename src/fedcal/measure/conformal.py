"""Conformal sets over a federation: which classes it may be, right with probability 1 − α, from summed histograms.

Each client sends one histogram of its calibration samples' scores (how badly the true class fits); their sum is the pooled
one. The threshold is the upper edge of the bin that holds the ⌈(n + 1)(1 − α)⌉-th lowest score, so that for exchangeable
samples

    1 − α  ≤  P(label in set)  ≤  1 − α + 1/(n + 1) + P(score in that bin)

The lower bound is exact: bins only ever round the threshold up, by less than a bin's width. Bins are even in log-odds, for
scores of confident models crowd at 0 and 1: by default the threshold's odds exceed the exact ones' by less than 0.7 %.
Sets stand on any calibrated probabilities. A client's own (prior-shifted) ones, at every client, give sets that fit it.
The samples that set the threshold must not be those that the calibration was fitted on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedcal.base.checks import check_labels, check_probs, check_value, check_whole
from fedcal.errors import FedCalError, unknown
from fedcal.measure.reliability import find_bins

N_BINS = 8192
TAIL = 1e-12  # the outermost bins begin here, at either end


@dataclass(frozen=True)
class Score:
    """How badly a class fits: from 0 to 1, or (raps) to 1 and the largest penalty.

    lac    1 − p                                           smallest sets on average (Sadinle et al. 2019)
    aps    the probability of all classes up to this one   sets that adapt to the sample (Romano et al. 2020)
    raps   aps + penalty · (rank − free)₊                  without a long tail (Angelopoulos et al. 2021)
    """

    kind: Literal["lac", "aps", "raps"] = "aps"
    penalty: float = 0.01  # raps: for every rank beyond `free`
    free: int = 5

    def __post_init__(self) -> None:
        if self.kind not in ("lac", "aps", "raps"):
            raise unknown("score", self.kind, ("lac", "aps", "raps"))
        check_value("penalty", self.penalty, float, {"low": 0})
        check_whole(self.free, "free", low=0)

    def of(self, probs: Any, u: Any = None) -> np.ndarray:
        """Every class's score, (N, K). With u, (N,) uniform numbers, aps and raps are randomised: their sets are smaller."""
        p = check_probs(probs).double().numpy()
        if self.kind == "lac":
            return np.clip(1 - p, 0.0, 1.0)
        order = np.argsort(-p, axis=1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=1)
        part = np.ones((len(p), 1)) if u is None else _uniform(u, len(p))
        scores = np.clip(np.cumsum(ranked, axis=1) - (1 - part) * ranked, 0.0, 1.0)
        if self.kind == "raps":
            scores = scores + self.penalty * np.maximum(np.arange(1, p.shape[1] + 1) - self.free, 0)
        found = np.empty_like(scores)
        np.put_along_axis(found, order, scores, axis=1)
        return found

    def edges(self, n_classes: int, n_bins: int) -> np.ndarray:
        """Bins of [0, 1], even in log-odds; beyond 1 (raps), n_bins / 8 more of equal width."""
        inner = np.linspace(math.log(TAIL), -math.log(TAIL), check_whole(n_bins, "n_bins", low=2) - 1)
        edges = np.concatenate([[0.0], 1 / (1 + np.exp(-inner)), [1.0]])
        most = self.penalty * max(n_classes - self.free, 0) if self.kind == "raps" else 0.0
        return np.concatenate([edges, np.linspace(1, 1 + most, n_bins // 8 + 2)[1:]]) if most else edges


def _uniform(u: Any, n: int) -> np.ndarray:
    u = np.asarray(u, np.float64)
    if u.shape != (n,) or not ((u >= 0) & (u <= 1)).all():
        raise FedCalError(f"u must hold {n} numbers from 0 to 1, one a sample; got shape {u.shape}")
    return u[:, None]


@dataclass(frozen=True, eq=False)
class ConformalHistogram:
    """What a client sends: how many of its true classes' scores fall into each bin. `a + b` is that of both."""

    score: Score
    n_classes: int
    edges: np.ndarray  # (bins + 1,)
    count: np.ndarray  # (bins,)

    @classmethod
    def of(
        cls, probs: Any, labels: Any, score: Score | None = None, u: Any = None, n_bins: int = N_BINS
    ) -> ConformalHistogram:
        """Of (N, K) calibrated probabilities and (N,) labels that the calibration has not seen."""
        score, probs = score or Score(), check_probs(probs)
        labels = check_labels(labels, *probs.shape)
        own = np.take_along_axis(score.of(probs, u), labels.numpy()[:, None], axis=1)[:, 0]
        edges = score.edges(probs.shape[1], n_bins)
        return cls(score, probs.shape[1], edges, np.bincount(find_bins(own, edges), minlength=len(edges) - 1))

    def __add__(self, other: ConformalHistogram) -> ConformalHistogram:
        mine, yours = ((h.score, h.n_classes, len(h.count)) for h in (self, other))
        if mine != yours:
            raise FedCalError(f"conformal histograms of {mine} and {yours} do not add: same score, classes and bins")
        return ConformalHistogram(self.score, self.n_classes, self.edges, self.count + other.count)

    @property
    def n(self) -> int:
        """How many samples are in it."""
        return int(self.count.sum())

    def threshold(self, alpha: float) -> float:
        """Up to which score a class belongs to the set; infinite (all of them do) with fewer than 1/α − 1 samples."""
        if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not 0 < alpha < 1:
            raise FedCalError(f"alpha must lie between 0 and 1, not {alpha!r}: 0.1 asks for a coverage of 90 %")
        rank = math.ceil((self.n + 1) * (1 - alpha) - 1e-9)
        if rank > self.n:
            return math.inf
        return float(self.edges[1 + np.searchsorted(np.cumsum(self.count), max(rank, 1))])


def predict_sets(probs: Any, threshold: float, score: Score | None = None, u: Any = None) -> Tensor:
    """The sets as booleans, (N, K). A set may be empty: no class fits as well as the threshold asks."""
    return torch.from_numpy((score or Score()).of(probs, u) <= threshold)


@dataclass(frozen=True)
class SetTally:
    """How sets did, in sums that add with `+`: coverage and mean size over any number of clients."""

    n: float  # samples, or the sum of their weights
    covered: float
    size: float

    @classmethod
    def of(cls, sets: Tensor, labels: Any, weights: Any = None) -> SetTally:
        """Of (N, K) sets and (N,) labels, each sample weighing 1 unless `weights` says otherwise."""
        labels = check_labels(labels, sets.shape[0], sets.shape[1])
        w = torch.ones(len(labels), dtype=torch.float64) if weights is None else torch.as_tensor(weights).double()
        covered = sets.gather(1, labels[:, None])[:, 0].double()
        return cls(float(w.sum()), float(w @ covered), float(w @ sets.sum(1).double()))

    def __add__(self, other: SetTally) -> SetTally:
        return SetTally(self.n + other.n, self.covered + other.covered, self.size + other.size)

    @property
    def coverage(self) -> float:
        """The share of samples whose label is in the set."""
        return self.covered / self.n if self.n else float("nan")

    @property
    def mean_size(self) -> float:
        """Classes a set, on average."""
        return self.size / self.n if self.n else float("nan")
