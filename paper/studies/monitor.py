"""How often does `fedcal monitor` alarm without drift, and how soon with one? Against tests that are repeated every week.

    python -m paper.studies.monitor --out paper/results/studies/monitor.json

Five sites, three classes whose features are Gaussian, so that the true posterior is known; every site sends 50 labelled
samples a week, and as many predictions. monitor_real.py has real federations.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedcal.monitor.alternatives import calibration_ratios, n_alternatives, share_bounds, share_ratios
from fedcal.monitor.batch import TOLERANCE
from fedcal.monitor.state import ALL, ALPHA, share_of
from fedcal.monitor.stream import no_evidence
from fedcal.monitor.verdict import Null, explain
from paper.results import commit, write

SITES, CLASSES, PER_WEEK = 5, 3, 50
WEEKS, DRIFT = 156, 52  # of the streams with drift: three years, the drift begins after one
CALM = 208  # weeks of the streams without
STREAMS = 400
DRAWS = 99  # of the ECE under the null, for its test
TESTED = 100  # streams of the weekly tests

MEANS = torch.eye(CLASSES, dtype=torch.float64) * 2.0
PRIORS = torch.tensor(
    [[0.5, 0.3, 0.2], [0.2, 0.5, 0.3], [0.34, 0.33, 0.33], [0.7, 0.2, 0.1], [0.15, 0.25, 0.6]], dtype=torch.float64
)


@dataclass
class Week:
    """One week of all streams: (streams, sites, samples, …)."""

    logits: Tensor
    labels: Tensor


Source = Callable[[int, int], Week]  # (week, streams)


def posterior(x: Tensor) -> Tensor:
    """Logits of the true posterior at every site, features being (streams, sites, samples, 3)."""
    return x @ MEANS.T - (MEANS**2).sum(1) / 2 + PRIORS.log()[:, None]


def draw(rng: torch.Generator, streams: int, priors: Tensor, n: int = PER_WEEK) -> tuple[Tensor, Tensor]:
    """Labels and features of a week."""
    cut = priors.cumsum(1)[:, :-1]
    u = torch.rand((streams, SITES, n, 1), generator=rng, dtype=torch.float64)
    y = (u > cut[:, None]).sum(-1)
    return y, MEANS[y] + torch.randn((*y.shape, CLASSES), generator=rng, dtype=torch.float64)


def calm(rng: torch.Generator) -> Source:
    """No drift."""

    def week(_: int, streams: int) -> Week:
        y, x = draw(rng, streams, PRIORS)
        return Week(posterior(x), y)

    return week


def at_edge(rng: torch.Generator, tolerance: float) -> Source:
    """No drift, but at every site the log-odds of class 1 are off by the whole tolerance, in every week."""

    def week(_: int, streams: int) -> Week:
        y, x = draw(rng, streams, PRIORS)
        u = posterior(x)
        return Week(u - tolerance * torch.eye(CLASSES, dtype=torch.float64)[0], y)

    return week


def label_shift(rng: torch.Generator) -> Source:
    """At site 0, class 2 takes 25 points from class 0."""
    moved = PRIORS.clone()
    moved[0] = torch.tensor([0.25, 0.3, 0.45])

    def week(t: int, streams: int) -> Week:
        y, x = draw(rng, streams, moved if t >= DRIFT else PRIORS)
        return Week(posterior(x), y)

    return week


def over_confidence(rng: torch.Generator) -> Source:
    """At site 0 logits grow by 1/26 of their size every week, up to three times."""

    def week(t: int, streams: int) -> Week:
        y, x = draw(rng, streams, PRIORS)
        u = posterior(x)
        u[:, 0] *= min(3.0, 1 + max(0, t - DRIFT + 1) / 26)
        return Week(u, y)

    return week


def covariate_shift(rng: torch.Generator) -> Source:
    """At site 0 samples with a large first feature become rare: posteriors stay right, classes occur otherwise."""

    def week(t: int, streams: int) -> Week:
        y, x = draw(rng, streams, PRIORS, PER_WEEK if t < DRIFT else 8 * PER_WEEK)
        if t >= DRIFT:
            keep = torch.rand(y.shape, generator=rng, dtype=torch.float64) < (-x[..., 0]).sigmoid().clamp_min(0.02)
            keep[:, 1:] = True
            order = (~keep).to(torch.int8).argsort(dim=-1, stable=True)[..., :PER_WEEK]
            y, x = y.gather(2, order), x.gather(2, order[..., None].expand(*order.shape, CLASSES))
        return Week(posterior(x), y)

    return week


def common_over_confidence(rng: torch.Generator) -> Source:
    """The same at all sites at once, up to 1.5 times."""

    def week(t: int, streams: int) -> Week:
        y, x = draw(rng, streams, PRIORS)
        return Week(posterior(x) * min(1.5, 1 + max(0, t - DRIFT + 1) / 52), y)

    return week


# --- the monitor, for many streams at once ------------------------------------------------------------------------------


def monitor(source: Source, weeks: int, streams: int, tolerance: float) -> dict[str, Any]:
    """The week of the first alarm of each test (or infinity), and at the end what explains the evidence at site 0 most."""
    k, line = CLASSES, math.log(1 / ALPHA)
    evidence = {null: no_evidence(null, k, (streams, SITES)) for null in Null}
    pooled = no_evidence(Null.CALIBRATION, k, (streams,))
    bounds = [share_bounds(prior, tolerance) for prior in PRIORS]
    first = {null: torch.full((streams, SITES), math.inf) for null in Null}
    first_pooled = torch.full((streams,), math.inf)
    peak = torch.full((streams,), -math.inf, dtype=torch.float64)
    best = torch.zeros(streams, n_alternatives(k), dtype=torch.float64)
    for t in range(weeks):
        week = source(t, streams)
        ratios = calibration_ratios(week.logits.reshape(-1, k), week.labels.reshape(-1), tolerance)
        ratios = ratios.view(streams, SITES, PER_WEEK, -1).sum(2)
        counts = torch.nn.functional.one_hot(week.labels, k).double().sum(2)
        expected = week.logits.softmax(-1).sum(2)
        new = {
            Null.CALIBRATION: ratios,
            Null.LABELS: _shares(counts, bounds),
            Null.PREDICTIONS: _shares(expected, bounds),
        }
        for null, ratio in new.items():
            evidence[null] = evidence[null].add(ratio)
            alarm = evidence[null].log_value + math.log(share_of("site", null, SITES)) >= line
            first[null][alarm & first[null].isinf()] = t
        for site in range(SITES):
            pooled = pooled.add(ratios[:, site])
        alarm = pooled.log_value + math.log(share_of(ALL, Null.CALIBRATION, SITES)) >= line
        first_pooled[alarm & first_pooled.isinf()] = t
        now = evidence[Null.CALIBRATION].log_value[:, 0]
        higher = now > peak
        peak[higher], best[higher] = now[higher], evidence[Null.CALIBRATION].weights[higher, 0]
    return {"first": first, "pooled": first_pooled, "best": best}


def _shares(sums: Tensor, bounds: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.stack([share_ratios(sums[:, site], PER_WEEK, *of) for site, of in enumerate(bounds)], 1)


def any_alarm(found: dict[str, Any]) -> Tensor:
    """(streams,) the week of the first alarm of any kind, or infinity."""
    return torch.minimum(torch.stack([weeks.amin(1) for weeks in found["first"].values()]).amin(0), found["pooled"])


def summary(found: dict[str, Any], drift: int | None) -> dict[str, Any]:
    """Shares of streams, in per cent, and weeks."""
    alarm = any_alarm(found)
    if drift is None:
        return {"streams": len(alarm), "false alarms": percent(alarm.isfinite())}
    at_0 = {null: weeks[:, 0] for null, weeks in found["first"].items()}
    anything = torch.stack(list(at_0.values())).amin(0)
    elsewhere = torch.stack([weeks[:, 1:].amin(1) for weeks in found["first"].values()]).amin(0)
    names = [str(c) for c in range(CLASSES)]
    fits = [explain(row, names, Null.CALIBRATION)[2] is not None for row in found["best"]]
    wrong = at_0[Null.CALIBRATION].isfinite()
    fit = wrong & (torch.tensor(fits) | at_0[Null.LABELS].isinf())
    return {
        "streams": len(alarm),
        "false alarms": percent(alarm < drift),
        "found": percent(alarm.isfinite() & (alarm >= drift)),
        "delay": median_delay(alarm, drift),
        "found at the site": percent(anything.isfinite()),
        "other sites blamed": percent(elsewhere.isfinite()),
        "probabilities wrong": percent(wrong),
        "delay of that": median_delay(at_0[Null.CALIBRATION], drift),
        "delay by labels": median_delay(at_0[Null.LABELS], drift),
        "delay by predictions alone": median_delay(at_0[Null.PREDICTIONS], drift),
        "delay all sites together": median_delay(found["pooled"], drift),
        "says new fit": percent(fit),
        "says new offset": percent(wrong & ~fit),
        "says collect labels": percent(anything.isfinite() & ~wrong),
    }


def percent(which: Tensor) -> float:
    return round(100 * float(which.double().mean()), 1)


def median_delay(weeks: Tensor, drift: int) -> float | None:
    """Weeks from the drift to the alarm, the week of the drift being the first; None where half of the streams have none."""
    found = float(weeks.median()) - drift + 1
    return found if math.isfinite(found) else None


# --- tests of a fixed horizon, repeated every week ----------------------------------------------------------------------


def weekly(source: Source, weeks: int, streams: int, rng: torch.Generator) -> dict[str, Tensor]:
    """The week in which each repeated test first rejects at 5 %: of the ECE, and Spiegelhalter's, all sites together."""
    first = {name: torch.full((streams,), math.inf) for name in ("ece", "spiegelhalter", "spiegelhalter so far")}
    so_far = torch.zeros(2, streams, dtype=torch.float64)
    for t in range(weeks):
        week = source(t, streams)
        p, predicted = week.logits.softmax(-1).max(-1)
        p, right = p.reshape(streams, -1), (predicted == week.labels).reshape(streams, -1).double()
        drawn = (torch.rand((DRAWS, *p.shape), generator=rng, dtype=torch.float32) < p).float()
        bins = (p * 15).ceil().long().clamp(1, 15) - 1
        gap = ece(bins, right - p)
        higher = (ece(bins.expand(DRAWS, *bins.shape), drawn - p.float()) >= gap - 1e-9).sum(0)
        reject = {"ece": (1 + higher) / (1 + DRAWS) <= 0.05}
        parts = torch.stack([((right - p) * (1 - 2 * p)).sum(1), ((1 - 2 * p) ** 2 * p * (1 - p)).sum(1)])
        so_far += parts
        for name, (top, bottom) in (("spiegelhalter", parts), ("spiegelhalter so far", so_far)):
            reject[name] = (top / bottom.sqrt()).abs() >= 1.959964
        for name, now in reject.items():
            first[name][now & first[name].isinf()] = t
    return first


def ece(bins: Tensor, gaps: Tensor) -> Tensor:
    """(…, N) to (…): the ECE with 15 bins."""
    sums = torch.zeros((*bins.shape[:-1], 15), dtype=gaps.dtype).scatter_add_(-1, bins, gaps)
    return sums.abs().sum(-1) / bins.shape[-1]


def simulated(streams: int) -> dict[str, Any]:
    """All scenarios: the monitor, and the weekly tests."""
    rows: dict[str, Any] = {}
    cases: dict[str, tuple[Callable[[torch.Generator], Source], int | None, float]] = {
        "no drift, no tolerance": (calm, None, 0.0),
        "no drift": (calm, None, TOLERANCE),
        "no drift, off by the tolerance": (lambda rng: at_edge(rng, TOLERANCE), None, TOLERANCE),
        "label shift at one site": (label_shift, DRIFT, TOLERANCE),
        "over-confidence grows at one site": (over_confidence, DRIFT, TOLERANCE),
        "covariate shift at one site": (covariate_shift, DRIFT, TOLERANCE),
        "over-confidence grows at all sites": (common_over_confidence, DRIFT, TOLERANCE),
    }
    for number, (name, (make, drift, tolerance)) in enumerate(cases.items()):
        weeks = CALM if drift is None else WEEKS
        found = summary(monitor(make(generator(number)), weeks, streams, tolerance), drift)
        repeated = weekly(make(generator(number)), weeks, min(streams, TESTED), generator(100 + number))
        found["weekly tests"] = {
            test: {
                "before drift": percent(first < (weeks if drift is None else drift)),
                "ever": percent(first.isfinite()),
            }
            for test, first in repeated.items()
        }
        rows[name] = found
        print(name, found, flush=True)
    return rows


def markdown(table: dict[str, Any]) -> str:
    """The results as tables."""
    rows = table["simulated"]
    lines = [
        "# `fedcal monitor` on simulated federations",
        "",
        f"`python -m paper.studies.monitor`: {SITES} sites, {PER_WEEK} labelled samples per site and week, α = {ALPHA:g}, "
        f"tolerance {TOLERANCE:g}. Without drift {CALM} weeks, with drift {WEEKS}, the drift beginning after {DRIFT}. In per "
        "cent of streams; delays are medians, in weeks.",
        "",
        "## False alarms",
        "",
        "| world | streams | monitor | ECE test, weekly | Spiegelhalter, weekly | Spiegelhalter of all so far, weekly |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in rows.items():
        tests = " | ".join(f"{row['weekly tests'][test]['before drift']:g}" for test in row["weekly tests"])
        before = "" if "found" not in row else " (before it)"
        lines.append(f"| {name}{before} | {row['streams']} | {row['false alarms']:g} | {tests} |")
    lines += [
        "",
        f"The weekly tests are of all sites' samples, at 5 %, on {TESTED} streams.",
        "",
        "## Drifts",
        "",
        "| drift | found | delay | at the site | other sites blamed | probabilities wrong | delay | new offset | new fit "
        "| collect labels |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    keys = ("found", "delay", "found at the site", "other sites blamed", "probabilities wrong", "delay of that")
    for name, row in rows.items():
        if "found" in row:
            says = (row[f"says {what}"] for what in ("new offset", "new fit", "collect labels"))
            cells = [*(row[key] for key in keys), *says]
            lines.append(f"| {name} | " + " | ".join("–" if cell is None else f"{cell:g}" for cell in cells) + " |")
    return "\n".join([*lines, ""])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, Any] = {"commit": commit(), "alpha": ALPHA, "tolerance": TOLERANCE}
    table["simulated"] = simulated(args.streams)
    if args.out:
        write(args.out, table, depth=3)
        args.out.with_suffix(".md").write_text(markdown(table), encoding="utf-8")


if __name__ == "__main__":
    main()
