"""What secure aggregation changes and costs: `fedcal-plus` on nodes of one process, plain and with `secure=True`.

    python benchmarks/secure.py [METHOD]

Nodes of 80 samples, half of them to calibrate on, three classes with skewed labels; seconds are of the process's CPU, all
nodes and the server together.
"""

from __future__ import annotations

import logging
import sys
import time
from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

from fedcal.transport.flower import CalibratedStrategy, LocalGrid, calibration_mod

K = 3


@cache
def samples(node: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Logits that are three times too large, and labels."""
    rng = np.random.default_rng(node)
    y = rng.choice(K, size=80, p=rng.dirichlet(np.full(K, 2.0)))
    z = 3 * (rng.normal(size=(80, K)) + 1.5 * np.eye(K)[y])
    logits, labels = torch.from_numpy(z), torch.from_numpy(y)
    return {"held-out": (logits[:40], labels[:40]), "test": (logits[40:], labels[40:])}


def fit(nodes: int, method: str, secure: bool) -> tuple[CalibratedStrategy, float]:
    """Fit over so many nodes; also returns the CPU seconds."""
    mod = calibration_mod(lambda arrays, context, split: samples(int(context.node_config["i"]))[split])
    grid = LocalGrid(lambda message, context: mod(message, context, None), [{"i": i} for i in range(nodes)])
    strategy = CalibratedStrategy(FedAvg(), method, n_classes=K, secure=secure, timeout=600.0)
    began = time.process_time()
    strategy.start(grid, ArrayRecord({}), num_rounds=0)
    return strategy, time.process_time() - began


def main(method: str) -> None:
    logging.disable(logging.CRITICAL)
    print(f"| nodes | {method} | rounds | ECE, % | NLL | kB up per node | CPU s |\n|---:|---|---:|---:|---:|---:|---:|")
    for nodes in (6, 63, 64):
        for secure in (False, True):
            strategy, seconds = fit(nodes, method, secure)
            report, metrics = strategy.report(), strategy.metrics()["global"]
            up = sum(one["bytes"]["up"] for one in report["rounds"]) / nodes / 1000
            kind = f"secure, groups of {report['secure']['groups']}" if secure else "plain"
            print(
                f"| {nodes} | {kind} | {report['calibration_rounds']} | {100 * metrics['ece']:.10f} "
                f"| {metrics['nll']:.12f} | {up:.0f} | {seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["fedcal-plus"]))
