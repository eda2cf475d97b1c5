"""Users' own logits: fit a scaler on their files, and say how good it is on samples that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcal.base.seeds import numpy_rng
from fedcal.errors import FedCalError
from fedcal.measure.paired import Difference, Paired, top_of
from fedcal.measure.reliability import blocks
from fedcal.measure.tally import Tally, pooled
from fedcal.methods import Method, method_to_json
from fedcal.protocol.rounds import Calibration, begin, calibration_round
from fedcal.report.tables import number, percent

Sites = Mapping[str, tuple[Tensor, Tensor]]
HELD_OUT = 5  # one sample of so many is held out for the estimate
# floor: of the ECE; class: classwise ECE
COLUMNS = ["", "n", "ECE %", "95 %", "floor %", "class %", "NLL", "Brier", "right %"]
POOLED = "pooled"


def fit(sites: Sites, method: Method, seed: int, on_round: Callable[[Calibration], None]) -> Calibration:
    """As `fedcal.calibrate`, clients in the order of their names: so a federation by files gives the same bytes."""
    samples = dict(sorted(sites.items()))
    if not method.rounds and method.name != "uncal":
        raise FedCalError(
            f"{method.name} is fitted while a model is trained: choose another, or --method {method.name}:rounds=30"
        )
    state = begin(method, next(iter(samples.values()))[0].shape[1], seed)
    while state.rounds < method.rounds and not state.done:
        calibration_round(state, samples, seed)
        on_round(state)
    return state


def hold_out(sites: Sites, seed: int) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, tuple[Tensor, Tensor]]]:
    """Each site's samples to fit on, and a random fifth to judge by (none of a site with fewer than five)."""
    kept, held = {}, {}
    for name, (logits, labels) in sites.items():
        order = torch.from_numpy(numpy_rng(seed, "held-out", name).permutation(len(labels)))
        cut = len(labels) // HELD_OUT
        held[name] = logits[order[:cut]], labels[order[:cut]]
        kept[name] = logits[order[cut:]], labels[order[cut:]]
    return kept, held


@dataclass(frozen=True)
class Measured:
    """Views of the same samples (before and after calibration, say): their tallies, and how they compare."""

    tallies: dict[str, dict[str, Tally]]  # by view, then "pooled" or the site
    paired: Paired  # over all sites

    def change(self, view: str, start: str = "before") -> Difference:
        """The pooled ECE of a view less that of another one, with the 95 % interval of the difference."""
        return self.paired.difference(view, start)


def measure(sites: Sites, views: Mapping[str, Callable[[str, Tensor], Tensor]]) -> Measured:
    """All sites together, then each one that has samples. A view gives calibrated logits of (site, logits).

    It does so for a block of samples at a time, so that little memory is needed beside the samples.
    """
    tallies: dict[str, dict[str, Tally]] = {view: {} for view in views}
    paired = Paired.of({view: (np.empty(0), np.empty(0)) for view in views})
    for name, (logits, labels) in sites.items():
        if name == POOLED and len(labels):
            raise FedCalError(f"a site cannot be named {POOLED!r}: that is what all of them together are called")
        for z, y in blocks(logits, labels) if len(labels) else ():
            tops = {}
            for view, apply in views.items():
                calibrated = apply(name, z).double()
                tally = Tally.of(calibrated, y)
                tallies[view][name] = tallies[view][name] + tally if name in tallies[view] else tally
                if len(views) > 1:
                    tops[view] = top_of(calibrated, y)
            paired = paired + Paired.of(tops) if tops else paired
    whole = {view: {POOLED: pooled(list(found.values())), **found} for view, found in tallies.items() if found}
    return Measured(whole, paired)


def as_json(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """Every metric, pooled and by client, and the worst client; NaN is null."""
    rows = {name: {"n": tally.n, **_clean(tally.summary(interval=True))} for name, tally in tallies.items()}
    whole = rows.pop(POOLED)
    worst = max(rows, key=lambda name: rows[name]["ece"])
    return {"pooled": whole, "clients": rows, "worst_client": worst, "worst_ece": rows[worst]["ece"]}


def cells(name: str, tally: Tally) -> list[str]:
    """A row of a table, as COLUMNS says."""
    s = _clean(tally.summary(interval=True))
    ece, low, high, floor, classwise, accuracy = (
        percent(s[key]) for key in ("ece", "ece_low", "ece_high", "ece_floor", "classwise_ece", "accuracy")
    )
    interval = f"{low}–{high}"
    return [name, str(tally.n), ece, interval, floor, classwise, number(s["nll"]), number(s["brier"]), accuracy]


def estimate(fitted: Calibration, held: Sites) -> Measured:
    """Held-out samples before, by the global scaler, and by each client's own."""
    return measure(
        held,
        {
            "before": lambda _, logits: logits,
            "global": lambda _, logits: fitted.apply(logits, probs=False),
            "own": lambda name, logits: fitted.apply(logits, name, probs=False),
        },
    )


def in_words(change: Difference) -> str:
    """What a difference of two ECEs on the same samples allows to say."""
    value, low, high = change
    if low == high == 0:
        return "the same ECE: nothing changed on these samples"
    size = f"{abs(100 * value):.2f} points {'lower' if value < 0 else 'higher'}"
    verdict = "not told apart" if low <= 0 <= high else "a clear difference"
    return f"ECE {size} (95 % interval of the change {100 * low:+.2f} to {100 * high:+.2f}): {verdict} on these samples"


def summary(final: Calibration, sites: Sites, seed: int, judged: Measured | None) -> Any:
    """What summary.json holds: the fit's cost, who took part, and the estimate with the data that it is from."""
    n = {site: len(labels) for site, (_, labels) in sites.items()}
    return {
        "schema": 1,
        **method_to_json(final.method),
        "seed": seed,
        "classes": final.n_classes,
        "n": sum(n.values()),
        "clients": n,
        "scaler": {
            "data": "fitted on all samples of all clients",
            "parts": sorted(final.params),
            "rounds": final.rounds,
            "bytes_up_a_client": final.total_up,
            "bytes_down_a_client": final.total_down,
        },
        "estimate": {
            "data": "fitted on four fifths of each client's samples, measured on the other fifth, which it has not seen",
            **{view: as_json(tallies) for view, tallies in judged.tallies.items()},
            "ece_change": {view: list(judged.change(view)) for view in judged.tallies if view != "before"},
        }
        if judged
        else None,
    }


def _clean(values: dict[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
