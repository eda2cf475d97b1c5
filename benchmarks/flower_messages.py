"""What a message costs on real SuperNodes: CPU seconds by kind of process, and seconds per round.

    python benchmarks/flower_messages.py FOLDER [OPTIONS of `fedcal federate`]

It runs `fedcal federate` (heart, fed-ts, two training rounds, unless said otherwise) and reads from /proc, some 20 times a
second, the CPU time of every process of the federation. A ClientApp's process handles one message. The outcome is in
docs/deploy.md.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from fedcal.base.store import read_json
from fedcal.federate import keeper
from fedcal.federate.processes import MARK

KINDS = ("flwr-clientapp", "flwr-serverapp", "flower-superexec", "flower-supernode", "flower-superlink", "flwr")
TICKS = 100.0  # of a second, in /proc


def cpu_of(process: int) -> tuple[str, float]:
    """The kind of a process, and its CPU seconds so far."""
    folder = Path("/proc") / str(process)
    words = [Path(word.decode(errors="replace")).name for word in (folder / "cmdline").read_bytes().split(b"\0")]
    kind = next((kind for kind in KINDS if kind in words[:3]), "")
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return kind, (int(fields[11]) + int(fields[12])) / TICKS


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    options = sys.argv[2:] or ["--data", "heart", "--rounds", "2", "--method", "fed-ts"]
    script = "import sys; from fedcal.cli.entry import main; main(sys.argv[1:])"
    began = time.perf_counter()
    command = [sys.executable, "-c", script, "federate", "--out", str(folder), *options]
    found: dict[tuple[str, int], float] = {}
    with subprocess.Popen(command) as running:
        while running.poll() is None:
            for process in keeper.marked(f"{MARK}={folder}"):
                try:
                    kind, seconds = cpu_of(process)
                except OSError:
                    continue
                if kind:  # else it is about to become one of them, or has just ended
                    found[kind, process] = seconds
            time.sleep(0.05)
    by_kind = defaultdict(list)
    for (kind, _), seconds in found.items():
        by_kind[kind].append(seconds)
    print(f"\nin all {time.perf_counter() - began:.0f} s, exit status {running.returncode}")
    for kind, costs in sorted(by_kind.items()):
        print(
            f"{kind:18s} {len(costs):4d} processes, {sum(costs) / len(costs):6.2f} CPU s each, {sum(costs):7.1f} in all"
        )
    for phase in ("training", "calibration", "evaluation"):
        rounds = [one["seconds"] for one in read_json(folder / "federation.json")["rounds"] if one["phase"] == phase]
        print(f"{phase:12s} {len(rounds):3d} rounds, {sum(rounds) / max(1, len(rounds)):5.1f} s each")


if __name__ == "__main__":
    main()
