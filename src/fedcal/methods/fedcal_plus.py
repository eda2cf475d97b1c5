"""FedCal-Plus: what cross-fitting says helps, and no more, all of it from sums.

1. A linear map of the logits. Its family (temperature, bias, vector, matrix) and ridge are chosen by the summed
   out-of-fold NLL, folds lying inside each client. All are shrunk towards a temperature's map, and all are fitted in the
   same rounds. Leaving the temperature, which may move the argmax, takes a gain of two standard errors and no loss of
   accuracy; a larger family takes one more.
2. A map of the top confidence, fitted on the chosen map's out-of-fold confidences and kept only if it helps there.
3. The clients' label distributions: what a client needs to shift the posterior to its own (prior_shift.py).

`accuracy="keep"` leaves the order of the classes as the model gave it. Its confidence in the model's top label is still
what the best linear map believes of that label (`informed`), or else comes from the temperature alone. The prior shift
would move decisions at a client, so that with `keep` it has to be asked for: `prior_shift=True`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedcal.base.folds import FOLDS
from fedcal.base.logits import BLOCK, Params, keep_order
from fedcal.exact import maps, prior_shift, queries
from fedcal.exact.linear import FAMILIES, centre
from fedcal.exact.prepared import ALL, Prepared
from fedcal.exact.queries import SumQuery, apply_confidence_map, client_counts
from fedcal.exact.solve import Program, Sums
from fedcal.exact.stages import (
    FOLD_LARGE,
    GRIDS,
    MATRIX_NEWTON_MAX,
    NEWTON_ROUNDS,
    OTHER_ROUNDS,
    Candidate,
    Clients,
    choose_map,
    fit_all,
    fit_folds,
    fit_linear,
    fit_prior_shift,
    score,
    start,
)
from fedcal.methods.fed_linear import first_stage
from fedcal.methods.method import Additive, Stage, option

MATRIX_MAX_CLASSES = 200  # beyond, a matrix has over 40 000 parameters and is not tried
FOLD_ROUNDS, LARGE_FOLD_ROUNDS = 3, 5  # steps of the fits without a fold
CANDIDATES = 15  # families with their ridges
MIN_SAMPLES = 50  # fewer cannot be cross-fitted: a shrunk temperature is all they can carry


@dataclass(frozen=True)
class FedCalPlus(Additive):
    leaves = "sums of loss, gradient, Hessian, label counts; histograms of confidences"
    stages = (
        Stage(queries.Start),
        Stage(queries.LinearSums, GRIDS + 2 * OTHER_ROUNDS, maps=CANDIDATES),
        Stage(queries.LinearSums, FOLD_ROUNDS, maps=CANDIDATES * (FOLDS + 1)),
        Stage(queries.Score),
        Stage(queries.LinearSums, LARGE_FOLD_ROUNDS, maps=len(FAMILIES) * (FOLDS + 1)),
        Stage(queries.Score), Stage(queries.Histogram), Stage(queries.CountsLikelihood), Stage(queries.ShiftEvidence),
    )  # fmt: skip
    per_sample = False  # likelihoods are of whole clients

    name: str = "fedcal-plus"
    summary: str = "linear map and confidence map by cross-fitting, from sums"
    accuracy: Literal["improve", "keep"] = option(
        "improve",
        "Whether calibration may change the model's decisions (improve), or leaves every one as it is (keep).",
    )
    informed: bool = option(
        True, "keep: take the confidence from the best linear map, and not from the temperature alone."
    )
    prior_shift: bool | None = option(
        None, "Shift each client's scaler to its own label distribution; none: only if accuracy is improve."
    )

    def program(self, n_classes: int) -> Program:
        clients = yield from start(n_classes, folded=True)
        one_class = int((clients.labels > 0).sum()) < 2
        if clients.n < MIN_SAMPLES or one_class or not clients.folds_filled:
            b = yield from fit_linear("temperature", 0.0, clients, NEWTON_ROUNDS)
            return {"temperature": b, "fallback": torch.ones(())}
        families = FAMILIES[1:] if n_classes <= MATRIX_MAX_CLASSES else FAMILIES[1:3]
        if self.accuracy == "keep" and not self.informed:
            families = ()
        temperature, chosen = yield from choose_family(families, clients)
        family, fold_map = chosen.family, chosen.fold_map
        model_top = self.accuracy == "keep" and family != "temperature"
        histograms = (yield queries.Histogram(fold_map, model_top))["histogram"]
        found = choose_map(histograms, clients)
        params = {family: chosen.folds[ALL].t}
        if model_top:
            params["order"] = temperature.folds[ALL].t  # the model's own order, at its own temperature
            params["least"] = _least(found, histograms.sum(0), n_classes)
        shifted = self.accuracy == "improve" if self.prior_shift is None else self.prior_shift
        after = {} if model_top else found
        local = (yield from fit_prior_shift(fold_map, after, clients.labels)) if shifted else {}
        return {**params, **found, **local}

    def personal(self, params: Params, memory: Params, logits: Tensor, labels: Tensor | None) -> Params:
        """The shift to the client's own label distribution: from its labels, or estimated where it has none."""
        if "prior" not in params:
            return {}
        if labels is None:
            return {"shift": prior_shift.shift_unlabelled(params, self._posterior(params, logits))}
        chunks = (
            (self._posterior(params, z), y, torch.zeros_like(y))
            for z, y in zip(*(v.split(max(1, BLOCK // logits.shape[1])) for v in (logits, labels)), strict=True)
        )
        counts = client_counts(Prepared(lambda: (logits, labels)))
        likelihood = prior_shift.shift_likelihood(chunks, counts, params["prior"], params["alpha"])
        return {"shift": prior_shift.shift(params, labels, likelihood[0])}

    def apply_personal(self, params: Params, personal: Params, logits: Tensor) -> Tensor:
        return (
            self._posterior(params, logits) + personal["shift"] if "shift" in personal else self.apply(params, logits)
        )

    def _posterior(self, params: Params, logits: Tensor) -> Tensor:
        """What the scaler believes of all classes, which a client may shift: without the order that `keep` puts back."""
        u = first_stage({name: t for name, t in params.items() if name in FAMILIES}, logits)
        return u if "order" in params else apply_confidence_map(u, params)

    def apply(self, params: Params, logits: Tensor) -> Tensor:
        u = self._posterior(params, logits)
        if "order" not in params:
            return keep_order(u, logits) if self.accuracy == "keep" else u
        own = params["order"][0] * centre(logits)
        v = maps.map_log_odds(params, *maps.log_odds(u, own.argmax(1)))
        lowest = -torch.log(torch.tensor(logits.shape[1] - 1.0, dtype=torch.float64))
        v = torch.where(v.sigmoid() <= params["least"], lowest, v)
        return keep_order(maps.lift(own, v), logits)


def choose_family(
    families: tuple[str, ...], clients: Clients
) -> Generator[SumQuery, Sums, tuple[Candidate, Candidate]]:
    """The temperature, and the chosen candidate: of each family its best ridge out of fold, and of these what pays."""
    ridges = {family: ridges_of(family, clients.k) for family in families}
    tried = yield from fit_all({"temperature": (0.0,), **ridges}, clients)
    large = 8 * FOLDS * sum(of.fit.t.numel() for of in tried) > FOLD_LARGE
    yield from fit_folds(tried, 1 if large else FOLD_ROUNDS)
    scores = yield from score(tried, clients)
    if large:  # too much to send for all of them
        tried = [tried[scores.best_of(tried, family)] for family in ("temperature", *families)]
        yield from fit_folds(tried, LARGE_FOLD_ROUNDS)
        scores = yield from score(tried, clients)
    chosen = 0
    for family in families:
        best = scores.best_of(tried, family)
        gain, error = scores.paired(chosen, best)
        as_right = chosen > 0 or float(scores.hits[best]) >= float(scores.hits[0])
        clients.log[f"{family}_gain"] = gain
        if gain > max(0.0, (2 if chosen == 0 else 1) * error) and as_right:
            chosen = best
    return tried[0], tried[chosen]


def ridges_of(family: str, k: int) -> tuple[float, ...]:
    """Prior precisions to try, in natural logit units, strong to weak; of a large matrix fewer, since each costs a gradient
    of K² numbers in every round."""
    if family == "matrix" and k > 10:
        return (1e3, 1e2, 1e1, 1.0) if k <= MATRIX_NEWTON_MAX else (1e4, 2e3, 5e2, 1e2, 2e1)
    return {
        "bias": (1e2, 1e1, 1.0, 0.1),
        "vector": (1e3, 1e2, 1e1, 1.0),
        "matrix": (1e4, 1e3, 1e2, 1e1, 1.0, 0.1),
    }[family]


def _least(found: Params, histogram: Tensor, k: int) -> Tensor:
    """The confidence below which samples are lumped at 1/K, the least that a top label of K can show: the lowest ones
    whose mean is that, so that together they are right."""
    count, _, confidence = histogram[:3]
    live = count > 0
    p = (confidence[live] / count[live]).clamp(1e-12, 1 - 1e-12)
    q = maps.map_log_odds(found, p.log(), -torch.log1p(-p)).sigmoid()
    low = (q * count[live]).cumsum(0) / count[live].cumsum(0) < 1 / k
    return q[low].max() if bool(low.any()) else torch.zeros((), dtype=torch.float64)
