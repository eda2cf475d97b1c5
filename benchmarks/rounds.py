"""Rounds, bytes and CPU seconds of `fedcal-plus` on simulated federations of 2 to 1,000 classes, also of another commit.

    python benchmarks/rounds.py [--old CHECKOUT] [--method fedcal-plus] [--out FILE.md]

Bytes are all that one client sends (up) and receives (down); seconds are of all clients and the server, in one process. What
real federations get for that is measured by paper/studies/few_rounds.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fedcal

ROOT = Path(__file__).parents[1]
# clients, samples of each, classes
SIZES = {"2 classes": (4, 60, 2), "10 classes": (20, 250, 10), "20 classes": (20, 250, 20), "100 classes": (20, 250, 100),
         "1,000 classes": (20, 500, 1000), "1,000 clients": (1000, 200, 10)}  # fmt: skip
HEAD = """| federation | commit | rounds | MB up | MB down | CPU s | scaler |
|---|---|---:|---:|---:|---:|---|"""


def simulate(clients: int, samples: int, k: int, seed: int = 0) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Clients of skewed labels, with a model that is over-confident and leans towards some classes."""
    rng, found = np.random.default_rng(seed), {}
    lean, mix = rng.normal(0, 0.7, k), rng.normal(0, 0.3 / k**0.5, (k, k))
    for c in range(clients):
        y = rng.choice(k, samples, p=rng.dirichlet(np.full(k, 0.3)))
        z = rng.normal(size=(samples, k)) + (2.5 + 0.3 * np.log(k)) * np.eye(k)[y]
        found[str(c)] = torch.from_numpy(2 * (z + z @ mix) + lean), torch.from_numpy(y)
    return found


def measure(sizes: tuple[int, int, int], method: str) -> dict[str, Any]:
    """What a fit costs, and what it is."""
    torch.set_num_threads(1)
    clients = simulate(*sizes)
    began = time.process_time()
    fitted = fedcal.calibrate(clients, method)
    family = next((f for f in ("matrix", "vector", "bias", "temperature") if f in fitted.params), "")
    return {
        "rounds": fitted.ledger.rounds, "up": fitted.ledger.total_up, "down": fitted.ledger.total_down,
        "cpu": time.process_time() - began, "scaler": family + (" + map" if "beta" in fitted.params else ""),
    }  # fmt: skip


def by_checkout(checkout: Path, name: str, method: str) -> str:
    """A line of the table, by that checkout's code in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--method", method, "--one", name]
    row = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    git = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    shape = "{:,} × {:,} × {:,}".format(*SIZES[name])
    return (
        f"| {name} ({shape}) | {commit} | {row['rounds']} | {row['up'] / 1e6:.3f} | {row['down'] / 1e6:.3f}"
        f" | {row['cpu']:.1f} | {row['scaler']} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path, help="a checkout of another commit, to compare with")
    parser.add_argument("--method", default="fedcal-plus")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", choices=SIZES, help=argparse.SUPPRESS)  # in the child process
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(SIZES[args.one], args.method)))
        return
    lines = [HEAD]
    print(HEAD)
    for name in SIZES:
        for checkout in ([args.old] if args.old else []) + [ROOT]:
            lines.append(by_checkout(checkout, name, args.method))
            print(lines[-1], flush=True)
    if args.out:
        about = (
            "clients × samples × classes; seed 0, one thread. `python benchmarks/rounds.py --old CHECKOUT --out FILE`"
        )
        args.out.write_text(f"# Records of rounds.py: {args.method}\n\n{about}\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
