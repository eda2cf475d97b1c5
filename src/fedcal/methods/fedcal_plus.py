"""FedCal-Plus: what cross-fitting says helps, and no more, all of it from sums.

1. A linear map of the logits. Its family (temperature, bias, vector, matrix) and ridge are chosen by the summed
   out-of-fold NLL, folds lying inside each client. Each family is shrunk towards the fit of the one before. Leaving the
   temperature, which may move the argmax, takes a gain of two standard errors and no loss of accuracy; a larger family
   takes one more.
2. A map of the top confidence, fitted on the chosen map's out-of-fold confidences and kept only if it helps there.
3. The clients' label distributions: what a client needs to shift the posterior to its own (prior_shift.py).

In large federations, 1 and 2 are chosen on a share of the samples (N_CHOOSE of them), and fitted on all.

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
from fedcal.base.query import Query
from fedcal.exact import maps, prior_shift, queries
from fedcal.exact.linear import FAMILIES, centre
from fedcal.exact.prepared import ALL, FoldMap, Prepared
from fedcal.exact.private import fit_privately
from fedcal.exact.queries import SumQuery, apply_confidence_map, client_counts
from fedcal.exact.solve import Program, Sums, with_share
from fedcal.exact.stages import (
    FITTING,
    Clients,
    Fits,
    choose_map,
    choose_ridge,
    fit_linear,
    fit_prior_shift,
    paired,
    start,
)
from fedcal.methods.fed_linear import first_stage
from fedcal.methods.method import Additive, Update, option

MATRIX_MAX_CLASSES = 200  # beyond, a matrix has over 40 000 parameters and is not tried
N_CHOOSE = 50_000  # samples that are enough to choose on; what is chosen is fitted on all of them
MIN_SAMPLES = 50  # fewer cannot be cross-fitted: a shrunk temperature is all they can carry


@dataclass(frozen=True)
class FedCalPlus(Additive):
    leaves = "sums of loss, gradient, Hessian, label counts; histograms of confidences"
    may_ask = (
        queries.Start, queries.LinearSums, queries.MatrixBlocks, queries.Score, queries.Several, queries.Histogram,
        queries.BetaSums, queries.CompareMaps, queries.CountsLikelihood, queries.StrengthWeights,
    )  # fmt: skip
    private = True

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
            fits = yield from fit_linear("temperature", 0.0, {ALL: {}}, clients)
            return {"temperature": fits[ALL], "fallback": torch.ones(())}
        families = FAMILIES[1:] if n_classes <= MATRIX_MAX_CLASSES else FAMILIES[1:3]
        if self.accuracy == "keep" and not self.informed:
            families = ()
        share = min(1.0, N_CHOOSE / clients.n)
        few = clients if share == 1 else (yield from with_share(share, start(n_classes)))
        base, fits = yield from choose_family(families, clients, few, share)
        family = next(reversed(base))
        model_top = self.accuracy == "keep" and family != "temperature"
        if share < 1 and (model_top or family == "temperature"):  # so far it is that of the few
            base |= {"temperature": (yield from fit_linear("temperature", 0.0, {ALL: {}}, clients))[ALL]}
        chosen, fold_map = {family: base[family]}, FoldMap(family, fits)
        found, histogram = yield from choose_map(queries.View(fold_map, model_top), few, share)
        if model_top:
            chosen["order"] = base["temperature"]  # the model's own order, at its own temperature
            chosen["least"] = _least(found, histogram, n_classes)
        shifted = self.accuracy == "improve" if self.prior_shift is None else self.prior_shift
        after = {} if model_top else found
        local = (yield from fit_prior_shift(fold_map, after, clients.labels)) if shifted else {}
        return {**chosen, **found, **local}

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        keep = self.accuracy == "keep"
        fit = yield from fit_privately(n_classes, "temperature" if keep and not self.informed else "matrix", clip)
        chosen = fit.params
        if keep and fit.family != "temperature" and not fit.fallback:
            chosen |= {
                "order": torch.tensor([fit.scale], dtype=torch.float64),
                "least": torch.zeros((), dtype=torch.float64),
            }
        shifted = not keep if self.prior_shift is None else self.prior_shift
        return chosen | (prior_shift.without_release(fit.labels, fit.noise) if shifted else {})

    def reply(self, query: Query, samples: Prepared, memory: Params) -> Update:
        """Reply as every additive method does.

        A client keeps how likely the prior shift makes its labels: it personalises with that. The query holds all that is
        needed to compute it again, so that losing it costs time and nothing else.
        """
        if not isinstance(query, queries.StrengthWeights):
            return super().reply(query, samples, memory)
        key = query.key()
        if "of" not in memory or not torch.equal(memory["of"][0], key):
            likelihood = query.likelihood(samples)
            memory = {"likelihood": likelihood, "of": key.expand(len(likelihood), -1)}  # a row for each client
        return Update(query.weigh(memory["likelihood"]), memory=memory)

    def personal(self, params: Params, memory: Params, logits: Tensor, labels: Tensor | None) -> Params:
        """The shift to the client's own label distribution: from its labels, or estimated where it has none."""
        if "prior" not in params:
            return {}
        if labels is None:
            return {"shift": prior_shift.shift_unlabelled(params, self._posterior(params, logits))}
        if "likelihood" in memory:
            return {"shift": prior_shift.shift(params, labels, memory["likelihood"][0])}
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
    families: tuple[str, ...], clients: Clients, few: Clients, share: float
) -> Generator[SumQuery, Sums, tuple[dict[str, Tensor], Fits]]:
    """The chain of fits on all samples, up to the chosen family (its last entry), and that family's fits by fold.

    `few` are the clients with a share of their samples, on which the family and its ridges are chosen; the chain's
    temperature, from which nothing else follows, is theirs.
    """
    temperature, ridges, fits = yield from with_share(share, _compare_families(families, few))
    whole: dict[str, Tensor] = {"temperature": temperature}
    for name in list(fits)[1:]:
        begin = {ALL: torch.stack([fits[name][f] for f in range(FOLDS)]).mean(0)}
        whole[name] = (yield from fit_linear(name, ridges[name], {ALL: whole}, clients, begin, FITTING))[ALL]
    return whole, next(reversed(fits.values()))


def _compare_families(
    families: tuple[str, ...], clients: Clients
) -> Generator[SumQuery, Sums, tuple[Tensor, dict[str, float], dict[str, Fits]]]:
    """The temperature of all samples; ridges and fits by fold of the families up to the chosen one."""
    folds = range(FOLDS)
    first = yield from fit_linear("temperature", 0.0, {fold: {} for fold in [*folds, ALL]}, clients)
    base = {fold: {"temperature": first[fold]} for fold in folds}
    ridges, fits = {"temperature": 0.0}, {"temperature": {fold: first[fold] for fold in folds}}
    for family in families:
        ridges[family], fits[family] = yield from choose_ridge(family, base, clients)
        for fold in folds:
            base[fold][family] = fits[family][fold]
    names = list(fits)
    sums = yield queries.Score(tuple(FoldMap(name, fits[name]) for name in names))
    chosen = 0
    for j in range(1, len(names)):
        gain, error = paired(sums, clients.n, chosen, j)
        as_right = chosen > 0 or float(sums["hits"][j]) >= float(sums["hits"][0])
        clients.log[f"{names[j]}_gain"] = gain
        if gain > max(0.0, (2 if chosen == 0 else 1) * error) and as_right:
            chosen = j
    return first[ALL], ridges, {name: fits[name] for name in names[: chosen + 1]}


def _least(found: Params, histogram: Tensor, k: int) -> Tensor:
    """The confidence below which samples are lumped at 1/K, the least that a top label of K can show: the lowest ones
    whose mean is that, so that together they are right."""
    count, confidence, _ = histogram
    live = count > 0
    p = (confidence[live] / count[live]).clamp(1e-12, 1 - 1e-12)
    q = maps.map_log_odds(found, p.log(), -torch.log1p(-p)).sigmoid()
    low = (q * count[live]).cumsum(0) / count[live].cumsum(0) < 1 / k
    return q[low].max() if bool(low.any()) else torch.zeros((), dtype=torch.float64)
