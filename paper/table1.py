"""Table 1: global ECE on four data sets at four β, the paper's figures and ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paper.cells import FITTED
from paper.plan import table1 as cells
from paper.present import LABELS, Result, Spread, Table, by, metric, over_seeds, write

COLUMNS: tuple[str, ...] = (
    "uncal",
    "val-ts",
    "ens",
    "avg-t",
    "lr-ts",
    "fedcal",
    "fedcal-literal",
    "fedcal-plus-keep",
    "fedcal-plus",
)

# The paper's Table 1: accuracy, then Uncal, Val. TS, Ens., AvgT., LR-TS., FedCal. (Its ± are 0.24 x the mean throughout.)
PAPER: dict[tuple[str, float], tuple[float, ...]] = {
    ("mnist", 1.0): (95.72, 0.5, 0.34, 0.43, 0.41, 0.71, 0.45),
    ("mnist", 0.5): (93.03, 1.00, 0.79, 1.32, 0.72, 0.71, 0.47),
    ("mnist", 0.3): (91.34, 1.6, 0.74, 1.34, 0.92, 1.57, 0.61),
    ("mnist", 0.1): (81.01, 4.6, 0.74, 2.13, 3.17, 5.51, 1.35),
    ("svhn", 1.0): (93.24, 1.12, 0.32, 0.43, 0.52, 0.69, 0.44),
    ("svhn", 0.5): (85.13, 1.30, 0.51, 0.99, 1.03, 1.31, 0.89),
    ("svhn", 0.3): (85.14, 4.56, 1.21, 1.58, 3.59, 3.51, 0.77),
    ("svhn", 0.1): (79.23, 7.81, 1.25, 1.56, 6.12, 32.03, 1.25),
    ("cifar10", 1.0): (65.54, 7.61, 3.61, 5.42, 7.82, 3.42, 3.71),
    ("cifar10", 0.5): (60.21, 5.63, 4.12, 6.28, 8.34, 4.23, 4.61),
    ("cifar10", 0.3): (57.31, 9.81, 3.15, 8.16, 11.25, 11.12, 4.91),
    ("cifar10", 0.1): (48.05, 12.48, 3.51, 8.87, 13.34, 14.32, 4.51),
    ("cifar100", 1.0): (41.24, 22.45, 4.13, 16.34, 20.25, 19.21, 7.41),
    ("cifar100", 0.5): (30.01, 20.45, 4.19, 17.53, 29.21, 18.35, 7.50),
    ("cifar100", 0.3): (22.21, 25.71, 4.09, 18.93, 30.45, 22.92, 8.91),
    ("cifar100", 0.1): (20.8, 31.78, 4.82, 20.48, 30.25, 37.32, 10.72),
}
RATIOS: tuple[tuple[str, str], ...] = (
    ("fedcal", "ens"), ("fedcal", "uncal"), ("fedcal", "val-ts"), ("fedcal-literal", "ens"), ("fedcal-literal", "uncal"),
    ("fedcal-plus-keep", "val-ts"), ("fedcal-plus", "val-ts"), ("fedcal-plus", "uncal"),
)  # fmt: skip

__all__ = ["PAPER", "cells", "present"]


def present(results: Sequence[Result], out: Path) -> None:
    """table1.{md,tex,png}: accuracy, every method's global ECE, the floor; sums and the headline's ratios."""
    groups = by(results, "data", "beta")
    rows, sums = [], dict.fromkeys(COLUMNS, 0.0)
    for (data, beta), some in groups.items():
        found = {name: over_seeds(some, metric(name)) for name in COLUMNS}
        accuracy = [over_seeds(some, metric(name, key="accuracy")) for name in ("uncal", "fedcal-plus")]
        floor = over_seeds(some, metric("fedcal-plus", key="ece_floor"))
        rows.append([f"{data} β={beta:g}", len(some), *accuracy, *found.values(), floor])
        for name, spread in found.items():
            sums[name] += spread.mean if spread else float("nan")
    rows.append(["**sum**", "", "", "", *(f"{total:.2f}" if total == total else "" for total in sums.values()), ""])
    names = [LABELS[name] for name in COLUMNS]
    ours = Table(
        "Global ECE in %, mean ± standard deviation over seeds",
        ["cell", "seeds", "accuracy", "accuracy of fedcal-plus", *names, "floor of fedcal-plus"],
        rows,
    )
    known = [key for key in groups if key in PAPER]
    beside = Table(
        "The paper's figures beside ours (accuracy, Uncal, Val-TS, Ens, FedCal)",
        ["cell", "accuracy", "Uncal", "Val-TS", "Ens", "FedCal"],
        [[f"{d} β={b:g}", *_beside(groups[d, b], PAPER[d, b])] for d, b in known],
    )
    ratios = {}
    for ours_name, theirs in RATIOS:
        has_both = [[r for r in some if {ours_name, theirs} <= set(r["methods"])] for some in groups.values()]
        pairs = [(over_seeds(some, metric(ours_name)), over_seeds(some, metric(theirs))) for some in has_both]
        both = [(a.mean, b.mean) for a, b in pairs if a and b]
        if both:
            change = 100 * (sum(a for a, _ in both) / sum(b for _, b in both) - 1)
            ratios[f"{ours_name} / {theirs}"] = {
                "change": change,
                "cells": len(both),
                "seeds": max(len(s) for s in has_both),
            }
    headline = Table(
        "As the paper computes it: 1 − ΣECE / ΣECE over the cells",
        ["", "against", "change of the sum, %", "cells", "seeds", "paper"],
        [
            [LABELS[a], LABELS[b], f"{r['change']:+.1f}", r["cells"], r["seeds"], _claim(a, b)]
            for (a, b), r in ((key.split(" / "), value) for key, value in ratios.items())
        ],
    )
    tables = [ours, beside, headline, _all_methods(list(groups.values()))]
    write(out, "table1", results, tables, sums={k: v for k, v in sums.items() if v == v}, ratios=ratios)
    _draw(groups, out / "table1.png")


def _all_methods(groups: Sequence[Sequence[Result]]) -> Table:
    """Every method over all cells: errors of the global scaler pooled and at the clients, and of a client's own."""
    kept = [n for n in FITTED if all(any(n in result["methods"] for result in some) for some in groups)]

    def sums(name: str, kind: str, *keys: str) -> list[float]:
        return [sum(s.mean for some in groups if (s := over_seeds(some, metric(name, kind, key)))) for key in keys]

    rows, n = [], len(groups)
    for name in kept:
        ece, floor, nll, accuracy = sums(name, "global", "ece", "ece_floor", "nll", "accuracy")
        rest = [accuracy, *sums(name, "local", "ece"), *sums(name, "own", "ece", "ece_floor", "accuracy")]
        rows.append(
            [f"`{name}`", f"{ece:.2f}", f"{floor:.2f}", f"{nll / n / 100:.4f}", *(f"{v / n:.2f}" for v in rest)]
        )
    head = ["method", "Σ global ECE", "Σ floor", "NLL", "accuracy", "ECE at the clients", "with their own scaler"]
    title = f"All methods, {n} cells (means over seeds and, but for Σ, over cells; in %)"
    return Table(title, [*head, "its floor", "accuracy with it"], rows)


def _draw(groups: Mapping[tuple[str, float], Sequence[Result]], path: Path) -> None:
    """A panel for each data set: global ECE against β, and the noise floor."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    from fedcal.report.figures import ACCENT, GAP, MUTED, NOISE, STYLE, save

    lines = {
        "uncal": (MUTED, "-"), "ens": (MUTED, ":"), "val-ts": (MUTED, "--"), "fedcal": (ACCENT, "-"),
        "fedcal-literal": (ACCENT, ":"), "fedcal-plus": (GAP, "-"),
    }  # fmt: skip
    with rc_context(STYLE):
        sets = list(dict.fromkeys(data for data, _ in groups))
        fig = Figure(figsize=(2.4 * len(sets) + 1.4, 2.9), layout="constrained")
        panels = fig.subplots(1, len(sets), squeeze=False)[0]
        for axes, data in zip(panels, sets, strict=True):
            betas = sorted((beta for d, beta in groups if d == data), reverse=True)
            for name, (colour, dash) in lines.items():
                found = [over_seeds(groups[data, beta], metric(name)) for beta in betas]
                if all(found):
                    means, errors = [s.mean for s in found if s], [s.std for s in found if s]
                    how = {"color": colour, "linestyle": dash, "marker": "o", "markersize": 2.5}
                    axes.errorbar(range(len(betas)), means, errors, **how, elinewidth=0.6, label=LABELS[name])
            floors = [over_seeds(groups[data, beta], metric("fedcal-plus", key="ece_floor")) for beta in betas]
            if all(floors):
                axes.plot(range(len(betas)), [s.mean for s in floors if s], color=NOISE, label="noise floor")
            axes.set(
                title=data, xlabel="β", yscale="log", xticks=range(len(betas)), xticklabels=[f"{b:g}" for b in betas]
            )
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        panels[0].set_ylabel("global ECE, %")
        panels[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
        save(fig, path)


def _beside(some: Sequence[Result], paper: tuple[float, ...]) -> list[str]:
    found: list[Spread | None] = [over_seeds(some, metric("uncal", key="accuracy"))]
    found += [over_seeds(some, metric(name)) for name in ("uncal", "val-ts", "ens", "fedcal")]
    theirs = (paper[0], paper[1], paper[2], paper[3], paper[6])
    return [f"{a:g} / {b.mean:.2f}" if b else f"{a:g} / " for a, b in zip(theirs, found, strict=True)]


def _claim(ours: str, theirs: str) -> str:
    return {("fedcal", "ens"): "−47.66", ("fedcal", "uncal"): "−63.06"}.get((ours, theirs), "")
