"""What a run shows, for people who use the probabilities: before and after, each client, what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcal.methods.spec import file_name
from fedcal.report.numbers import number, percent
from fedcal.report.prepare import Curve, Floats, curve_from_json
from fedcal.report.results import BASELINE, Results
from fedcal.report.tables import digits
from fedcal.report.words import main_method

FEW = 2000  # test samples, below which bins are joined until each holds enough of them
LEAST = 20  # test samples, below which a client's own figures are mostly noise
MOST = 30  # clients in a figure
OWN_MODEL = "fedcal calibrate site-a.npz site-b.npz --out calibrated"


@dataclass(frozen=True)
class Panel:
    """One reliability diagram of the story, with its figures."""

    title: str
    under: str
    curve: Curve
    accuracy: float | None
    ece: float | None
    floor: float | None


def panels(results: Results) -> list[Panel]:
    """Before; after, by the global scaler; after, by each client's personal one (where clients have one)."""
    name, methods = main_method(results), results["methods"]
    if name is None:
        return []
    found = []
    if BASELINE in methods and name != BASELINE:
        found.append(_panel("Before", "the model as trained", methods[BASELINE], methods[BASELINE]["global"]))
    found.append(_panel("After", f"{name}, one scaler for all", methods[name], methods[name]["global"]))
    own = methods[name]["pooled_own"]
    if own["nll"] != methods[name]["global"]["nll"]:
        found.append(_panel("After, at each client", f"{name}, its personal scaler", own, own))
    return found


def is_grouped(results: Results) -> bool:
    """Whether the panels show joined bins, which are easier to read where samples are few."""
    return any(m["global"]["n"] < FEW for m in results["methods"].values())


def _panel(title: str, under: str, about: dict[str, Any], scores: dict[str, Any]) -> Panel:
    bins = about["groups" if scores["n"] < FEW else "reliability"]
    curve = curve_from_json(bins, title, scores["ece"])
    return Panel(title, under, curve, scores["accuracy"], scores["ece"], scores["ece_floor"])


def tiles(results: Results) -> list[dict[str, str]]:
    """The main method against no calibration: name, before, after, remark."""
    name, methods, d = main_method(results), results["methods"], digits(results)
    if name is None:
        return []
    method, uncal = methods[name], methods.get(BASELINE) if name != BASELINE else None

    def tile(title: str, group: str, key: str, under: str, as_percent: bool = True) -> dict[str, str]:
        def text(about: dict[str, Any]) -> str:
            return percent(about[group][key], d, sign=True) if as_percent else number(about[group][key])

        return {"name": title, "before": text(uncal) if uncal else "", "value": text(method), "under": under}

    floor = percent(method["global"]["ece_floor"], d, sign=True)
    own_floor = percent(method["own"]["ece_floor"], d, sign=True)
    return [
        tile("Calibration error (ECE)", "global", "ece", f"a perfect model would show {floor}"),
        tile("Accuracy", "global", "accuracy", "higher is better"),
        tile("Log loss (NLL)", "global", "nll", "lower is better", as_percent=False),
        tile("ECE at a client, mean", "own", "ece", f"a perfect model would show {own_floor}"),
    ]


@dataclass(frozen=True)
class ClientChange:
    """One measure at each client: before, and after by its personal scaler."""

    title: str
    clients: list[str]
    n: list[int]
    before: Floats  # in per cent; NaN where there is none
    after: Floats
    noise: list[bool]  # whether the client has too few test samples to judge
    floor: Floats | None = None  # of an ECE: what a perfectly calibrated model would show


def _at_clients(results: Results, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The clients' figures before calibration, and after it by their personal scalers."""
    methods = results["methods"]
    return methods[BASELINE if BASELINE in methods else name]["clients"]["local"], methods[name]["clients"]["own"]


def changes(results: Results) -> list[ClientChange]:
    """Accuracy and ECE at each client; the largest clients where there are many."""
    name = main_method(results)
    if name is None:
        return []
    before, after = _at_clients(results, name)
    order = sorted(range(len(after["n"])), key=lambda c: -after["n"][c])[:MOST]
    kept = [c for c in sorted(order) if after["n"][c]]
    counts = [after["n"][c] for c in kept]
    noise = [n < LEAST for n in counts]
    names = [results["data"]["clients"][c] for c in kept]

    def column(values: list[float | None]) -> Floats:
        return 100 * np.array([values[c] for c in kept], dtype=np.float64)

    return [
        ClientChange(title, names, counts, column(before[key]), column(after[key]), noise, floor)
        for title, key, floor in (
            ("Accuracy, %", "accuracy", None),
            ("Calibration error (ECE), %", "ece", column(after["ece_floor"])),
        )
    ]


def client_rows(results: Results) -> list[list[str]]:
    """The same of every client, as rows of a table: client, samples, accuracy, ECE and noise floor."""
    name, d = main_method(results), digits(results)
    if name is None:
        return []
    before, after = _at_clients(results, name)
    return [
        [
            client,
            str(after["n"][c]),
            f"{percent(before['accuracy'][c], d)} → {percent(after['accuracy'][c], d)}",
            f"{percent(before['ece'][c], d)} → {percent(after['ece'][c], d)}",
            percent(after["ece_floor"][c], d),
        ]
        for c, client in enumerate(results["data"]["clients"])
    ]


def next_steps(results: Results) -> list[tuple[str, str]]:
    """What to do with the result: a sentence, and the command that does it (or nothing)."""
    name = main_method(results)
    if name is None or name == BASELINE:
        return [("Calibrate your own model: one file of logits and labels per site.", OWN_MODEL)]
    scaler = f"scalers/{file_name(results['methods'][name]['spec'])}.safetensors"
    steps = [
        (
            "Calibrate new predictions with the scaler beside this page (--client NAME takes a client's personal one).",
            f"fedcal apply {scaler} new.npz --out calibrated.npz",
        ),
        (
            "Look again when you have new labelled samples: calibration breaks when the data change.",
            f"fedcal evaluate new.npz --scaler {scaler} --report check.html",
        ),
    ]
    small = [
        client
        for client, n in zip(results["data"]["clients"], results["methods"][name]["clients"]["own"]["n"], strict=True)
        if n < LEAST
    ]
    if small:
        shown = ", ".join(small[:5]) + (f" and {len(small) - 5} more" if len(small) > 5 else "")
        steps.append(
            (f"Collect more labelled samples at {shown}: fewer than {LEAST} say nothing about one client.", "")
        )
    return [*steps, ("Do the same with your own model: one file of logits and labels per site.", OWN_MODEL)]
