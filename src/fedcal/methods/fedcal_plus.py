"""FedCal-Plus: what cross-fitting says helps, and no more, all of it from sums.

1. A linear map of the logits. Its family (temperature, bias, vector, matrix) and ridge are chosen by the summed
   out-of-fold NLL, folds lying inside each client. Each family is shrunk towards a temperature, and what it shares with a
   smaller one no more than that one (`stages.prior_of`). Leaving the temperature, which may move the argmax, takes a gain
   of two standard errors; a larger family takes one more, and a map that has memorised its samples three. No map is
   chosen that is right less often than the temperature.
2. A map of the top confidence: a mean of several, fitted on the chosen map's out-of-fold confidences (`stages.average_map`).
3. The clients' label distributions: what a client needs to shift the posterior to its own (prior_shift.py).

`accuracy="keep"` leaves the order of the classes as the model gave it. Its confidence in the model's top label is still
what the best linear map believes of that label (`informed`), or else comes from the temperature alone. The prior shift
would move decisions at a client, so that with `keep` it has to be asked for: `prior_shift=True`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedcal.base.arrays import Array, Params, namespace, sigmoid
from fedcal.base.logits import BLOCK, keep_order
from fedcal.exact import maps, prior_shift, queries
from fedcal.exact.candidates import (
    FINISHING_ROUNDS,
    Candidate,
    finish,
    fit_all,
    in_turn,
    is_large,
    rounds_among,
    score,
)
from fedcal.exact.linear import FAMILIES, centre
from fedcal.exact.private import Family, fit_privately
from fedcal.exact.queries import SumQuery
from fedcal.exact.solve import Program, Sums
from fedcal.exact.stages import MATRIX_NEWTON_MAX, Clients, average_map, fit_linear, fit_prior_shift, start
from fedcal.methods.fed_linear import first_stage, fit_stages, private_fit_stages, start_stages
from fedcal.methods.method import Additive, Stage, option

MATRIX_MAX_CLASSES = 200  # beyond, a matrix has over 40 000 parameters and is not tried
MEMORISED = 4.0  # a map whose loss out of fold is over so many times that in sample has memorised its samples
MIN_SAMPLES = 50  # fewer cannot be cross-fitted: a shrunk temperature is all they can carry


@dataclass(frozen=True)
class FedCalPlus(Additive):
    leaves = "sums of loss, gradient, Hessian, label counts; histograms of confidences"

    name: str = "fedcal-plus"
    summary: str = "linear map and confidence map by cross-fitting, from sums"
    accuracy: Literal["improve", "keep"] = option(
        "improve",
        "Whether calibration may change the model's decisions (improve) or leaves them all as they are (keep).",
    )
    informed: bool = option(
        True, "keep: take the confidence from the best linear map, and not from the temperature alone."
    )
    prior_shift: bool | None = option(
        None, "Shift each client's scaler to its own label distribution; none: only if accuracy is improve."
    )

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        ridges, each = self.ridges(n_classes), dict.fromkeys(self.ridges(n_classes), 1)
        tried = {family: len(of) for family, of in ridges.items()}
        large = {family: n for family, n in tried.items() if is_large(family, n, n_classes)}
        fits = []
        for some in in_turn(ridges, n_classes):
            rounds = max(rounds_among(family, n_classes) for family in some)
            fits.append(Stage(queries.LinearSums, rounds, {family: tried[family] for family in some}, folds=True))
        if large:
            rounds = max(rounds_among(family, n_classes) for family in large)
            fits.append(Stage(queries.Score, 1, large, folds=True))
            fits.append(Stage(queries.LinearSums, rounds, dict.fromkeys(large, 1), folds=True))
        scored = {family: 1 if family in large else n for family, n in tried.items()}
        folds = [Stage(queries.Score, 1, scored, folds=True), Stage(queries.LinearSums, FINISHING_ROUNDS, each)]
        after = [Stage(queries.Histogram, 1, each, folds=True)]
        if self._shifted:
            after += [Stage(queries.CountsLikelihood), Stage(queries.ShiftEvidence, 1, each, folds=True)]
        fallback = fit_stages("temperature", n_classes)
        return (*start_stages(folded=True), *fallback, *fits, *folds, *after)

    def private_stages(self, n_classes: int) -> tuple[Stage, ...]:
        return private_fit_stages(self._largest(n_classes))

    def ridges(self, k: int) -> dict[str, tuple[float, ...]]:
        """The families to try, each with its ridges."""
        families = () if self.accuracy == "keep" and not self.informed else FAMILIES[1:]
        beyond = () if k <= MATRIX_MAX_CLASSES else ("matrix",)
        return {"temperature": (0.0,), **{f: ridges_of(f, k) for f in families if f not in beyond}}

    def _largest(self, k: int) -> Family:
        """The largest family that is tried: also under privacy, where a client adds no noise if the server does."""
        tried = self.ridges(k)
        return "matrix" if "matrix" in tried else "vector" if "vector" in tried else "temperature"

    @property
    def _shifted(self) -> bool:
        return self.accuracy == "improve" if self.prior_shift is None else self.prior_shift

    def program(self, n_classes: int) -> Program:
        clients = yield from start(n_classes, folded=True)
        if too_few(clients):
            return {"temperature": (yield from fit_linear("temperature", 0.0, clients)), "fallback": np.ones(())}
        temperature, chosen = yield from choose_family(self.ridges(n_classes), clients)
        family, fold_map = chosen.family, chosen.fold_map
        model_top = self.accuracy == "keep" and family != "temperature"
        histograms = (yield queries.Histogram(fold_map, model_top))["histogram"]
        found = average_map(histograms)
        params = {family: chosen.fit.t}
        if model_top:
            params["order"] = temperature.fit.t  # the model's own order, at its own temperature
            params["least"] = _least(found, histograms.sum(0), n_classes)
        after = {} if model_top else found
        local = (yield from fit_prior_shift(fold_map, after, clients.labels)) if self._shifted else {}
        return {**params, **found, **local}

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        fit = yield from fit_privately(n_classes, self._largest(n_classes), clip)
        chosen = fit.params
        if self.accuracy == "keep" and fit.family != "temperature" and not fit.fallback:
            chosen |= {
                "order": np.array([fit.scale]),
                "least": np.zeros(()),
            }
        return chosen | (prior_shift.without_release(fit.labels, fit.noise) if self._shifted else {})

    def personal(self, params: Params, memory: Params, logits: Array, labels: Array | None) -> Params:
        """The shift to the client's own label distribution: from its labels, or estimated where it has none."""
        return personal_shift(lambda z: self._posterior(params, z), params, logits, labels)

    def apply_personal(self, params: Params, personal: Params, logits: Any) -> Any:
        return (
            self._posterior(params, logits) + personal["shift"] if "shift" in personal else self.apply(params, logits)
        )

    def _posterior(self, params: Params, logits: Any) -> Any:
        """What the scaler believes of all classes, which a client may shift: without the order that `keep` puts back."""
        u = first_stage(params, logits)
        return u if "order" in params else maps.apply_confidence_map(u, params)

    def apply(self, params: Params, logits: Any) -> Any:
        u = self._posterior(params, logits)
        if "order" not in params:
            return keep_order(u, logits) if self.accuracy == "keep" else u
        own = params["order"][0] * centre(logits)
        v = maps.map_log_odds(params, *maps.log_odds(u, own.argmax(1)))
        lowest = -math.log(logits.shape[1] - 1)
        v = namespace(v).where(sigmoid(v) <= params["least"], lowest, v)
        return keep_order(maps.lift(own, v), logits)


def too_few(clients: Clients) -> bool:
    """Whether there are too few samples to cross-fit."""
    one_class = int((clients.labels > 0).sum()) < 2
    return clients.n < MIN_SAMPLES or one_class or not clients.folds_filled


def personal_shift(posterior: Callable[[Array], Array], params: Params, logits: Array, labels: Array | None) -> Params:
    """A client's shift to its own label distribution: from its labels, or estimated where it has none."""
    if "prior" not in params:
        return {}
    if labels is None:
        return {"shift": prior_shift.shift_unlabelled(params, posterior(logits))}
    rows = max(1, BLOCK // logits.shape[1])
    parts = (slice(first, first + rows) for first in range(0, len(labels), rows))
    chunks = ((posterior(logits[part]), labels[part], np.zeros_like(labels[part])) for part in parts)
    counts = prior_shift.label_counts(labels, np.zeros_like(labels), 1, len(params["prior"]))
    likelihood = prior_shift.shift_likelihood(chunks, counts, params["prior"], params["alpha"])
    return {"shift": prior_shift.shift(params, labels, likelihood[0])}


def choose_family(
    ridges: dict[str, tuple[float, ...]], clients: Clients
) -> Generator[SumQuery, Sums, tuple[Candidate, Candidate]]:
    """The temperature, and the chosen candidate: of each family its best ridge out of fold, and of these what pays.

    A map that gets few samples all right is as sure as its ridge lets it be. Its loss on others then hangs on the few that it
    gets wrong, of which the folds may hold none: so their standard error is too small, and such maps come last.
    """
    tried = yield from fit_all(ridges, clients)
    scores = yield from score(tried, clients)
    large = {family for family, of in ridges.items() if is_large(family, len(of), clients.k)}
    left = [0.0 if of.family in large else of.left for of in tried]  # large ones go on for few steps, and change little
    memorised = [i for i, of in enumerate(tried) if i and float(scores.total[i]) > MEMORISED * of.fit.loss]
    others = [i for i in range(1, len(tried)) if i not in memorised]
    by_family = [[i for i in others if tried[i].family == family] for family in ridges]
    chosen = 0
    for some in filter(None, (*by_family, memorised)):
        best = min(some, key=lambda i: float(scores.total[i]) + left[i])
        gain, error = scores.paired(chosen, best)
        gain -= left[best] / clients.n  # what its fits had still to gain counts against it
        errors = 3 if best in memorised else 2 if chosen == 0 else 1
        as_right = float(scores.hits[best]) >= float(scores.hits[0])
        if gain > max(0.0, errors * error) and as_right:
            chosen = best
    yield from finish([tried[i] for i in sorted({0, chosen})])
    return tried[0], tried[chosen]


def ridges_of(family: str, k: int) -> tuple[float, ...]:
    """Prior precisions to try, in natural logit units, strong to weak; of a large matrix fewer, since each costs a gradient
    of K² numbers in every round."""
    if family == "matrix" and k > 10:
        return (1e3, 1e2, 1e1, 1.0) if k <= MATRIX_NEWTON_MAX else (3e3, 1e3, 3e2, 1e2, 3e1)
    return {
        "bias": (1e2, 1e1, 1.0, 0.1),
        "vector": (1e3, 1e2, 1e1, 1.0),
        "matrix": (1e4, 1e3, 1e2, 1e1, 1.0, 0.1),
    }[family]


def _least(found: Params, histogram: Array, k: int) -> Array:
    """The confidence below which samples are lumped at 1/K, the least that a top label of K can show: the lowest ones
    whose mean is that, so that together they are right."""
    count, _, confidence = histogram[:3]
    live = count > 0
    p = np.clip(confidence[live] / count[live], 1e-12, 1 - 1e-12)
    q = sigmoid(maps.map_log_odds(found, np.log(p), -np.log1p(-p)))
    low = np.cumsum(q * count[live]) / np.cumsum(count[live]) < 1 / k
    return q[low].max() if low.any() else np.zeros(())
