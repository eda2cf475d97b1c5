"""Metrics of probabilities against labels. They take probabilities, never logits, and sum in float64.

Labels are the columns' numbers, or any labels that `classes` lists in the order of the columns. String labels need no
`classes` if all of them occur and the columns are in their sorted order.

Each metric is of one set of samples. Over a federation, add up each client's `Tally` (or `Reliability`) and read the metric
from the sum: the mean of the clients' ECEs is not the ECE of their samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.checks import (
    check_array,
    check_labels_alone,
    check_matrix,
    check_measured,
    check_probs,
    check_whole,
    log_probs,
)
from fedcal.errors import FedCalError
from fedcal.measure.reliability import Reliability, blocks, class_sums, equal_width, top_label


def _checked(probs: Any, labels: Any, classes: Any) -> tuple[Array, Array]:
    checked = check_measured(probs, labels, classes)
    if not len(checked[1]):
        raise FedCalError("no samples: a metric of an empty set is undefined")
    return checked


def _top_bins(probs: Any, labels: Any, n_bins: int, classes: Any) -> Reliability:
    return Reliability.of_top(*top_label(*_checked(probs, labels, classes)), equal_width(n_bins))


def accuracy(probs: Any, labels: Any, *, classes: Any = None) -> float:
    """Return the share of samples whose most probable class (the first, on a tie) is the label.

    Args:
        probs: (N, K) probabilities, or (N,) of class 1.
        labels: (N,) labels.
        classes: the label of each column, if labels are not the column numbers.

    Raises:
        FedCalError: the arguments do not fit together, or there are no samples.

    Examples:
        >>> import fedcal
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
        >>> labels = [0, 0, 1, 1]
        >>> fedcal.accuracy(probs, labels)
        0.75
    """
    probs, labels = _checked(probs, labels, classes)
    return float((probs.argmax(1) == labels).mean())


def top_k(scores: Any, labels: Any, k: int = 3, *, classes: Any = None) -> float:
    """Return the share of samples whose label is among the k highest scores.

    Args:
        scores: (N, K) scores of any kind, as only their order matters; or (N,) probabilities of class 1.
        labels: (N,) labels.
        k: the number of highest scores to consider.
        classes: the label of each column, if labels are not the column numbers.

    Raises:
        FedCalError: the arguments do not fit together, or there are no samples.

    Examples:
        >>> import fedcal
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
        >>> labels = [0, 0, 1, 1]
        >>> fedcal.top_k(probs, labels, k=1)
        0.75
    """
    scores = _checked_scores(scores)
    labels = check_labels_alone(labels, len(scores), scores.shape[1], classes)
    k = check_whole(k, "k")
    if not len(labels):
        raise FedCalError("no samples: a metric of an empty set is undefined")
    return float((rank_of_label(scores, labels) < k).mean())


def _checked_scores(values: Any) -> Array:
    """(N, K) scores of any kind, or (N,) probabilities of class 1."""
    scores = check_array(values, "scores")
    one_column = scores.ndim == 1 or scores.shape[1:] == (1,)
    return check_probs(scores, "scores") if one_column else check_matrix(scores, "scores")


def rank_of_label(scores: Array, labels: Array) -> Array:
    """The number of classes ranked before the label: those with a higher score, and earlier ones with the same score."""
    own = _of_label(scores, labels)[:, None]
    earlier = np.arange(scores.shape[1]) < labels[:, None]
    return ((scores > own) | ((scores == own) & earlier)).sum(1)


def nll(probs: Any, labels: Any, *, classes: Any = None) -> float:
    """Return the mean negative log-likelihood. A probability of 0 counts as the smallest positive float32.

    Args:
        probs: (N, K) probabilities, or (N,) of class 1.
        labels: (N,) labels.
        classes: the label of each column, if labels are not the column numbers.

    Raises:
        FedCalError: the arguments do not fit together, or there are no samples.

    Examples:
        >>> import fedcal
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
        >>> labels = [0, 0, 1, 1]
        >>> round(fedcal.nll(probs, labels), 3)
        0.4
    """
    probs, labels = _checked(probs, labels, classes)
    return float(-log_probs(_of_label(probs, labels)).mean())


def brier(probs: Any, labels: Any, *, classes: Any = None) -> float:
    """Return the Brier score: the mean squared distance to the one-hot label, summed over classes, from 0 to 2.

    Args:
        probs: (N, K) probabilities, or (N,) of class 1.
        labels: (N,) labels.
        classes: the label of each column, if labels are not the column numbers.

    Raises:
        FedCalError: the arguments do not fit together, or there are no samples.

    Examples:
        >>> import fedcal
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
        >>> labels = [0, 0, 1, 1]
        >>> round(fedcal.brier(probs, labels), 3)
        0.25
    """
    probs, labels = _checked(probs, labels, classes)
    return float(squared_error(probs.astype(float), labels).mean())


def squared_error(probs: Array, labels: Array) -> Array:
    """Σ_k (p_k − 1[y = k])² of each sample."""
    return np.einsum("ij,ij->i", probs, probs) + 1 - 2 * _of_label(probs, labels)


def _of_label(values: Array, labels: Array) -> Array:
    return values[np.arange(len(labels)), labels]


def ece(probs: Any, labels: Any, n_bins: int = 15, *, classes: Any = None) -> float:
    """Return the expected calibration error (ECE) of the top label, in bins of equal width (lo, hi]; 1 is in the last.

    Args:
        probs: (N, K) probabilities, or (N,) of class 1.
        labels: (N,) labels.
        n_bins: the number of confidence bins.
        classes: the label of each column, if labels are not the column numbers.

    Raises:
        FedCalError: the arguments do not fit together, or there are no samples.

    Examples:
        >>> import fedcal
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
        >>> labels = [0, 0, 1, 1]
        >>> round(fedcal.ece(probs, labels), 3)
        0.3
    """
    return _top_bins(probs, labels, n_bins, classes).ece()


def mce(probs: Any, labels: Any, n_bins: int = 15, *, classes: Any = None) -> float:
    """Return the maximum calibration error: the largest gap between confidence and accuracy in any bin of equal width.

    Args:
        probs: (N, K) probabilities, or (N,) of class 1.
        labels: (N,) labels.
        n_bins: the number of confidence bins.
        classes: the label of each column, if labels are not the column numbers.

    Raises:
        FedCalError: the arguments do not fit together, or there are no samples.

    Examples:
        >>> import fedcal
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
        >>> labels = [0, 0, 1, 1]
        >>> round(fedcal.mce(probs, labels), 3)
        0.6
    """
    return _top_bins(probs, labels, n_bins, classes).mce()


def equal_mass_ece(probs: Any, labels: Any, n_bins: int = 15, *, classes: Any = None) -> float:
    """Return the ECE of the top label in bins of equally many samples, or one more, in the order of confidence.

    Args:
        probs: (N, K) probabilities, or (N,) of class 1.
        labels: (N,) labels.
        n_bins: the number of confidence bins.
        classes: the label of each column, if labels are not the column numbers.

    Raises:
        FedCalError: the arguments do not fit together, or there are no samples.

    Examples:
        >>> import fedcal
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
        >>> labels = [0, 0, 1, 1]
        >>> round(fedcal.equal_mass_ece(probs, labels, n_bins=2), 3)
        0.15
    """
    confidence, correct = top_label(*_checked(probs, labels, classes))
    n_bins = check_whole(n_bins, "n_bins")
    order = np.argsort(confidence, kind="stable")
    gap = (confidence - correct)[order]
    return float(sum(abs(part.sum()) for part in np.array_split(gap, n_bins)) / len(gap))


def classwise_ece(probs: Any, labels: Any, n_bins: int = 15, *, classes: Any = None) -> float:
    """Return the mean over classes of the ECE of each class's probability (Kull et al. 2019).

    Args:
        probs: (N, K) probabilities, or (N,) of class 1.
        labels: (N,) labels.
        n_bins: the number of confidence bins.
        classes: the label of each column, if labels are not the column numbers.

    Raises:
        FedCalError: the arguments do not fit together, or there are no samples.

    Examples:
        >>> import fedcal
        >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]]
        >>> labels = [0, 0, 1, 1]
        >>> round(fedcal.classwise_ece(probs, labels), 3)
        0.3
    """
    return float(np.mean([one.ece() for one in classwise(*_checked(probs, labels, classes), n_bins)]))


def classwise(probs: Array, labels: Array, n_bins: int = 15) -> tuple[Reliability, ...]:
    """The reliability of each class: its probability on every sample, against whether the sample is of that class."""
    edges = equal_width(n_bins)
    sums = sum(class_sums(p.astype(float), y, edges) for p, y in blocks(probs, labels))
    return tuple(Reliability(edges, *one) for one in np.asarray(sums))
