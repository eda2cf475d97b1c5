"""Exact fits over many classes: seconds, peak memory, rounds and bytes per message.

    python benchmarks/many_classes.py [--classes 1000] [--clients 20] [--samples 1000] [--method fed-bias ...]

Each fit runs in a process of its own, with one thread. Memory is what the fit adds to the interpreter and its imports,
the logits included.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from fresh import Clock, in_child, make_clients, peak, print_table

METHODS = ("fed-bias", "fed-vector", "fedcal-plus")
COLUMNS = {
    "method": "", "CPU s": ".1f", "s": ".1f", "peak, MiB": ".0f", "logits, MiB": ".0f", "rounds": "",
    "largest message up, KiB": ",.0f", "down, KiB": ",.0f", "all up of a client, KiB": ",.0f", "scaler": "",
}  # fmt: skip


def fit(method: str, clients: int, samples: int, classes: int) -> dict[str, Any]:
    """One fit in this process."""
    import fedcal

    baseline = peak()
    data, clock = make_clients(clients, samples, classes), Clock()
    fitted = fedcal.calibrate(data, method)
    found = clock.read()
    held = (peak() - baseline, sum(logits.nbytes for logits, _ in data.values()))
    sent = (fitted.ledger.bytes_up, fitted.ledger.bytes_down, fitted.ledger.total_up)
    cells = (method, found["cpu"], found["wall"], *(size / 2**20 for size in held), fitted.ledger.rounds)
    return dict(zip(COLUMNS, (*cells, *(size / 2**10 for size in sent), " ".join(fitted.params)), strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--method", nargs="+", default=METHODS)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)  # in the child process
    args = parser.parse_args()
    if args.one:
        print(json.dumps(fit(args.one[0], *map(int, args.one[1:]))))
        return 0
    sizes = (args.clients, args.samples, args.classes)
    print_table(COLUMNS, (in_child(__file__, method, *sizes) for method in args.method))
    return 0


if __name__ == "__main__":
    sys.exit(main())
