"""Time and peak memory of large inputs: `calibrate`, `predict_proba` and `fedcal evaluate`.

    python benchmarks/memory.py [--scale 1.0]

Each runs in a process of its own, with one thread. Memory is the peak above what the interpreter holds after its imports,
before there is any input, as a multiple of the input's own size: the goal is at most 3. `--scale` shrinks every input.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from fresh import Clock, in_child, make_clients, peak, print_table

GOAL = 3.0
SHAPES = ((1_000_000, 10), (20_000, 1_000))  # samples, classes
COLUMNS = {"": "", "CPU s": ".1f", "s": ".1f", "input, MiB": ".0f", "peak, MiB": ".0f", "times": ".2f", "goal": ""}


def fit(method: str, samples: int, classes: int) -> tuple[Callable[[], object], int]:
    """`calibrate` on ten clients."""
    import fedcal

    data = make_clients(10, samples // 10, classes)
    return lambda: fedcal.calibrate(data, method), size(data)


def one_sample_clients(method: str, clients: int, classes: int) -> tuple[Callable[[], object], int]:
    """`calibrate` on clients of a single sample."""
    import fedcal

    data = make_clients(clients, 1, classes)
    return lambda: fedcal.calibrate(data, method), size(data)


def predict(method: str, samples: int, classes: int) -> tuple[Callable[[], object], int]:
    """`predict_proba` of a scaler that was fitted on a hundred clients."""
    import fedcal

    fitted = fedcal.calibrate(make_clients(100, 20, classes), method)
    logits = make_clients(1, samples, classes)["client-00000"][0]
    return lambda: fitted.predict_proba(logits), logits.nbytes


def evaluate(_: str, samples: int, classes: int) -> tuple[Callable[[], object], int]:
    """`fedcal evaluate` on one file."""
    from fedcal.cli.main import main as fedcal

    folder = TemporaryDirectory()
    data = make_clients(1, samples, classes)["client-00000"]
    path = Path(folder.name) / "client.npz"
    np.savez(path, logits=data[0], labels=data[1])

    def run() -> None:
        with folder, redirect_stdout(StringIO()):
            try:
                fedcal(["evaluate", str(path)])
            except SystemExit as ended:
                if ended.code:
                    raise

    return run, data[0].nbytes + data[1].nbytes


def size(data: dict[str, tuple[np.ndarray, np.ndarray]]) -> int:
    return sum(logits.nbytes + labels.nbytes for logits, labels in data.values())


TASKS = {"calibrate": fit, "one-sample clients": one_sample_clients, "predict_proba": predict, "evaluate": evaluate}


def measure(task: str, method: str, samples: int, classes: int) -> dict[str, Any]:
    """One task in this process."""
    import fedcal.cli  # noqa: F401  the baseline is after all imports

    baseline = peak()
    call, given = TASKS[task](method, samples, classes)
    clock = Clock()
    call()
    found, held = clock.read(), peak() - baseline
    name = " ".join(word for word in (task, method, f"{samples:,} × {classes:,}") if word != "-")
    cells = (name, found["cpu"], found["wall"], given / 2**20, held / 2**20, held / given)
    unbound = task in (
        "one-sample clients",
        "predict_proba",
    )  # probabilities alone are twice the size of float32 logits
    verdict = "none" if unbound else "reached" if held <= GOAL * given else "missed"
    return dict(zip(COLUMNS, (*cells, verdict), strict=True))


def plan(scale: float) -> Iterator[tuple[str, str, int, int]]:
    shapes = [(int(samples * scale), classes) for samples, classes in SHAPES]
    for shape in shapes:
        yield from (("calibrate", method, *shape) for method in ("fed-ts", "fed-vector", "fedcal-plus"))
        yield "evaluate", "-", *shape
    yield "predict_proba", "ens", *shapes[0]
    yield "one-sample clients", "fedcal-plus", int(10_000 * scale), 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)  # in the child process
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one[0], args.one[1], *map(int, args.one[2:]))))
        return 0
    rows: list[dict[str, Any]] = []

    def measured() -> Iterator[dict[str, Any]]:
        for words in plan(args.scale):
            rows.append(in_child(__file__, *words))
            yield rows[-1]

    print_table(COLUMNS, measured())
    return 0 if all(row["goal"] != "missed" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
