"""Users' own logits: fit a scaler on their files, and say how good it is on samples that it has not seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from fedcal.calibrate.rounds import Calibration, begin, calibration_round, check_method
from fedcal.errors import FedCalError
from fedcal.measure.tally import Tally, pooled
from fedcal.report.tables import number, percent
from fedcal.seeds import numpy_rng

Sites = Mapping[str, tuple[Tensor, Tensor]]
HELD_OUT = 5  # one sample of so many is held out for the estimate
COLUMNS = [
    "",
    "n",
    "ECE %",
    "95 %",
    "floor %",
    "class %",
    "NLL",
    "Brier",
    "right %",
]  # floor: of the ECE; class: classwise ECE
POOLED = "pooled"


def fit(
    sites: Sites, method: str, options: dict[str, Any], seed: int, on_round: Callable[[Calibration], None]
) -> Calibration:
    """As `fedcal.calibrate`, clients in the order of their names: so a federation by files gives the same bytes."""
    chosen, samples = check_method(method, options), dict(sorted(sites.items()))
    if not chosen.rounds and method != "uncal":
        raise FedCalError(f"{method} is fitted while a model is trained: choose another, or add --option rounds=N")
    state = begin(chosen, next(iter(samples.values()))[0].shape[1], seed, method)
    while state.rounds < chosen.rounds and not state.done:
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


def measure(sites: Sites, apply: Callable[[str, Tensor], Tensor]) -> dict[str, Tally]:
    """The tally of all sites together, then of each one that has samples; `apply` gives calibrated logits."""
    tallies = {name: Tally.of(apply(name, logits), labels) for name, (logits, labels) in sites.items() if len(labels)}
    if POOLED in tallies:
        raise FedCalError(f"a site cannot be named {POOLED!r}: that is what all of them together are called")
    return {POOLED: pooled(list(tallies.values())), **tallies} if tallies else {}


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


def estimate(fitted: Calibration, held: Sites) -> dict[str, dict[str, Tally]]:
    """Held-out samples before, by the global scaler, and by each client's own."""
    views = {
        "before": measure(held, lambda _, logits: logits),
        "global": measure(held, lambda _, logits: fitted.apply(logits)),
        "own": measure(held, lambda name, logits: fitted.apply(logits, name)),
    }
    return {name: tallies for name, tallies in views.items() if tallies}


def summary(name: str, final: Calibration, sites: Sites, seed: int, judged: Mapping[str, Mapping[str, Tally]]) -> Any:
    """What summary.json holds: the fit's cost, who took part, and the estimate with the data that it is from."""
    n = {site: len(labels) for site, (_, labels) in sites.items()}
    return {
        "schema": 1,
        "method": name,
        "options": asdict(final.method),
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
            **{view: as_json(tallies) for view, tallies in judged.items()},
        }
        if judged
        else None,
    }


def _clean(values: dict[str, float]) -> dict[str, float | None]:
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
