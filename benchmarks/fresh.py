"""Measurements in fresh processes, so that time and peak memory are one fit's own; and a table of them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def in_child(script: str, *words: object, threads: int | None = 1) -> dict[str, Any]:
    """What `python SCRIPT --one WORDS` prints as JSON. `threads`: None leaves it to the libraries' own settings."""
    env = {name: value for name, value in os.environ.items() if name not in THREADS}
    env |= {} if threads is None else dict.fromkeys(THREADS, str(threads))
    command = [sys.executable, script, "--one", *map(str, words)]
    child = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=env)
    return json.loads(child.stdout)


def make_clients(clients: int, samples: int, classes: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Float32 logits of an over-confident model that leans to some classes."""
    rng, lean = np.random.default_rng(0), np.linspace(-1, 1, classes, dtype=np.float32)
    found = {}
    for i in range(clients):
        labels = rng.integers(classes, size=samples)
        logits = rng.standard_normal((samples, classes), dtype=np.float32)
        logits[np.arange(samples), labels] += 2
        logits *= 1.7
        logits += lean
        found[f"client-{i:05d}"] = logits, labels
    return found


def peak() -> int:
    """The most bytes of memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Clock:
    """Seconds of the clock and of this process's threads since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), self._used()

    @staticmethod
    def _used() -> float:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def read(self) -> dict[str, float]:
        return {"wall": time.perf_counter() - self._wall, "cpu": self._used() - self._cpu}


def print_table(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Markdown; `columns` gives each column's title and format, and its row is printed as soon as it is measured."""
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns), flush=True)
    for row in rows:
        print("| " + " | ".join(format(row[name], spec) for name, spec in columns.items()) + " |", flush=True)
