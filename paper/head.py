"""fed-head: the last layer refitted from sums over features, beside fedcal-plus and the model as it is.

The second table is about clients' own test samples. Each client may shift the global scaler to its label distribution (no
training), train the model once more on its own data, or fit a head of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedcal.base.store import finite, read_tensors
from fedcal.data.samples import Samples
from fedcal.measure.tally import Tally, over_clients
from fedcal.methods import get_method
from fedcal.methods.fed_head import with_features_of
from fedcal.protocol import Scaler, Server
from fedcal.transport.memory import Exchange, calibrate
from paper import results
from paper.cells import Methods, about, measure
from paper.plan import head as cells
from paper.recording import Recording

FITTED: Methods = {
    "uncal": "uncal",
    "shift": "fedcal-plus:accuracy=keep,informed=false,prior_shift=true",  # a temperature, and each client's prior shift
    "fedcal-plus": "fedcal-plus",
    "fed-head": "fed-head",
}
SHOWN = ("uncal", "fedcal-plus", "fed-head")

__all__ = ["FITTED", "cells", "fit_cell", "present"]


def fit_cell(folder: Path, methods: Methods = FITTED) -> dict[str, Any]:
    """Fit and measure every method on one recorded federation; each client's model of its own, and its own head."""
    record, began = Recording(folder), time.perf_counter()
    rows, test = record.rows()
    measured: dict[str, Any] = {}
    for label, spec in methods.items():
        takes_features, start = get_method(spec).takes == "features", time.perf_counter()
        scaler = (
            fit_head(record, rows) if takes_features else calibrate(record.samples(), spec, seed=record.config.seed)
        )
        seconds, books = time.perf_counter() - start, scaler.ledger
        cost = {"rounds": books.rounds, "up": books.total_up, "down": books.total_down, "seconds": seconds}
        measured[label] = measure(scaler, record, test if takes_features else None)
        measured[label] |= {"cost": cost, "params": sorted(scaler.params)}
        if "trained" in scaler.params:
            measured[label]["trained"] = float(scaler.params["trained"])
    content = {
        **about(record),
        "fitting": {"seconds": time.perf_counter() - began, **results.machine()},
        "G": record.about["G"],
        "methods": measured,
        "own": {"tuned": _tuned(record), "own head": _own_heads(record, rows, test)},
    }
    return finite(content)


def fit_head(record: Recording, rows: dict[str, Samples]) -> Scaler:
    """fed-head on these clients' calibration and training samples."""
    width = next(iter(rows.values()))[0].shape[1]
    method = with_features_of(get_method("fed-head"), width - record.n_classes - 1)
    return Exchange(Server(method, record.n_classes, record.config.seed, history=False)).run(rows)


def _tuned(record: Recording) -> dict[str, Any]:
    """Every client's model after one more round on its own training samples, on its own test samples."""
    logits, tallies, end = read_tensors(record.folder / "tuned.safetensors")[0], [], 0
    for name, (_, labels) in record.samples("test").items():
        start, end = end, end + len(labels)  # each was recorded on everybody's test samples
        tallies.append(Tally.of(logits[name][start:end], labels))
    return _summary(record, tallies)


def _summary(record: Recording, tallies: list[Tally]) -> dict[str, Any]:
    summary = over_clients(record.names, tallies)
    return {key: summary[key] for key in ("accuracy", "ece", "ece_floor", "nll")}


def _own_heads(record: Recording, rows: dict[str, Samples], test: dict[str, Samples]) -> dict[str, Any]:
    """Every client refits the last layer by itself, by the same method; measured on its own test samples."""
    tallies = []
    for name, (found, labels) in test.items():
        held_out = bool((rows[name][0][:, -1] == 0).any())  # else it has nothing to choose by: the model as it is
        logits = found[:, : record.n_classes].double()
        if held_out:
            logits = fit_head(record, {name: rows[name]}).apply(found.double(), name)
        tallies.append(Tally.of(logits, labels))
    return _summary(record, tallies)


def present(cells: Sequence[dict[str, Any]], out: Path) -> None:
    """head.{md,tex,png}: global accuracy, NLL, ECE and its floor, what a fit costs, and accuracy at the clients."""
    from paper.present import Table, by, metric, over_seeds, spread, write  # matplotlib, which workers do without

    groups = by(cells, "data", "beta")
    rows, costs, local = [], [], []
    for (data, beta), some in groups.items():
        name = f"{data} β={beta:g}"
        accuracy = [over_seeds(some, metric(m, key="accuracy")) for m in SHOWN]
        nll = [spread([result["methods"][m]["global"]["nll"] for result in some], 3) for m in SHOWN]
        ece = [over_seeds(some, metric(m, key=key)) for m in SHOWN for key in ("ece", "ece_floor")]
        rows.append([name, len(some), *accuracy, *nll, *ece])
        heads = [result["methods"]["fed-head"] for result in some]
        chosen = sum("head" in one["params"] for one in heads)
        trained = sum(one.get("trained", 0.0) for one in heads)
        cost = [name, len(some), f"{chosen}", f"{trained:.0f}"]
        for m in SHOWN[1:]:
            of = [result["methods"][m]["cost"] for result in some]
            cost += [spread([one["rounds"] for one in of], 1)]
            cost += [f"{sum(one[way] for one in of) / len(of) / 1e6:.2f}" for way in ("up", "down")]
        costs.append([*cost, spread([one["cost"]["seconds"] for one in heads], 1)])
        own = [over_seeds(some, metric("uncal", "local", "accuracy"))]
        own.append(over_seeds(some, lambda result: result["own"]["tuned"]["accuracy"]))
        own += [over_seeds(some, metric(m, "own", "accuracy")) for m in ("shift", "fedcal-plus", "fed-head")]
        own.append(over_seeds(some, lambda result: result["own"]["own head"]["accuracy"]))
        local.append([name, len(some), *own])
    three = [*SHOWN]
    tables = [
        Table(
            "fed-head beside fedcal-plus: global accuracy in %, NLL, ECE in % and its floor",
            ["cell", "seeds", *(f"accuracy: {m}" for m in three), *(f"NLL: {m}" for m in three)]
            + [column for m in three for column in (f"ECE: {m}", "floor")],
            rows,
        ),
        Table(
            "What a fit costs: rounds, megabytes per client, seconds of one core for all clients and the server",
            ["cell", "seeds", "head kept", "with training samples"]
            + [column for m in SHOWN[1:] for column in (f"rounds: {m}", "up", "down")]
            + ["seconds: fed-head"],
            costs,
        ),
        Table(
            "Accuracy at the clients, on their own test samples, mean over clients, in %",
            [
                "cell",
                "seeds",
                "the model",
                "one more local round",
                "prior shift alone",
                *SHOWN[1:],
                "a head of its own",
            ],
            local,
        ),
    ]
    write(out, "head", cells, tables)
    _draw(groups, out / "head.png")


def _draw(groups: Mapping[tuple[str, float], Sequence[dict[str, Any]]], path: Path) -> None:
    """A row for each data set: global accuracy, NLL, and accuracy at the clients, against β; bars span ± one deviation."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from fedcal.report.figures import ACCENT, GAP, INK, MUTED, STYLE, save
    from paper.present import Spread

    def of(name: str, kind: str, key: str) -> Callable[[dict[str, Any]], float]:
        return lambda result: result["methods"][name][kind][key]

    drawn = {"uncal": (MUTED, "-"), "fedcal-plus": (GAP, "-"), "fed-head": (ACCENT, "-")}
    alone = {
        "one more local round": (lambda result: result["own"]["tuned"]["accuracy"], INK, ":"),
        "prior shift alone": (of("shift", "own", "accuracy"), INK, "--"),
    }
    at_clients = {
        name: (of(name, "local" if name == "uncal" else "own", "accuracy"), *how) for name, how in drawn.items()
    }
    panels = (
        ("accuracy, %", 100, {name: (of(name, "global", "accuracy"), *how) for name, how in drawn.items()}),
        ("NLL", 1, {name: (of(name, "global", "nll"), *how) for name, how in drawn.items()}),
        ("accuracy at the clients, %", 100, at_clients | alone),
    )
    sets = list(dict.fromkeys(data for data, _ in groups))
    with rc_context(STYLE):
        fig = Figure(figsize=(9, 2.4 * len(sets)), layout="constrained")
        axes = fig.subplots(len(sets), len(panels), squeeze=False)
        for row, data in zip(axes, sets, strict=True):
            betas = sorted((beta for d, beta in groups if d == data), reverse=True)
            for one, (title, scale, lines) in zip(row, panels, strict=True):
                for name, (value, colour, dash) in lines.items():
                    spreads = [Spread.of([scale * value(result) for result in groups[data, beta]]) for beta in betas]
                    means, bars = [s.mean for s in spreads], [s.std for s in spreads]
                    how = {"color": colour, "linestyle": dash, "marker": "o", "markersize": 2.5, "elinewidth": 0.6}
                    one.errorbar(range(len(betas)), means, bars, **how, label="the model" if name == "uncal" else name)
                ticks = [f"{beta:g}" for beta in betas]
                one.set(title=f"{data}: {title}", xlabel="β", xticks=range(len(betas)), xticklabels=ticks)
        axes[0, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
        save(fig, path)
