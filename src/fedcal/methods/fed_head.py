"""Fed-Head: the model's last linear layer refitted exactly from sums, where that beats `fedcal-plus`.

It takes features, which the last layer multiplies, beside the model's logits. After FedAvg under label skew the last layer
leans towards the last round's clients, and a linear map of K logits can undo less of that than one of d features.

1. `fedcal-plus` chooses its linear map of the logits.
2. Heads u = b z + V x + c are fitted by softmax regression: on calibration samples, and on training samples too where
   clients give them; at several ridges, which shrink towards the model's own head at a temperature.
3. The best head is kept if on calibration samples, out of fold, its NLL is lower than the map's, by the rule by which
   `fedcal-plus` chooses among its maps. Else the map stays: the method has said no.
4. A confidence map, and each client's prior shift, as in `fedcal-plus`: from out-of-fold calibration samples alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params, double
from fedcal.errors import FedCalError
from fedcal.exact import queries
from fedcal.exact.head import HEAD, HEAD_ALL, apply_head
from fedcal.exact.head_choice import choose_head
from fedcal.exact.head_fit import CHOOSING_ROUNDS, FOLD_ROUNDS, RIDGES
from fedcal.exact.head_queries import HeadScales, HeadStart, HeadSums
from fedcal.exact.head_samples import HeadSamples
from fedcal.exact.linear import centre
from fedcal.exact.maps import apply_confidence_map
from fedcal.exact.prepared import Prepared
from fedcal.exact.solve import Program
from fedcal.exact.stages import average_map, fit_linear, fit_prior_shift, start
from fedcal.methods.fed_linear import first_stage
from fedcal.methods.fedcal_plus import FedCalPlus, choose_family, personal_shift, too_few
from fedcal.methods.method import Additive, Method, Stage, option
from fedcal.methods.sets import WithSets

PLUS = FedCalPlus()


@dataclass(frozen=True)
class FedHead(Additive):
    leaves = "what fedcal-plus sends; sums of loss, gradient and Hessian over features, and their second moment"
    takes = "features"

    name: str = "fed-head"
    summary: str = "the last layer refitted from sums over features, or fedcal-plus if that is no worse"
    features: int = option(
        0,
        "Number of inputs of the last layer; found from the samples or the model if these are at hand.",
        low=0,
        high=10**6,
    )
    prior_shift: bool = option(True, "Shift each client's scaler to its own label distribution.")

    # --- samples ---------------------------------------------------------------------------------------------------------

    def width(self, n_classes: int) -> int:
        return n_classes + self._d + 1

    def classes_of(self, width: int) -> int:
        return width - self._d - 1

    def logits(self, rows: Any) -> Any:
        return rows[:, : self.classes_of(rows.shape[1])]

    def prepare(self, samples: Prepared) -> Prepared:
        return samples if isinstance(samples, HeadSamples) else HeadSamples(samples, self._d)

    @property
    def _d(self) -> int:
        if not self.features:
            raise FedCalError(
                "fed-head needs the model's features, not only its logits: give their number (features=64), and samples "
                "with features (docs/fed-head.md)"
            )
        return self.features

    # --- the server's half -------------------------------------------------------------------------------------------------

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        plus = replace(PLUS, prior_shift=self.prior_shift).stages(n_classes)
        scored = next(i for i, stage in enumerate(plus) if stage.query is queries.Histogram)
        every, two = {HEAD: len(RIDGES), HEAD_ALL: len(RIDGES)}, {HEAD: 1, HEAD_ALL: 1}
        found = {HEAD: 2 * len(RIDGES)}  # out of fold, a head is a head, whatever it was fitted on
        heads = (
            Stage(HeadStart),
            Stage(HeadSums, CHOOSING_ROUNDS, every, folds=True),
            Stage(HeadScales, 1, found, folds=True),
            Stage(HeadSums, FOLD_ROUNDS, two, folds=True),
            Stage(HeadScales, 1, {HEAD: 2}, folds=True),
            Stage(queries.Score, 1, {**dict.fromkeys(PLUS.ridges(n_classes), 1), HEAD: 2}, folds=True),
        )
        after = [replace(stage, maps={**stage.maps, HEAD: 1}) if stage.maps else stage for stage in plus[scored:]]
        return (*plus[:scored], *heads, *after)

    def program(self, n_classes: int) -> Program:
        clients = yield from start(n_classes, folded=True)
        if too_few(clients):
            return {"temperature": (yield from fit_linear("temperature", 0.0, clients)), "fallback": np.ones(())}
        _, chosen = yield from choose_family(PLUS.ridges(n_classes), clients)
        head = yield from choose_head(chosen.fold_map, chosen.family == "temperature", clients)
        params = {chosen.family: chosen.fit.t} if head is None else {HEAD: head.whole, "trained": head.trained}
        fold_map = chosen.fold_map if head is None else head.fold_map
        found = average_map((yield queries.Histogram(fold_map, False))["histogram"])
        local = (yield from fit_prior_shift(fold_map, found, clients.labels)) if self.prior_shift else {}
        return {**params, **found, **local}

    # --- the scaler ------------------------------------------------------------------------------------------------------

    def apply(self, params: Params, logits: Any) -> Any:
        logits = double(logits)  # rows may come in float32: they are many
        z = self.logits(logits)
        if HEAD not in params:
            return apply_confidence_map(first_stage(params, z), params)
        return apply_confidence_map(apply_head(params[HEAD], centre(z), logits[:, z.shape[1] : -1]), params)

    def personal(self, params: Params, memory: Params, logits: Array, labels: Array | None) -> Params:
        return personal_shift(lambda rows: self.apply(params, rows), params, logits, labels)

    def apply_personal(self, params: Params, personal: Params, logits: Any) -> Any:
        return self.apply(params, logits) + personal.get("shift", 0.0)


def with_features_of(method: Method, d: int) -> Method:
    """Return the method with the number of the model's features set; a method that takes logits is returned unchanged.

    Args:
        method: any.
        d: the number of features.

    Raises:
        FedCalError: the method was made for another number of features.
    """
    if isinstance(method, WithSets) and method.takes == "features":
        return replace(method, inner=with_features_of(method.inner, d))
    if not isinstance(method, FedHead):
        return method
    if method.features not in (0, d):
        raise FedCalError(f"fed-head: features={method.features}, but the last layer takes {d}: leave the option out")
    return replace(method, features=d)
