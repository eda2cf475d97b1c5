"""Metrics of (N, K) probabilities against (N,) labels. Probabilities in, never guessed; float64 sums.

Each is the pooled value of its set. Over a federation, add up `Tally` (or `Reliability`) and read it there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcal.checks import check_labels, check_matrix, check_probs, check_whole
from fedcal.errors import FedCalError
from fedcal.measure.reliability import Reliability, blocks, class_sums, equal_width, top_label


def _checked(probs: Any, labels: Any) -> tuple[Tensor, Tensor]:
    probs = check_probs(probs)
    labels = check_labels(labels, *probs.shape)
    if not len(labels):
        raise FedCalError("no samples: a metric of an empty set is undefined")
    return probs, labels


def _top_bins(probs: Any, labels: Any, n_bins: int) -> Reliability:
    return Reliability.of_top(*top_label(*_checked(probs, labels)), equal_width(n_bins))


def accuracy(probs: Any, labels: Any) -> float:
    """Share of samples whose most probable class (the first, on a tie) is the label."""
    probs, labels = _checked(probs, labels)
    return float((probs.argmax(1) == labels).double().mean())


def top_k(scores: Any, labels: Any, k: int = 3) -> float:
    """Share of samples whose label is among the k highest scores. Any scores do: only their order counts."""
    scores = check_matrix(scores, "scores")
    labels = check_labels(labels, *scores.shape)
    k = check_whole(k, "k")
    if not len(labels):
        raise FedCalError("no samples: a metric of an empty set is undefined")
    return float(rank_of_label(scores, labels).lt(k).double().mean())


def rank_of_label(scores: Tensor, labels: Tensor) -> Tensor:
    """How many classes stand before the label: higher scores, and earlier classes of the same score."""
    own = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1]) < labels[:, None]
    return ((scores > own) | ((scores == own) & earlier)).sum(1)


def nll(probs: Any, labels: Any) -> float:
    """Mean negative log-likelihood; a true class of probability 0 counts with the smallest positive number's log."""
    probs, labels = _checked(probs, labels)
    own = probs.double().gather(1, labels[:, None])
    return float(-own.clamp_min(torch.finfo(torch.float64).tiny).log().mean())


def brier(probs: Any, labels: Any) -> float:
    """Mean squared distance to the one-hot label, summed over classes (0 … 2)."""
    probs, labels = _checked(probs, labels)
    return float(squared_error(probs.double(), labels).mean())


def squared_error(probs: Tensor, labels: Tensor) -> Tensor:
    """Σ_k (p_k − 1[y = k])² of each sample."""
    return probs.square().sum(1) + 1 - 2 * probs.gather(1, labels[:, None])[:, 0]


def ece(probs: Any, labels: Any, n_bins: int = 15) -> float:
    """Expected calibration error of the top label: equal-width bins (lo, hi], confidence exactly 1 in the last."""
    return _top_bins(probs, labels, n_bins).ece()


def mce(probs: Any, labels: Any, n_bins: int = 15) -> float:
    """Largest gap between confidence and accuracy of any bin."""
    return _top_bins(probs, labels, n_bins).mce()


def equal_mass_ece(probs: Any, labels: Any, n_bins: int = 15) -> float:
    """ECE over bins of (as nearly as possible) equally many samples, in the order of confidence."""
    confidence, correct = top_label(*_checked(probs, labels))
    equal_width(n_bins)  # checks n_bins
    order = np.argsort(confidence, kind="stable")
    gap = (confidence - correct)[order]
    return float(sum(abs(part.sum()) for part in np.array_split(gap, n_bins)) / len(gap))


def classwise_ece(probs: Any, labels: Any, n_bins: int = 15) -> float:
    """Mean over classes of the ECE of "is it class k?", every class's probability binned (Kull et al. 2019)."""
    return float(np.mean([one.ece() for one in classwise(*_checked(probs, labels), n_bins)]))


def classwise(probs: Tensor, labels: Tensor, n_bins: int = 15) -> tuple[Reliability, ...]:
    """Each class's reliability: its probability on every sample, against whether the sample is of that class."""
    edges = equal_width(n_bins)
    sums = sum(class_sums(p.double().numpy(), y.numpy(), edges) for p, y in blocks(probs, labels))
    return tuple(Reliability(edges, *one) for one in np.asarray(sums))
