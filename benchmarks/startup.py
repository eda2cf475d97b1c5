"""CPU seconds of `fedcal --help` beside those of `import torch`, in one run: `python benchmarks/startup.py`.

Each command runs in a new process, in turn with the others; user and system time of the child process, median of the repeats.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

REPEATS = 7
COMMANDS = {
    "import torch": ["-c", "import torch"],
    "python, nothing else": ["-c", "pass"],
    "fedcal --version": ["-m", "fedcal", "--version"],
    "fedcal --help": ["-m", "fedcal", "--help"],
    "fedcal run --help": ["-m", "fedcal", "run", "--help"],
    "fedcal calibrate --help": ["-m", "fedcal", "calibrate", "--help"],
    "fedcal methods": ["-m", "fedcal", "methods"],
}


def cpu_seconds(words: list[str]) -> float:
    """User and system time of a Python process."""
    before = os.times()
    subprocess.run([sys.executable, *words], check=True, capture_output=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> None:
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):
        for name, words in COMMANDS.items():
            seconds[name].append(cpu_seconds(words))
    torch = statistics.median(seconds["import torch"])
    print(f"| command | CPU seconds, median of {REPEATS} | range | of `import torch` |\n|---|---|---|---|")
    for name, found in seconds.items():
        middle = statistics.median(found)
        print(f"| {name} | {middle:.2f} | {min(found):.2f}–{max(found):.2f} | {middle / torch:.0%} |")


if __name__ == "__main__":
    main()
