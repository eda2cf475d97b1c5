"""What FedCal adds to a Flower round, beside the model: bytes and seconds per node, for cnn and resnet14.

    python benchmarks/flower_overhead.py

Nodes in one process, one thread, so that seconds are those of computing and packing, without a network. The data are noise
of the right shape: neither bytes nor seconds depend on what is in them. The outcome is in docs/deploy.md.
"""

from __future__ import annotations

import logging
import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fedcal.base.seeds import numpy_rng, torch_rng
from fedcal.learn.local import SGD, predict, train_locally
from fedcal.learn.models import build
from fedcal.transport.flower import CalibratedStrategy, LocalGrid, calibration_mod

SHAPES = {"cnn": (1, 28, 28), "resnet14": (3, 32, 32)}
SAMPLES, HELD_OUT, NODES, ROUNDS = 500, 100, 3, 3
METHODS = ("fedcal-literal", "fed-ts", "fed-bias", "fedcal-plus")


def app_of(name: str, spent: dict[str, float]) -> ClientApp:
    """A node whose training is timed apart."""
    rng = torch_rng(0, "noise", name)
    x, y = torch.randn(SAMPLES, *SHAPES[name], generator=rng), torch.randint(10, (SAMPLES,), generator=rng)
    model = build(name, SHAPES[name], 10, torch_rng(0, "model"))

    def logits(arrays: ArrayRecord, context: Context, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        model.load_state_dict(arrays.to_torch_state_dict())
        return predict(model, x[:HELD_OUT]), y[:HELD_OUT]

    app = ClientApp(mods=[calibration_mod(logits)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        began = time.perf_counter()
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        train_locally(model, x, y, SGD(epochs=1, batch_size=64), numpy_rng(0, "batches"))
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
        spent["training"] += time.perf_counter() - began
        return Message(RecordDict(content), reply_to=message)

    return app


def main() -> None:
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    print(
        "| model | method | model up | FedCal up | FedCal down | training s | FedCal s | calibration rounds | s per round |"
    )
    for name in SHAPES:
        for method in METHODS:
            spent = {"training": 0.0}
            grid = LocalGrid(app_of(name, spent), [{"partition-id": i} for i in range(NODES)])
            start = ArrayRecord(build(name, SHAPES[name], 10, torch_rng(0, "model")).state_dict())
            strategy = CalibratedStrategy(FedAvg(fraction_evaluate=0.0), method, n_classes=10)
            strategy.start(grid, start, ROUNDS)
            rounds, faults = strategy.report()["rounds"], strategy.report()["faults"]
            if faults:
                raise SystemExit(f"{name}, {method}: {faults[0]}")
            by = {phase: [r for r in rounds if r["phase"] == phase] for phase in ("training", "calibration")}
            model = by["training"][0]["bytes"]["model_up"] / NODES
            training = spent["training"] / ROUNDS / NODES
            if by["calibration"]:
                ours, seconds = by["calibration"], [r["seconds"] / NODES for r in by["calibration"]]
                beside = sum(seconds)
            else:
                ours, seconds = by["training"], [0.0]
                beside = sum(r["seconds"] for r in ours) / ROUNDS / NODES - training
            up, down = (max(r["bytes"][way] for r in ours) / NODES for way in ("up", "down"))
            print(
                f"| `{name}` | `{method}` | {model / 1e6:.2f} MB | {up / 1e3:.1f} kB | {down / 1e3:.1f} kB | {training:.2f} "
                f"| {beside:.2f} | {len(by['calibration'])} | {sum(seconds) / len(seconds):.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
