"""A post-hoc fedcal-plus fit over 200 nodes in Flower's simulation engine (Ray): seconds and memory.

    pip install 'flwr[simulation]==1.41.*'
    python benchmarks/flower_simulation.py [nodes]

One training round, then the fit on the frozen model. Memory is the resident set of all processes together, Ray's included,
sampled twice a second. The outcome is in FLOWER.md.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

import fedcal
from fedcal.federate import task
from fedcal.federate.app.client_app import app as node_app
from fedcal.transport.flower import CalibratedStrategy, ExactFedAvg

NODES = int(sys.argv[1]) if len(sys.argv) > 1 else 200
CONFIG = fedcal.Config(
    data="synthetic", model="logistic", clients=NODES, clients_per_round=NODES, rounds=1, cal_fraction=0.2,
    method=("uncal", "fedcal-plus"), epochs=1,
)  # fmt: skip


def at_node(message: Message, context: Context) -> Message:
    """The node's app; `run_simulation` has no run config, so that it is put in here."""
    mine = {**context.node_config, "name": f"client-{int(context.node_config['partition-id']):03d}"}
    run_config = {"config": json.dumps(CONFIG.to_dict())}
    return node_app(message, Context(context.run_id, context.node_id, mine, context.state, run_config))


app = ClientApp()
app.train()(at_node)


def resident(root: int) -> dict[int, int]:
    """MiB of the processes of this session and of those that it started, by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == root:
                pages = int((entry / "statm").read_text().split()[1])
                found[int(entry.name)] = pages * os.sysconf("SC_PAGE_SIZE") >> 20
        except (OSError, ValueError):
            continue
    return found


def main() -> None:
    if os.getsid(0) != os.getpid():
        os.setsid()  # so that Ray's processes can be told from others
    os.environ |= {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    torch.set_num_threads(1)
    peaks: list[dict[int, int]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            peaks.append(resident(os.getpid()))

    server = ServerApp()
    strategies: list[CalibratedStrategy] = []

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        state = task.federation(json.dumps(CONFIG.to_dict()))
        strategy = CalibratedStrategy(
            ExactFedAvg(fraction_evaluate=0.0), "fedcal-plus", n_classes=len(state.classes), nodes=NODES, timeout=600
        )
        strategy.start(grid, ArrayRecord(state.model.state_dict()), 1)
        strategies.append(strategy)

    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    run_simulation(server, app, NODES, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}})
    seconds = time.perf_counter() - began
    done.set()
    report = strategies[0].report()
    fit = [r["seconds"] for r in report["rounds"] if r["phase"] == "calibration"]
    totals = [sum(one.values()) for one in peaks]
    metrics = report["metrics"]
    print(
        f"{NODES} nodes, {len(fit)} calibration rounds, {len(report['measured_by'])} measured, faults: {report['faults']}"
    )
    print(
        f"{seconds:.0f} s in all, {sum(fit):.0f} s of calibration, {1000 * sum(fit) / len(fit) / NODES:.1f} ms per message"
    )
    thirds = [max(totals[i * len(totals) // 3 : (i + 1) * len(totals) // 3]) for i in range(3)]
    print(f"memory: at most {max(totals)} MiB in {max(map(len, peaks))} processes; by thirds of the run {thirds}")
    after = metrics["global"]
    print(f"ECE {metrics['uncal']['ece']:.4f} before, {after['ece']:.4f} after (floor {after['ece_floor']:.4f})")


if __name__ == "__main__":
    main()
