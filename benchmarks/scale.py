"""Fitting fedcal-plus on ever more clients of 200 samples and 10 classes: time and memory.

    python benchmarks/scale.py [--full] [--clients 1000 ...] [--record]

Clients are made when they are read, from a seeded generator, and forgotten: never do they all lie in memory. Each size
runs in a process of its own, so that its peak memory is its own. Goals: at most 1.5 GiB, and time at most in proportion.
`--record` keeps the table in RECORDS-SCALE.md and the curve in scale.svg.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

import fedcal

SAMPLES, CLASSES, BETA = 200, 10, 0.5
GOAL_GIB = 1.5


class Clients(Mapping[str, tuple[np.ndarray, np.ndarray]]):
    """n clients with label skew (Dirichlet), under a model that is over-confident and leans to some classes."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.lean = np.linspace(-1, 1, CLASSES, dtype=np.float32)

    def __getitem__(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng((0, int(name)))
        labels = np.repeat(np.arange(CLASSES), rng.multinomial(SAMPLES, rng.dirichlet(np.full(CLASSES, BETA))))
        logits = rng.standard_normal((SAMPLES, CLASSES), dtype=np.float32)
        logits[np.arange(SAMPLES), labels] += 2
        return 1.7 * logits + self.lean, labels

    def __iter__(self) -> Iterator[str]:
        return map(str, range(self.n))

    def __len__(self) -> int:
        return self.n


def measure(n: int) -> dict[str, float | str]:
    """One fit: seconds of this process's own (other jobs on the machine hardly touch them; making the clients takes
    some) and of the clock, and its peak memory."""
    torch.set_num_threads(1)
    clients = Clients(n)
    began = time.process_time()
    for name in range(1000):
        clients[str(name)]
    reading = (time.process_time() - began) / 1000
    cpu, wall = time.process_time(), time.perf_counter()
    fitted = fedcal.calibrate(clients, "fedcal-plus", stream=True)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {
        "clients": n, "cpu": cpu, "wall": wall, "us_a_read": 1e6 * reading,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "rounds": fitted.ledger.rounds,
        "kib_up": fitted.ledger.total_up / 2**10, "params": " ".join(fitted.params),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--full", action="store_true", help="100,000 clients as well")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # in the child process
    parser.add_argument("--record", action="store_true", help="add the result to RECORDS-SCALE.md")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one)))
        return 0
    rows = []
    for n in [*args.clients, *([100_000] if args.full else [])]:
        child = subprocess.run([sys.executable, __file__, "--one", str(n)], stdout=subprocess.PIPE, check=True)
        rows.append(json.loads(child.stdout))
        print(as_text(rows[-1]), flush=True)
    if args.record:
        record(rows)
    in_proportion = all(row["cpu"] / row["clients"] <= 1.1 * rows[0]["cpu"] / rows[0]["clients"] for row in rows)
    return 0 if in_proportion and all(row["gib"] <= GOAL_GIB for row in rows) else 1


def as_text(row: dict[str, float]) -> str:
    return (
        f"{row['clients']:>7,} clients: {row['cpu']:.1f} s of CPU time, {1e3 * row['cpu'] / row['clients']:.1f} ms "
        f"per client ({row['us_a_read']:.0f} µs to make one), {row['wall']:.1f} s by the clock, {row['gib']:.2f} GiB, "
        f"{row['rounds']} rounds, {row['kib_up']:.0f} KiB up per client: {row['params']}"
    )


def record(rows: list[dict[str, float]]) -> None:
    """A dated section on top of the earlier ones."""
    from run import commit, machine

    path, title = Path(__file__).parent / "RECORDS-SCALE.md", "# Records of scale.py\n"
    earlier = path.read_text().removeprefix(title) if path.exists() else ""
    head = f"## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}\n\n{machine()}\n\n"
    path.write_text(title + "\n" + head + "".join(f"- {as_text(row)}\n" for row in rows) + earlier)
    draw(rows, path.with_name("scale.svg"))


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """CPU time and peak memory over the number of clients."""
    from matplotlib.figure import Figure

    clients, figure = [row["clients"] for row in rows], Figure(figsize=(7, 2.6), layout="constrained")
    time_axis, memory_axis = figure.subplots(1, 2)
    time_axis.loglog(clients, [row["cpu"] for row in rows], "o-", label="fedcal-plus")
    time_axis.loglog(
        clients, [rows[0]["cpu"] * n / clients[0] for n in clients], ":", color="grey", label="in proportion"
    )
    time_axis.set(xlabel="clients of 200 samples", ylabel="CPU seconds")
    time_axis.legend()
    memory_axis.semilogx(clients, [row["gib"] for row in rows], "o-")
    memory_axis.axhline(GOAL_GIB, ls=":", color="grey")
    memory_axis.set(xlabel="clients of 200 samples", ylabel="peak memory, GiB", ylim=(0, 1.1 * GOAL_GIB))
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
