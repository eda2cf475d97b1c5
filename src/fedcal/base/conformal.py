"""Conformal prediction sets over a federation: sets of classes that contain the label with probability 1 − α.

Each client sends one histogram of the scores of its calibration samples (how badly the true class fits); the sum is the
pooled histogram. The threshold is the upper edge of the bin with the ⌈(n + 1)(1 − α)⌉-th lowest score, so that for
exchangeable samples

    1 − α  ≤  P(label in set)  ≤  1 − α + 1/(n + 1) + P(score in that bin)

where the upper bound needs scores without ties. The lower bound is exact: bins only round the threshold up, by less
than a bin's width. Bins are evenly spaced in log-odds, because the scores of confident models are close to 0 and 1: by
default the threshold's odds exceed the exact ones by less than 0.7 %. Any calibrated probabilities will do; those of
each client's own (prior-shifted) scaler give sets that fit the client. The samples that set the threshold must not be
those that the scaler was fitted on.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, Literal

import numpy as np

from fedcal.base.checks import check_probs
from fedcal.errors import FedCalError

N_BINS = 8192
TAIL = 1e-12  # width of the first and the last bin
# The levels α of a threshold curve; an α in between is rounded down, to the safe side.
LEVELS = np.concatenate([np.arange(1, 20) / 1000, np.arange(4, 101) / 200])


Score = Literal["lac", "aps", "raps"]
PENALTY, FREE = 0.01, 5  # of raps: the penalty for every rank beyond the first FREE ones


def scores_of(score: Score, probs: Any) -> np.ndarray:
    """Return how badly every class fits, (N, K): from 0 to 1, or (raps) to 1 plus the largest penalty.

    lac    1 − p                                           smallest sets on average (Sadinle et al. 2019)
    aps    the probability of all classes up to this one   sets that adapt to the sample (Romano et al. 2020)
    raps   aps + PENALTY · (rank − FREE)₊                  without a long tail (Angelopoulos et al. 2021)

    Args:
        score: which one.
        probs: (N, K) calibrated probabilities.
    """
    p = check_probs(probs).astype(float)
    if score == "lac":
        return np.clip(1 - p, 0.0, 1.0)
    order = np.argsort(-p, axis=1, kind="stable")
    scores = np.clip(np.cumsum(np.take_along_axis(p, order, axis=1), axis=1), 0.0, 1.0)
    if score == "raps":
        scores = scores + PENALTY * np.maximum(np.arange(1, p.shape[1] + 1) - FREE, 0)
    found = np.empty_like(scores)
    np.put_along_axis(found, order, scores, axis=1)
    return found


def edges_of(score: Score, n_classes: int, n_bins: int) -> np.ndarray:
    """The edges of the bins: of [0, 1], evenly spaced in log-odds; beyond 1 (raps), n_bins / 8 more of equal width."""
    inner = np.linspace(math.log(TAIL), -math.log(TAIL), n_bins - 1)
    edges = np.concatenate([[0.0], 1 / (1 + np.exp(-inner)), [1.0]])
    most = PENALTY * max(n_classes - FREE, 0) if score == "raps" else 0.0
    return np.concatenate([edges, np.linspace(1, 1 + most, n_bins // 8 + 2)[1:]]) if most else edges


def check_alpha(alpha: Any) -> float:
    """Return alpha, if it lies between 0 and 1."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < float(alpha) < 1:
        raise FedCalError(f"alpha must lie between 0 and 1, not {alpha!r}: 0.1 asks for a coverage of 90 %")
    return float(alpha)


def rank_of(alpha: Any, n: Any) -> Any:
    """Return ⌈(n + 1)(1 − α)⌉: the threshold is the so-many-th lowest of n scores. More than n: no score is enough."""
    return np.maximum(np.ceil((n + 1) * (1 - np.asarray(alpha)) - 1e-9), 1).astype(np.int64)


def count_scores(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Count scores by bin: edges[b] < score ≤ edges[b + 1], and 0 in the first."""
    return np.bincount(np.searchsorted(edges[1:-1], scores, side="left"), minlength=len(edges) - 1)


def threshold_curve(count: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the threshold at each of LEVELS, (levels,).

    Args:
        count: (bins,) how many scores are in each bin.
        edges: (bins + 1,); the last one is the largest score that there is. It is the threshold, and every class is in
            the set, where there are fewer than 1/α − 1 scores.
    """
    below = np.cumsum(count)
    bins = np.searchsorted(below, rank_of(LEVELS, below[-1]))
    return edges[1 + np.minimum(bins, len(count) - 1)]


def level_of(alpha: Any) -> int:
    """Return which of LEVELS serves alpha: the largest that is not above it.

    Raises:
        FedCalError: alpha is not a number from the lowest to the highest level.
    """
    number = int(np.searchsorted(LEVELS, check_alpha(alpha) + 1e-9, side="right")) - 1
    if number < 0 or alpha > LEVELS[-1] + 1e-9:
        raise FedCalError(f"alpha must lie within {LEVELS[0]:g} and {LEVELS[-1]:g}, not {alpha!r}")
    return number


def sets_of(scores: np.ndarray, threshold: Any) -> np.ndarray:
    """Return prediction sets as booleans, (N, K): the classes whose scores are low enough, and always the best one.

    Without the best class a set could be empty. To add a class never lowers coverage.

    Args:
        scores: (N, K), what `scores_of` gave.
        threshold: one number, or one per class.
    """
    found = scores <= threshold
    found[np.arange(len(scores)), scores.argmin(axis=1)] = True
    return found
