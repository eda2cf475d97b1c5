"""Post-hoc methods on the logits of real federations: ECE, noise floor, NLL and accuracy, global and local, cell by cell.

    python -m paper.studies.federated_logits FILE.npz … [--method fedcal-plus …] [--out FILE.json]

Each file holds a federation (paper/logits.py). Scalers are fitted on the clients' calibration splits; the whole test set is
used once, to measure. `NAME keep` stands for `accuracy="keep"`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedcal
from fedcal.measure.tally import Tally, over_clients, pooled
from paper.logits import read
from paper.results import write

DEFAULT = ["uncal", "val-ts", "fed-bias", "fedcal-plus", "fedcal-plus keep"]
METRICS = ("ece", "ece_floor", "nll", "accuracy", "top3", "brier", "classwise_ece", "debiased_l2")


def measure(path: Path, name: str) -> dict[str, Any]:
    """One method's metrics on one federation."""
    cal, test = read(path)
    began = time.perf_counter()
    fitted = fedcal.calibrate(cal, name.replace(" keep", ":accuracy=keep"))
    seconds = time.perf_counter() - began
    local = [Tally.of(fitted.apply(x), y) for x, y in test.values()]
    own = [Tally.of(fitted.apply(x, c if c in fitted.personal else None), y) for c, (x, y) in test.items()]
    found = pooled(local).summary()
    parts = {"local": over_clients(list(test), local), "own": over_clients(list(test), own)}
    return {
        **{key: found[key] for key in METRICS},
        **{k: {m: part[m] for m in ("ece", "ece_floor", "worst_ece", "accuracy")} for k, part in parts.items()},
        "seconds": seconds,
        "rounds": fitted.ledger.rounds,
        "bytes_up": fitted.ledger.total_up,
        "family": next((f for f in ("matrix", "vector", "bias", "temperature") if f in fitted.params), ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--method", action="append")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    methods = args.method or DEFAULT
    table: dict[str, dict[str, Any]] = {}
    for path in args.files:
        table[path.stem] = {name: measure(path, name) for name in methods}
        for name, r in table[path.stem].items():
            print(
                f"{path.stem:14s} {name:18s} ECE {r['ece']:7.2%} (floor {r['ece_floor']:6.2%})  NLL {r['nll']:.4f}"
                f"  accuracy {r['accuracy']:.2%}  local {r['local']['ece']:.2%} / {r['local']['worst_ece']:.2%}"
                f"  own {r['own']['ece']:.2%} / {r['own']['worst_ece']:.2%} (floor {r['own']['ece_floor']:.2%}),"
                f" accuracy {r['own']['accuracy']:.2%}  {r['family']}",
                flush=True,
            )
        if args.out:
            write(args.out, table)
    print()
    for name in methods:
        rows = [cell[name] for cell in table.values()]
        total, floor = (100 * sum(r[key] for r in rows) for key in ("ece", "ece_floor"))
        nll, accuracy = (float(np.mean([r[key] for r in rows])) for key in ("nll", "accuracy"))
        print(
            f"{name:20s} sum of ECE {total:7.2f}  of floors {floor:6.2f}  mean NLL {nll:.4f}  accuracy {accuracy:.2%}"
        )


if __name__ == "__main__":
    main()
