"""The benchmarks' measurements still run: each one small, in a process of its own, as the scripts themselves start it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    "words",
    [
        ("threads.py", "--one", "fed-ts", "3", "50", "3"),
        ("many_classes.py", "--one", "fed-ts", "3", "50", "3"),
        ("memory.py", "--one", "calibrate", "fed-ts", "100", "3"),
        ("rounds.py", "--method", "fed-ts", "--one", "2 classes"),
    ],
    ids=lambda words: words[0],
)
def test_one_small_measurement_prints_its_figures(words: tuple[str, ...]) -> None:
    script, *rest = words
    command = [sys.executable, str(BENCHMARKS / script), *rest]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
