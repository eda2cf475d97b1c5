"""Rounds, bytes, CPU seconds and quality of a method: on federations' logits, and on simulated ones of 2 to 1,000 classes.

    python benchmarks/rounds.py [FILE.npz ...] [--method fedcal-plus] [--simulated] [--out FILE.json]

Files are those of `paper.studies.federated_logits`. Bytes are all that one client sends (up) and receives (down). `own` is
measured at each client with its personal scaler, and averaged over clients.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedcal
from fedcal.measure.tally import Tally, over_clients, pooled

SIMULATED = {"2 classes": (4, 60, 2), "10 classes": (20, 250, 10), "100 classes": (20, 250, 100),
             "1,000 classes": (20, 500, 1000), "1,000 clients": (1000, 200, 10)}  # clients, samples, classes  # fmt: skip
Split = dict[str, tuple[torch.Tensor, torch.Tensor]]


def read(path: Path) -> tuple[Split, Split]:
    """Each client's calibration and test samples."""
    a = np.load(path, allow_pickle=False)

    def by_client(split: str) -> Split:
        logits, labels = torch.from_numpy(a[f"{split}_logits"]).double(), torch.from_numpy(a[f"{split}_labels"]).long()
        of = a[f"{split}_client"]
        return {str(c): (logits[of == c], labels[of == c]) for c in range(len(a["train_counts"]))}

    return by_client("cal"), by_client("test")


def simulate(clients: int, samples: int, k: int, seed: int = 0) -> Split:
    """Clients of skewed labels, with a model that is over-confident and leans towards some classes."""
    rng, found = np.random.default_rng(seed), {}
    lean, mix = rng.normal(0, 0.7, k), rng.normal(0, 0.3 / k**0.5, (k, k))
    for c in range(clients):
        y = rng.choice(k, samples, p=rng.dirichlet(np.full(k, 0.3)))
        z = rng.normal(size=(samples, k)) + (2.5 + 0.3 * np.log(k)) * np.eye(k)[y]
        found[str(c)] = torch.from_numpy(2 * (z + z @ mix) + lean), torch.from_numpy(y)
    return found


def fit(clients: Split, method: str) -> tuple[fedcal.Scaler, dict[str, Any]]:
    """The scaler, and what it cost."""
    began = time.process_time()
    fitted = fedcal.calibrate(clients, method)
    seconds, ledger = time.process_time() - began, fitted.ledger
    family = next((f for f in ("matrix", "vector", "bias", "temperature") if f in fitted.params), "")
    return fitted, {
        "rounds": ledger.rounds, "up": ledger.total_up, "down": ledger.total_down, "cpu": seconds,
        "scaler": family + (" + map" if "beta" in fitted.params or "hist" in fitted.params else ""),
    }  # fmt: skip


def measure(fitted: fedcal.Scaler, test: Split) -> dict[str, Any]:
    """The test metrics, global and at the clients."""
    everybody = pooled([Tally.of(fitted.apply(x), y) for x, y in test.values()]).summary()
    own = [Tally.of(fitted.apply(x, c if c in fitted.personal else None), y) for c, (x, y) in test.items()]
    local = over_clients(list(test), own)
    nll = float(np.mean([tally.summary()["nll"] for tally in own]))
    return {**{m: everybody[m] for m in ("ece", "nll", "accuracy")},
            "own ece": local["ece"], "own nll": nll, "own accuracy": local["accuracy"]}  # fmt: skip


def cost(row: dict[str, Any]) -> str:
    return (
        f"{row['rounds']:4d} rounds {row['up'] / 1e6:8.3f} MB up {row['down'] / 1e6:8.3f} MB down"
        f" {row['cpu']:7.2f} CPU s  {row['scaler']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--method", default="fedcal-plus")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, dict[str, Any]] = {}
    for path in args.files:
        cal, test = read(path)
        fitted, row = fit(cal, args.method)
        table[path.stem] = row = row | measure(fitted, test)
        print(f"{path.stem:14s} {cost(row):70s} ECE {row['ece']:6.2%} NLL {row['nll']:.4f} accuracy {row['accuracy']:.2%}"
              f"  own {row['own ece']:6.2%} {row['own nll']:.4f} {row['own accuracy']:.2%}", flush=True)  # fmt: skip
    if rows := list(table.values()):
        whole = {m: np.sum([row[m] for row in rows]) for m in ("ece", "own ece")}
        whole |= {m: np.mean([row[m] for row in rows]) for m in ("nll", "accuracy", "own nll", "own accuracy")}
        print("summed ECE, mean of the others:", ", ".join(f"{m} {value:.4f}" for m, value in whole.items()))
    for name, sizes in SIMULATED.items() if args.simulated else ():
        table[name] = fit(simulate(*sizes), args.method)[1]
        print(f"{name:14s} {cost(table[name])}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
