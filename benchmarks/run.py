"""FedCal's kernels against the libraries people use, in one run on one thread: `make bench`.

`--record` keeps the table, with the machine and the versions, in RECORDS.md. Ends with 1 if a goal is missed.
"""

from __future__ import annotations

import os

# One thread: the libraries read this when they are loaded.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import ece
import federated
import temperature
import torch
from rich.console import Console
from rich.table import Table
from timing import Row

HERE = Path(__file__).parent
COLUMNS = ("", "FedCal, ms", "theirs, ms", "times faster", "by the clock", "results", "goal")
KEY = (
    "Milliseconds of CPU time, one thread, runs in turn: median (minimum; quartiles). "
    "Goals: ECE faster and exact; temperature 3 times faster, within 1e-6; exact federated fits twice as fast as pooled ones."
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15, help="runs of each function (default 15)")
    parser.add_argument("--record", action="store_true", help="add the result to RECORDS.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [*ece.compare(args.repeats), *temperature.compare(args.repeats), *federated.compare(args.repeats)]
    table = Table(*COLUMNS, caption=KEY)
    for row in rows:
        table.add_row(*cells(row))
    Console().print(table)
    if args.record:
        record(rows, args.repeats)
    return 0 if all(row.reached for row in rows) else 1


def cells(row: Row) -> tuple[str, ...]:
    """The row as text, in the order of COLUMNS."""
    return (
        row.subject,
        str(row.ours),
        f"{row.theirs} {row.rival}",
        f"{row.speedup:.1f}",
        f"{row.wall_speedup:.1f}",
        row.accuracy,
        "reached" if row.reached else "missed",
    )


def record(rows: list[Row], repeats: int) -> None:
    """A dated section on top of the earlier ones."""
    path, title = HERE / "RECORDS.md", "# Records\n\n" + KEY + "\n"
    earlier = path.read_text().removeprefix(title) if path.exists() else ""
    lines = [f"## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}, {repeats} runs each", "", machine(), ""]
    lines += ["| " + " | ".join(line) + " |" for line in (COLUMNS, ["---"] * len(COLUMNS), *map(cells, rows))]
    path.write_text(title + "\n" + "\n".join(lines) + "\n" + earlier)


def machine() -> str:
    """Processor, cores, system, and the versions of what was compared."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    libraries = ("torch", "torchmetrics", "scikit-learn", "numpy", "scipy", "probmetrics")
    versions = {name: version(name) for name in libraries if find_spec(name.replace("scikit-learn", "sklearn"))}
    return (
        f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
        f"{platform.system()}; Python {platform.python_version()}, "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
    )


def commit() -> str:
    """The commit this ran at, and whether the kernels or benchmarks differed from it."""

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=HERE.parent, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "benchmarks/*.py")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with changes" if changed else "")


if __name__ == "__main__":
    sys.exit(main())
