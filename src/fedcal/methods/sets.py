"""Conformal sets as a part of any additive method: after the scaler, one histogram (or two) of held-out scores.

A fifth of every client's samples is held out of the fit. When the scaler is there, each client sends the histogram of its
held-out samples' scores, by the global scaler and by its personal one; the sums give the threshold curves, which become part
of the scaler. This is split conformal prediction on the pooled held-out samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.conformal import (
    LEVELS,
    N_BINS,
    count_scores,
    edges_of,
    level_of,
    rank_of,
    scores_of,
    sets_of,
    threshold_curve,
)
from fedcal.base.logits import ordered_softmax
from fedcal.base.query import Query
from fedcal.base.site_sets import CONCENTRATIONS, site_curve, spread_likelihood, weigh
from fedcal.errors import FedCalError, counted
from fedcal.exact.prepared import Prepared
from fedcal.exact.solve import Program
from fedcal.methods.method import Additive, Method, Stage, Update, option

NUMBERS = 1 << 20  # of a reply at most, where every class has a histogram of its own
CLASS_BINS = 2048  # of such a histogram at most
GLOBAL, PERSONAL, COUNTS, SPREAD = "set_thresholds", "set_personal", "set_counts", "set_spread"  # arrays of a scaler
NAMES = (GLOBAL, PERSONAL, COUNTS, SPREAD)


@dataclass(frozen=True)
class Sets:
    """What sets shall promise: the options that every additive method takes."""

    alpha: float = option(
        0.1, "The share of labels that sets may miss; `predict_set` also accepts other levels.", low=0
    )
    coverage: Literal["marginal", "class", "site"] = option(
        "marginal", "Where sets cover 1 − alpha: over all samples, in each class, or at each site."
    )
    score: Literal["lac", "aps", "raps"] = option(
        "lac", "How badly a class fits: lac gives the smallest sets, aps and raps adapt to the sample."
    )
    confidence: float = option(0.9, "coverage=site: the probability that a site is covered.", above=0, below=1)
    positive: int | None = option(
        None, "A class (its column): bound its false-negative rate by alpha, instead of all misses.", low=0
    )

    def __post_init__(self) -> None:
        level_of(self.alpha)
        if self.positive is not None and self.coverage != "marginal":
            raise FedCalError(
                f"positive bounds one class's misses, and coverage={self.coverage} others: give one of them"
            )

    def edges(self, n_classes: int) -> np.ndarray:
        """The edges of the score's bins."""
        most = max(NUMBERS // n_classes, 64)
        return edges_of(self.score, n_classes, min(CLASS_BINS, most) if self.coverage == "class" else N_BINS)


@dataclass(frozen=True)
class SetScores(Query):
    """Histograms of held-out samples' scores under a scaler."""

    params: Params


@dataclass(frozen=True)
class SiteSpread(Query):
    """How far the sites' held-out scores are from the federation's, as a log-likelihood of what may be common."""

    params: Params  # with the federation's thresholds


@dataclass(frozen=True)
class WithSets(Additive):
    """An additive method, followed by what conformal sets need."""

    inner: Additive = field(kw_only=True)
    sets: Sets = field(kw_only=True)

    @classmethod
    def of(cls, inner: Additive, sets: Sets) -> WithSets:
        """Make it of a method, whose name and schedule it takes over."""
        if inner.fit_on == "train":
            raise FedCalError(
                "conformal sets need samples that the model was not trained on: leave out fit_on, or alpha"
            )
        return cls(inner=inner, sets=sets, **{same.name: getattr(inner, same.name) for same in fields(Method)})

    @property
    def leaves(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - it follows from the inner method's
        return f"{self.inner.leaves}; a histogram of held-out scores"

    @property
    def takes(self) -> Literal["logits", "features"]:  # pyright: ignore[reportIncompatibleVariableOverride] - the same
        return self.inner.takes

    def width(self, n_classes: int) -> int:
        return self.inner.width(n_classes)

    def classes_of(self, width: int) -> int:
        return self.inner.classes_of(width)

    def logits(self, rows: Any) -> Any:
        return self.inner.logits(rows)

    def prepare(self, samples: Prepared) -> Prepared:
        return self.inner.prepare(samples)

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        spread = (Stage(SiteSpread),) if self.sets.coverage == "site" else ()
        return (*self.inner.stages(n_classes), Stage(SetScores), *spread)

    def program(self, n_classes: int) -> Program:
        if self.sets.positive is not None and self.sets.positive >= n_classes:
            raise FedCalError(f"positive is column {self.sets.positive}, and there are {n_classes} classes, from 0 on")
        params = yield from self.inner.program(n_classes)
        sums = yield SetScores(params)
        edges = self.sets.edges(n_classes)
        for name, histogram in sums.items():
            params = {**params, name: self._curves(histogram, edges)}
        params[COUNTS] = sums[GLOBAL].sum(1)
        if self.sets.coverage == "site":
            likelihood = (yield SiteSpread(params))["likelihood"]
            params = {**params, SPREAD: weigh(likelihood)}
        return params

    def _curves(self, histogram: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """The thresholds of summed histograms, (levels, 1 or K).

        By class, the last histogram is of the samples whose class clients did not show (`_count`). A class of too few samples
        for a level takes them in: its threshold is that of its samples and of these.
        """
        if self.sets.coverage != "class":
            return np.stack([threshold_curve(row, edges) for row in histogram], axis=1)
        *rows, rare = histogram
        alone = np.stack([threshold_curve(row, edges) for row in rows], axis=1)
        if not rare.any():
            return alone
        joined = np.stack([threshold_curve(row + rare, edges) for row in rows], axis=1)
        counts = np.stack(rows).sum(1)
        found = np.where(rank_of(LEVELS[:, None], counts) > counts, joined, alone)
        return np.maximum.accumulate(found[::-1])[::-1]  # a larger share of misses never has the higher threshold

    def fitted_on(self, samples: Prepared) -> Prepared:
        return samples.split[0]

    # --- a client's half -------------------------------------------------------------------------------------------------

    def reply(self, query: Query, samples: Prepared, memory: Params) -> Update:
        fitting, _ = samples.split
        if isinstance(query, SetScores):
            return Update(self._histograms(query.params, samples), memory=memory)
        if isinstance(query, SiteSpread):
            return Update({"likelihood": self._likelihood(query.params, samples)}, memory=memory)
        return self.inner.reply(query, fitting, memory)

    def _histograms(self, params: Params, samples: Prepared) -> Params:
        """Histograms of the labels' scores, (1 or K + 1, bins): by the global scaler, and by the personal one if there is."""
        found: dict[str, Any] = {}
        for fitting, held, labels in _clients(samples):
            scalers: dict[str, Params] = {GLOBAL: {}}
            if personal := self.inner.personal(params, {}, *fitting):
                scalers[PERSONAL] = personal
            for name, scaler in scalers.items():
                scores = self._label_scores(params, scaler, held, labels)
                found[name] = found.get(name, 0) + self._count(
                    scores, labels, self.classes_of(held.shape[1]), samples.min_count
                )
        return found

    def _count(self, scores: np.ndarray, labels: np.ndarray, n_classes: int, min_count: int) -> np.ndarray:
        """A client's histograms. None is of fewer than `min_count` samples: it would tell scores and labels of single ones.

        By class, samples of rarer classes are counted together, in one more histogram; if they are too few even so, not at
        all.
        """
        edges = self.sets.edges(n_classes)
        kinds, n_kinds = np.zeros(len(labels), np.int64), 1
        if self.sets.coverage == "class":
            rare = np.bincount(labels, minlength=n_classes) < min_count
            kinds, n_kinds = np.where(rare[labels], n_classes, labels), n_classes + 1
        elif self.sets.positive is not None:
            kinds = np.where(labels == self.sets.positive, 0, -1)
        rows = [scores[kinds == kind] for kind in range(n_kinds)]
        shown = [row if len(row) >= min_count else row[:0] for row in rows]
        return np.stack([count_scores(row, edges) for row in shown]).astype(np.float64)

    def _label_scores(self, params: Params, personal: Params, logits: Array, labels: Array) -> np.ndarray:
        """The score of each sample's label."""
        scores = self.scores(params, personal, logits)
        return scores[np.arange(len(labels)), labels]

    def _likelihood(self, params: Params, samples: Prepared) -> Array:
        found = np.zeros((len(LEVELS), len(CONCENTRATIONS)))
        for fitting, held, labels in _clients(samples):
            below, n = self._below(params, self.inner.personal(_without_sets(params), {}, *fitting), held, labels)
            found += spread_likelihood(below, n, float(params[COUNTS][0]))
        return found

    def _below(self, params: Params, personal: Params, logits: Array, labels: Array) -> tuple[np.ndarray, int]:
        """How many of a client's scores the federation's thresholds cover, and how many there are."""
        curve = self.curve(params, personal)[:, 0]
        scores = np.sort(self._label_scores(params, personal, logits, labels))
        return np.searchsorted(scores, curve, side="right").astype(np.float64), len(scores)

    def personal(self, params: Params, memory: Params, logits: Array, labels: Array | None) -> Params:
        scaler = _without_sets(params)
        if labels is None:
            found, held = self.inner.personal(scaler, memory, logits, None), (logits[:0], np.zeros(0, np.int64))
        else:
            [(fitting, *held)] = _clients(self.prepare(Prepared(lambda: (logits, labels))))
            found = self.inner.personal(scaler, memory, *fitting)
        if self.sets.coverage == "site" and SPREAD in params:
            below, n = self._below(params, found, *held)
            last = self.sets.edges(self.classes_of(logits.shape[1]))[-1]
            curve = np.append(self.curve(params, found)[:, 0], last)
            own = site_curve(below, n, float(params[COUNTS][0]), params[SPREAD], self.sets.confidence, curve)
            found = {**found, GLOBAL: own[:, None]}
        return found

    # --- serving ---------------------------------------------------------------------------------------------------------

    def apply(self, params: Params, logits: Any) -> Any:
        return self.inner.apply(_without_sets(params), logits)

    def apply_personal(self, params: Params, personal: Params, logits: Any) -> Any:
        return self.inner.apply_personal(_without_sets(params), _without_sets(personal), logits)

    def scores(self, params: Params, personal: Params, logits: Array) -> np.ndarray:
        """Return the score of every class, (N, K)."""
        if not len(logits):
            return np.zeros((0, self.classes_of(logits.shape[1])))
        calibrated = self.apply_personal(params, personal, logits.astype(float, copy=False))
        return scores_of(self.sets.score, ordered_softmax(calibrated))

    def curve(self, params: Params, personal: Params) -> np.ndarray:
        """Return the thresholds that serve, (levels, 1 or K): the client's, those of personal scalers, or the global ones."""
        if GLOBAL in personal:
            return personal[GLOBAL]
        return params[PERSONAL if personal and PERSONAL in params else GLOBAL]

    def predict_set(self, params: Params, personal: Params, logits: Array, alpha: float) -> Array:
        """Return the sets as booleans, (N, K).

        Args:
            params: of the global scaler.
            personal: of the client; empty for none.
            logits: (N, K).
            alpha: the share of labels that may be missed.
        """
        threshold = self.curve(params, personal)[level_of(alpha)]
        return sets_of(self.scores(params, personal, logits), threshold)

    def too_few(self, params: Params, alpha: float) -> str:
        """Return one line that says where there are too few samples for a threshold, and what serves; empty: nowhere."""
        counts, level = params[COUNTS], LEVELS[level_of(alpha)]
        needed = int(np.ceil(1 / level - 1 - 1e-9))
        if self.sets.coverage != "class":
            if rank_of(level, counts[0]) <= counts[0]:
                return ""
            return (
                f"{int(counts[0])} held-out samples, where alpha={alpha:g} needs {needed}: every class is in every set"
            )
        (*shown, rare), lines = counts, list[str]()
        short = np.flatnonzero(rank_of(level, np.array(shown)) > shown)
        whole = np.array(shown)[short] + rare
        everywhere = rank_of(level, whole) > whole
        for columns, outcome in (
            (short[everywhere], "in every set"),
            (short[~everywhere], "with a threshold in common"),
        ):
            if len(columns):
                some = ", ".join(map(str, columns[:5])) + (", …" if len(columns) > 5 else "")
                what = f"{counted(len(columns), 'class')} with fewer than {needed} held-out samples"
                lines.append(f"{what} (columns {some}): {outcome}")
        return "; ".join(lines)


def _without_sets(params: Params) -> Params:
    return {name: value for name, value in params.items() if name not in NAMES}


def _clients(samples: Prepared) -> Iterator[tuple[tuple[Array, Array], Array, Array]]:
    """Each client's samples to fit on, and the logits and labels that it held out; none, if its policy forbids so few."""
    fitting, held = samples.split
    rows, held_rows = fitting.scores, held.scores
    first = first_held = 0
    for n, m in zip(fitting.counts, held.counts, strict=True):
        told = slice(first_held, first_held + (m if m >= samples.fewest else 0))
        chosen = slice(first, first + n)
        yield (
            (rows[chosen].astype(float, copy=False), fitting.labels[chosen]),
            held_rows[told],
            held.labels[told],
        )
        first, first_held = first + n, first_held + m


SET_QUERIES: tuple[type[Query], ...] = (SetScores, SiteSpread)
