"""kill -9 of one of six SuperNodes in mid-round, then of the ServerApp: who took part, and what came of it.

    python benchmarks/flower_killed.py FOLDER

A real SuperLink and six SuperNodes on loopback, with TLS and node keys; digits, Algorithm 1 (fedcal-literal). The outcome
is in docs/deploy.md.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import fedcal
from fedcal.base.store import read_json, read_tensors
from fedcal.federate import launch

PATIENCE = 420.0


def wait_for_round(path: Path, number: int) -> None:
    """Until that training round is in the checkpoint."""
    until = time.monotonic() + PATIENCE
    while not path.exists() or read_tensors(path)[1]["training"] < number:
        if time.monotonic() > until:
            raise SystemExit(f"round {number} did not end within {PATIENCE:.0f} s")
        time.sleep(0.2)


def server_process(plan: launch.Plan) -> int:
    """The ServerApp's, among all processes: the one with this federation's home."""
    home = f"FLWR_HOME={plan.flower / 'home'}\0".encode()
    for entry in Path("/proc").iterdir():
        try:
            if b"flwr-serverapp" in (entry / "cmdline").read_bytes() and home in (entry / "environ").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    raise SystemExit("there is no ServerApp")


def main() -> None:
    config = fedcal.Config(data="digits", rounds=4, clients=6, clients_per_round=6, method=("uncal", "fedcal-literal"))
    plan = launch.plan(config, Path(sys.argv[1]), {"timeout": 90.0, "patience": 20.0})
    began = time.perf_counter()

    def say(words: str) -> None:
        print(f"{time.perf_counter() - began:5.0f} s  {words}", flush=True)

    launch.prepare(plan)
    training = plan.folder / "checkpoint" / "training.safetensors"
    with launch.federation(plan) as processes:
        say("SuperLink and six SuperNodes are up")
        processes.start("run", plan.run())
        wait_for_round(training, 1)
        os.killpg(processes.running["node-5"].pid, signal.SIGKILL)
        say("round 1 is done; kill -9 of client-5's SuperNode in round 2")
        wait_for_round(training, 2)
        say("round 2 is done without it")
        time.sleep(2)
        os.kill(server_process(plan), signal.SIGKILL)
        processes.stop("run")
        say("kill -9 of the ServerApp in round 3; the run is started again")
        code = processes.call("again", plan.run(), PATIENCE)
        say(f"the run has ended with {code}")
    say("everything is stopped")
    about = read_json(plan.folder / "federation.json")
    for one in about["rounds"]:
        print(f"{one['phase']} {one['round']}: {', '.join(one['took_part'])}")
    for fault in about["faults"]:
        print(f"round {fault['round']} went on without {fault['name']}: {fault['reason']}")
    metrics = about["metrics"]
    print(f"ECE {metrics['uncal']['ece']:.4f} before, {metrics['global']['ece']:.4f} after")


if __name__ == "__main__":
    main()
