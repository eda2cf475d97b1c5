"""What a fit on few calibration samples gains: 50 to 1,000 in all, dealt over the clients of real federations.

    python -m paper.studies.few_samples PATH … [--draws 3] [--jobs 2] --out FILE.json

Paths as for few_rounds.py. Of each federation's calibration samples a random part of about that size is fitted on, and all
others are measured on: test sets stay closed. FILE.json has every fit's NLL beside that of the uncalibrated model, FILE.md
the table: the mean gain in nats, the share of fits that lose more than 0.01, and the largest loss of all.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

import fedcal
from fedcal.base.store import write_bytes
from fedcal.measure.tally import Tally, pooled
from paper.logits import Split, deal, read
from paper.present import Table
from paper.results import machine, write

SIZES = (50, 100, 200, 400, 1000)
METHODS = {"fed-ts": "fed-ts", "fedcal-plus-keep": "fedcal-plus:accuracy=keep", "fedcal-plus": "fedcal-plus"}
PERSONAL = "fedcal-plus, personal scalers"
CLEAR = 0.01  # nats


def measure(path: Path, draws: int) -> list[dict[str, Any]]:
    """Fits of every size and draw on one federation, and the NLL of its other calibration samples."""
    torch.set_num_threads(1)
    samples, _ = read(path)
    n = sum(len(labels) for _, labels in samples.values())
    return [fits(*deal(samples, max(2, round(n / size)), draw), size) for size in SIZES for draw in range(draws)]


def fits(few: Split, others: Split, size: int) -> dict[str, Any]:
    """Every method fitted on the few samples, and its NLL on the others."""
    row: dict[str, Any] = {"size": size, "n": sum(len(labels) for _, labels in few.values())}
    row["uncal"] = nll(others, lambda logits, _: logits)
    scalers = {name: fedcal.calibrate(few, spec) for name, spec in METHODS.items()}
    for name, scaler in scalers.items():
        row[name] = nll(others, lambda logits, _, s=scaler: s.apply(logits))
    own = scalers["fedcal-plus"]
    row[PERSONAL] = nll(others, lambda logits, c: own.apply(logits, c if c in own.personal else None))
    return row


def nll(samples: Split, apply: Callable[[Any, str], Any]) -> float:
    return pooled([Tally.of(apply(x, client), y) for client, (x, y) in samples.items() if len(y)]).summary()["nll"]


def table(rows: list[dict[str, Any]], title: str) -> Table:
    """A row for each size; for each method the mean gain, the share of clear losses, and the largest loss."""
    names, lines = (*METHODS, PERSONAL), []
    for size in SIZES:
        of = [row for row in rows if row["size"] == size]
        line: list[Any] = [size, len(of), f"{statistics.mean(row['uncal'] for row in of):.3f}"]
        for name in names:
            lost = [row[name] - row["uncal"] for row in of]
            clear = 100 * sum(one > CLEAR for one in lost) / len(lost)
            line.append(f"{-statistics.mean(lost):.3f}, {clear:.0f} %, {max(0.0, *lost):.3f}")
        lines.append(line)
    return Table(title, ["samples", "fits", "NLL before", *names], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=3, help="of each size and federation")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs) as pool:
        found = dict(zip(args.paths, pool.map(measure, args.paths, [args.draws] * len(args.paths)), strict=True))
    of = {path.name if path.is_dir() else path.stem: rows for path, rows in found.items()}
    write(args.out, {"machine": machine(), "draws": args.draws, "federations": of})
    tables = [
        table([row for rows in some for row in rows], f"{kind}, {len(some)} federations")
        for kind in ("10 classes", "100 classes")
        if (some := [rows for name, rows in of.items() if name.startswith("cifar100") == (kind == "100 classes")])
    ]
    head = "NLL gained in nats, share of fits that lose more than 0.01, largest loss.\n\n"
    write_bytes(args.out.with_suffix(".md"), (head + "\n".join(t.markdown() for t in tables)).encode())
    print(args.out.with_suffix(".md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
