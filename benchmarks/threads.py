"""CPU time of a fit with the default settings on a busy machine, against one thread on an idle one.

    python benchmarks/threads.py [--clients 20] [--samples 250] [--classes 10 100] [--method fedcal-plus]

Threads that wait for each other in a loop cost CPU time where the cores are taken: the goal is at most 1.5 times the CPU
time of one thread. A process per core keeps the machine busy meanwhile; they end with this script. The scaler must have
the same bytes for any number of threads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from fresh import Clock, in_child, make_clients, print_table

GOAL = 1.5
COLUMNS = {
    "fit": "", "one thread, idle: CPU s": ".2f", "default, busy: CPU s": ".2f", "times": ".2f",
    "default, busy: s": ".2f", "bytes for 1, 2, 4 threads": "", "goal": "",
}  # fmt: skip


def fit(method: str, clients: int, samples: int, classes: int) -> dict[str, Any]:
    """One fit in this process: seconds, and a digest of the scaler."""
    import fedcal

    data, clock = make_clients(clients, samples, classes), Clock()
    fitted = fedcal.calibrate(data, method)
    found = clock.read()
    whole = blake2b(digest_size=8)
    for params in (fitted.params, *(own for _, own in sorted(fitted.personal.items()))):
        for name, value in sorted(params.items()):
            whole.update(name.encode() + value.tobytes())
    return {**found, "digest": whole.hexdigest()}


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process in an endless loop for every core, ended in any case."""
    loops = []
    try:
        loops += [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(method: str, clients: int, samples: int, classes: int) -> dict[str, Any]:
    words = (method, clients, samples, classes)
    idle = {threads: in_child(__file__, *words, threads=threads) for threads in (1, 2, 4)}
    with busy_cores():
        busy = in_child(__file__, *words, threads=None)
    times = busy["cpu"] / idle[1]["cpu"]
    same = len({run["digest"] for run in [*idle.values(), busy]}) == 1
    cells = (f"{method}, {clients} × {samples} × {classes}", idle[1]["cpu"], busy["cpu"], times, busy["wall"])
    verdict = "reached" if times <= GOAL and same else "missed"
    return dict(zip(COLUMNS, (*cells, "the same" if same else "differ", verdict), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=250)
    parser.add_argument("--classes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--method", nargs="+", default=["fedcal-plus"])
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)  # in the child process
    args = parser.parse_args()
    if args.one:
        print(json.dumps(fit(args.one[0], *map(int, args.one[1:]))))
        return 0
    rows: list[dict[str, Any]] = []

    def measured() -> Iterator[dict[str, Any]]:
        for method in args.method:
            for classes in args.classes:
                rows.append(measure(method, args.clients, args.samples, classes))
                yield rows[-1]

    print_table(COLUMNS, measured())
    return 0 if all(row["goal"] == "reached" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
