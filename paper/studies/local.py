"""Local calibration by prior shift on recorded federations, and a client that was left out of them.

    python -m paper.studies.local RUNS/CELL … [--left-out 5] --out FILE.json

For each cell: mean ECE over clients of the uncalibrated model, of the best of the other methods, and of fedcal-plus with
the client's prior, each beside its noise floor (what a perfectly calibrated model of these confidences would measure on
so few samples) and the debiased error (root mean square, noise taken out; it can be zero). Then, for some clients: the
federation is calibrated without the client, which is made known afterwards from its calibration samples (`welcome`), and
compared with itself when it took part, on the same test samples.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedcal import calibrate
from fedcal.base.seeds import numpy_rng
from fedcal.measure.tally import Tally, over_clients
from paper.recording import Recording
from paper.results import machine, write

OTHERS = ("uncal", "val-ts", "ens", "avg-t", "lr-ts")
KEYS = ("ece", "ece_floor", "debiased_l2", "nll", "accuracy", "worst_ece")


def local(record: Recording) -> dict[str, Any]:
    """Every method with each client's personal scaler, on its own test samples."""
    found = {}
    for name in (*OTHERS, "fedcal-plus"):
        fitted = calibrate(record.samples(), name, seed=record.config.seed)
        tallies = [
            Tally.of(fitted.apply(x, c if c in fitted.personal else None), y)
            for c, (x, y) in record.samples("test").items()
        ]
        found[name] = {key: over_clients(record.names, tallies)[key] for key in KEYS}
    return found


def left_out(record: Recording, count: int) -> list[dict[str, Any]]:
    """Clients with enough test samples to tell, drawn at random: each one's metrics with and without having taken part."""
    cal, test = record.samples(), record.samples("test")
    enough = [name for name in record.names if len(test[name][1]) >= 100 and len(cal[name][1]) >= 10]
    chosen = numpy_rng(record.config.seed, "left out").permutation(enough)[:count].tolist()
    with_all, rows = calibrate(cal, "fedcal-plus"), []
    for name in sorted(chosen):
        without = calibrate({n: pair for n, pair in cal.items() if n != name}, "fedcal-plus")
        without.welcome(name, *cal[name])
        x, y = test[name]
        row: dict[str, Any] = {"client": name, "n_test": len(y), "n_cal": len(cal[name][1])}
        for kind, fitted in (("took_part", with_all), ("left_out", without)):
            summary = Tally.of(fitted.apply(x, name), y).summary()
            row[kind] = {key: summary[key] for key in KEYS[:-1]}
        # the noise of the difference: the same test samples under both, so its standard error is of paired losses
        a, b = (torch.nn.functional.cross_entropy(f.apply(x, name), y, reduction="none") for f in (with_all, without))
        row["nll_difference"], row["standard_error"] = float((b - a).mean()), float((b - a).std() / len(y) ** 0.5)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", nargs="+", type=Path)
    parser.add_argument("--left-out", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, Any] = {"made": machine()}
    began = time.perf_counter()
    for folder in args.cells:
        record = Recording(folder)
        rows = left_out(record, args.left_out)
        table[folder.name] = {"local": local(record), "left_out": rows}
        ours, raw = table[folder.name]["local"]["fedcal-plus"], table[folder.name]["local"]["uncal"]
        gap = [float(np.mean([row[kind]["ece"] for row in rows])) for kind in ("took_part", "left_out")]
        print(
            f"{folder.name:34s} local ECE {ours['ece']:.2%} = {ours['ece'] / ours['ece_floor']:.2f} x floor,"
            f" debiased {ours['debiased_l2']:.2%}, worst {ours['worst_ece']:.2%}, accuracy {raw['accuracy']:.1%} ->"
            f" {ours['accuracy']:.1%}; took part {gap[0]:.2%}, left out {gap[1]:.2%}  ({time.perf_counter() - began:.0f} s)",
            flush=True,
        )
        write(args.out, table)


if __name__ == "__main__":
    main()
