"""`fedcal monitor` on real federations: how often it alarms without drift, and whether it finds drifts made of real samples.

    python -m paper.studies.monitor_real FILE.npz … --out paper/results/studies/monitor-real.json

fedcal-plus is fitted on the calibration splits. Each client's test samples are dealt at random into 20 weekly batches, every
sample in one batch; a stream is one such order. Drifts begin in week 11, at one client with at least 300 test samples, chosen
at random. `heart`: four hospitals, each predicted by a model of the other three; a random half calibrates, the other half is
monitored, and the largest hospital drifts. References are the calibration samples. Shares are of orders, not of worlds: the
samples are the same in all streams.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator

import fedcal
from fedcal.base.seeds import numpy_rng
from fedcal.monitor import Action
from fedcal.monitor.verdict import Null, Verdict
from fedcal.protocol import Scaler
from paper.logits import Split, halves, read
from paper.results import commit, write
from paper.studies.monitor import DRAWS, ece

WEEKS = 20
LEAST = 5  # samples of a batch
LARGE = 300  # test samples of a client that may drift
Weeks = dict[str, list[tuple[np.ndarray, np.ndarray]]]  # by client: logits and labels of every week
CALM = ("no drift, labels drawn from the probabilities", "no drift, test split")
HELD_OUT = "no drift, held out of the calibration split"
DRIFTS = ("label shift", "over-confidence", "covariate shift")


def deal(test: Split, rng: Generator, weeks: int) -> Weeks:
    """Each client's samples in random order, split evenly."""
    found: Weeks = {}
    for name, (logits, labels) in test.items():
        order = rng.permutation(len(labels))
        parts = [part for part in np.array_split(order, max(1, min(weeks, len(labels) // LEAST))) if len(part) >= LEAST]
        found[name] = [(logits.numpy()[part], labels.numpy()[part]) for part in parts]
    return found


def drift(weeks: Weeks, site: str, kind: str, rng: Generator, scaler: Scaler) -> None:
    """Change the second half of a client's weeks: samples are left out or their logits scaled, labels never changed."""
    batches = weeks[site]
    half = len(batches) // 2
    labels = np.concatenate([y for _, y in batches])
    often = np.bincount(labels).argmax()
    middle = np.median(np.concatenate([confidence(scaler, site, z) for z, _ in batches]))
    for number in range(half, len(batches)):
        z, y = batches[number]
        if kind == "over-confidence":
            batches[number] = (z * (1 + 1.5 * (number - half + 1) / (len(batches) - half)), y)
            continue
        rare = y == often if kind == "label shift" else confidence(scaler, site, z) > middle
        kept = ~rare | (rng.random(len(y)) < 0.25)
        batches[number] = (z[kept], y[kept])


def confidence(scaler: Scaler, site: str, logits: np.ndarray) -> np.ndarray:
    return scaler.predict_proba(logits, client=site).max(1)


def watch(scaler: Scaler, cal: Split, weeks: Weeks, tolerance: float) -> Verdict:
    """The monitor's verdict at the end."""
    monitor = fedcal.Monitor(scaler, list(weeks), tolerance=tolerance)
    for site, (z, y) in cal.items():
        if site in weeks and len(y) >= LEAST:
            monitor.add(monitor.sums(scaler, site, "reference", z, y, reference=True, tolerance=tolerance))
    for number in range(max(map(len, weeks.values()))):
        for site, batches in weeks.items():
            if number < len(batches) and len(batches[number][1]) >= LEAST:
                batch = monitor.sums(scaler, site, f"{number + 1}", *batches[number], tolerance=tolerance)
                monitor.add(batch, same_sums=True)  # of other samples: each is in one batch
    return monitor.verdict()


def weekly(scaler: Scaler, weeks: Weeks, rng: torch.Generator) -> dict[str, bool]:
    """Whether a test of all sites' samples of a week, at 5 %, rejects in any week: by ECE, and Spiegelhalter's."""
    found = {"ece": False, "spiegelhalter": False}
    for number in range(max(map(len, weeks.values()))):
        p, right = [], []
        for site, batches in weeks.items():
            if number < len(batches) and len(batches[number][1]):
                q = scaler.predict_proba(batches[number][0], client=site)
                p.append(q.max(1))
                right.append(q.argmax(1) == batches[number][1])
        c, hit = torch.from_numpy(np.concatenate(p)), torch.from_numpy(np.concatenate(right)).double()
        bins = (c * 15).ceil().long().clamp(1, 15) - 1
        drawn = (torch.rand((DRAWS, len(c)), generator=rng, dtype=torch.float64) < c).double()
        higher = (ece(bins.expand(DRAWS, -1), drawn - c) >= ece(bins, hit - c) - 1e-9).sum()
        found["ece"] |= bool((1 + higher) / (1 + DRAWS) <= 0.05)
        z = ((hit - c) * (1 - 2 * c)).sum() / ((1 - 2 * c) ** 2 * c * (1 - c)).sum().sqrt()
        found["spiegelhalter"] |= bool(z.abs() >= 1.959964)
    return found


def drawn_labels(weeks: Weeks, scaler: Scaler, rng: Generator) -> Weeks:
    """The same samples with labels drawn from the scaler's probabilities: calibrated by construction."""
    found: Weeks = {}
    for site, batches in weeks.items():
        found[site] = []
        for z, _ in batches:
            cut = scaler.predict_proba(z, client=site).cumsum(1)
            found[site].append((z, (rng.random((len(z), 1)) > cut[:, :-1]).sum(1)))
    return found


def study(name: str, cal: Split, test: Split, streams: int, weeks: int, tolerance: float) -> dict[str, Any]:
    """One federation: shares of streams, in per cent."""
    scaler = fedcal.calibrate(cal)
    test = {site: part for site, part in test.items() if len(part[1]) >= LEAST and site in scaler.personal}
    large = [site for site, (_, y) in test.items() if len(y) >= LARGE] or [max(test, key=lambda s: len(test[s][1]))]
    rows: dict[str, Any] = {}
    for kind in (*CALM, *DRIFTS):
        verdicts, sites, tests = [], [], []
        for stream in range(streams):
            rng = numpy_rng(stream, "monitor", name, kind)
            dealt, site = deal(test, rng, weeks), large[rng.integers(len(large))]
            if kind in DRIFTS:
                drift(dealt, site, kind, rng, scaler)
            elif "drawn" in kind:
                dealt = drawn_labels(dealt, scaler, rng)
            sites.append(site)
            verdicts.append(watch(scaler, cal, dealt, tolerance))
            tests.append(weekly(scaler, dealt, torch.Generator().manual_seed(stream)))
        rows[kind] = summary(verdicts, sites, kind in DRIFTS) | {
            f"weekly {test}": share(one[test] for one in tests) for test in tests[0]
        }
        print(name, kind, rows[kind], flush=True)
    return rows


def held_out(name: str, cal: Split, streams: int, tolerance: float) -> dict[str, Any]:
    """No drift: half of each client's calibration samples fit the scaler, and the other half is monitored."""
    fitting, monitored = halves(cal)
    scaler = fedcal.calibrate(fitting)
    monitored = {site: part for site, part in monitored.items() if len(part[1]) >= LEAST and site in scaler.personal}
    dealt = [deal(monitored, numpy_rng(stream, "monitor", name, "held out"), WEEKS) for stream in range(streams)]
    tests = [weekly(scaler, one, torch.Generator().manual_seed(i)) for i, one in enumerate(dealt)]
    found = summary([watch(scaler, fitting, one, tolerance) for one in dealt], [], False)
    found |= {f"weekly {test}": share(one[test] for one in tests) for test in tests[0]}
    print(name, HELD_OUT, found, flush=True)
    return found


def summary(verdicts: list[Verdict], sites: list[str], drifted: bool) -> dict[str, Any]:
    """What the monitor says over the streams."""
    alarms = [[one for one in verdict.findings if one.drifted] for verdict in verdicts]
    by_test = {str(null): share(any(one.null is null for one in some) for some in alarms) for null in Null}
    found: dict[str, Any] = {"streams": len(verdicts), "any alarm": share(map(bool, alarms)), "by": by_test}
    if not drifted:
        found["sites"] = sorted({one.site or "all" for some in alarms for one in some})
        return found
    at = [[one for one in some if one.site == site] for some, site in zip(alarms, sites, strict=True)]
    delays = sorted(min((int(one.alarm_at or 0) for one in some), default=math.inf) - WEEKS // 2 for some in at)
    middle = delays[len(delays) // 2]
    actions = [verdict.actions.get(site) for verdict, site in zip(verdicts, sites, strict=True)]
    return found | {
        "at the site": share(map(bool, at)),
        "before the drift": share(any(int(one.alarm_at or 0) <= WEEKS // 2 for one in some) for some in at),
        "median delay": middle if math.isfinite(middle) else None,
        "elsewhere": share(any(one.site != site for one in some) for some, site in zip(alarms, sites, strict=True)),
        "says": {str(action): share(one is action for one in actions) for action in Action if action in actions},
    }


def share(which: Any) -> float:
    values = list(which)
    return round(100 * sum(values) / len(values), 1)


def markdown(table: dict[str, Any]) -> str:
    """The results as a table."""
    lines = [
        "# `fedcal monitor` on real federations",
        "",
        f"`python -m paper.studies.monitor_real`: α = 0.05, tolerance {table['tolerance']:g}, {WEEKS} weeks; the drift "
        f"begins after {WEEKS // 2}. In per cent of streams (orders of the same samples); the delay is the median, in "
        "weeks, of the alarms at the site.",
        "",
        "| federation | drift | streams | monitor alarms | at the site | elsewhere, or all together | delay | says "
        "| weekly ECE test | weekly Spiegelhalter |",
        "|---|---|---:|---:|---:|---:|---:|---|---:|---:|",
    ]
    for federation, rows in table.items():
        for kind, row in rows.items() if isinstance(rows, dict) else ():
            says = ", ".join(f"{action} {value:g}" for action, value in row.get("says", {}).items()) or "–"
            cells = [
                row["streams"],
                row["any alarm"],
                row.get("at the site"),
                row.get("elsewhere"),
                row.get("median delay"),
            ]
            shown = " | ".join("–" if cell is None else f"{cell:g}" for cell in cells)
            weekly = f"{row['weekly ece']:g} | {row['weekly spiegelhalter']:g}"
            lines.append(f"| {federation} | {kind} | {shown} | {says} | {weekly} |")
    return "\n".join([*lines, ""])


def heart() -> tuple[Split, Split]:
    """Each hospital's predictions by a model of the others, split into two halves at random."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from fedcal.data.hospitals import HOSPITALS
    from fedcal.data.hospitals import read as read_hospitals

    features, labels, hospital = (tensor.numpy() for tensor in read_hospitals())
    cal, test = {}, {}
    for number, name in enumerate(HOSPITALS):
        there = hospital == number
        model = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression(C=0.1))
        logits = model.fit(features[~there], labels[~there]).decision_function(features[there])
        both = torch.stack([torch.zeros(len(logits), dtype=torch.float64), torch.from_numpy(logits)], 1)
        y, order = torch.from_numpy(labels[there]).long(), numpy_rng(0, "heart halves", name).permutation(len(logits))
        half = len(order) // 2
        cal[name], test[name] = (both[order[:half]], y[order[:half]]), (both[order[half:]], y[order[half:]])
    return cal, test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--streams", type=int, default=20)
    parser.add_argument("--tolerance", type=float, default=0.25)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, Any] = {"commit": commit(), "tolerance": args.tolerance}
    for path in args.files:
        cal, test = read(path)
        table[path.stem] = {HELD_OUT: held_out(path.stem, cal, args.streams, args.tolerance)}
        table[path.stem] |= study(path.stem, cal, test, args.streams, WEEKS, args.tolerance)
    table["heart"] = study("heart", *heart(), args.streams, WEEKS, args.tolerance)
    if args.out:
        write(args.out, table, depth=3)
        args.out.with_suffix(".md").write_text(markdown(table), encoding="utf-8")


if __name__ == "__main__":
    main()
