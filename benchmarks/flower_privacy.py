"""ECE against ε: fed-ts under central and local differential privacy on digits, over nodes in one process.

    python benchmarks/flower_privacy.py

Noise comes from the operating system, so that figures differ from run to run: mean and standard deviation of ten.
The outcome is in docs/privacy.md.
"""

from __future__ import annotations

import json
import logging
import statistics

import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp

import fedcal
from fedcal.federate import task
from fedcal.simulate import federation
from fedcal.transport.flower import CalibratedStrategy, ExactFedAvg, LocalGrid, Privacy, calibration_mod

REPEATS, DELTA, CLIP, ROUNDS = 10, 1e-4, 2.0, 6
CONFIG = fedcal.Config(
    data="digits", rounds=10, clients=5, clients_per_round=5, cal_fraction=0.3, method=("uncal", "fed-ts")
)


def run(privacy: Privacy | None, where: str, arrays: ArrayRecord) -> dict[str, float]:
    """Calibrate the trained model again; its ECE before and after."""
    app = ClientApp(mods=[calibration_mod(task.logits, privacy if where == "local" else None)])
    app.train()(task.train)
    nodes = [{"partition-id": i, "name": f"client-{i}"} for i in range(5)]
    strategy = CalibratedStrategy(
        ExactFedAvg(), "fed-ts", n_classes=10, privacy=privacy if where == "central" else None
    )
    strategy.start(LocalGrid(app, nodes, {"config": json.dumps(CONFIG.to_dict())}), arrays, num_rounds=0)
    metrics = strategy.metrics()
    return {
        "before": metrics["uncal"]["ece"],
        "after": metrics["global"]["ece"],
        "floor": metrics["global"]["ece_floor"],
    }


def main() -> None:
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    state = federation.assemble(CONFIG.resolve())
    federation.train(state, CONFIG.rounds, lambda state, record: None)
    arrays = ArrayRecord(state.model.state_dict())
    exact = run(None, "", arrays)
    n = sum(len(client.cal_y) for client in state.clients)
    print(f"{n} calibration samples of 5 clients; before {exact['before']:.4f}, exact {exact['after']:.4f}")
    print(f"floor {exact['floor']:.4f}; δ = {DELTA}, clip {CLIP}, {ROUNDS} rounds, {REPEATS} repeats")
    for epsilon in (0.5, 1.0, 4.0, 16.0):
        privacy = Privacy(epsilon, delta=DELTA, clip=CLIP, rounds=ROUNDS)
        for where in ("central", "local"):
            found = [run(privacy, where, arrays)["after"] for _ in range(REPEATS)]
            mean, spread = statistics.mean(found), statistics.stdev(found)
            print(f"ε = {epsilon:4} {where:8} σ = {privacy.noise:6.2f}  ECE {mean:.4f} ± {spread:.4f}")


if __name__ == "__main__":
    main()
