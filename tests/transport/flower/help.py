"""What the tests of fedcal.transport.flower share: the simulator's federation, and the same over nodes in one process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedcal
from fedcal import Scaler
from fedcal.base.arrays import as_array
from fedcal.base.store import read_json, read_tensors
from fedcal.methods.spec import file_name
from fedcal.simulate.assemble import assemble

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp.strategy import Strategy

from fedcal.federate.app.client_app import app as client_app
from fedcal.transport.flower import CalibratedStrategy, ExactFedAvg, LocalGrid

ROUNDS = 3


def config_of(data: str, method: str, clients: int = 3, **more: Any) -> fedcal.Config:
    sizes = {} if data == "heart" else {"clients": clients, "clients_per_round": clients}
    return fedcal.Config(data=data, method=("uncal", method), **{"rounds": ROUNDS, **sizes, **more})


@dataclass(frozen=True)
class Simulated:
    """What the simulator's run folder holds of a federation with one method."""

    model: dict[str, torch.Tensor]
    scaler: Scaler
    metrics: dict[str, float]  # of the global scaler
    clients: list[str]
    rounds: int  # of calibration
    bytes_up: int


@cache
def simulated(config: fedcal.Config) -> Simulated:
    """Run the federation in the simulator."""
    with tempfile.TemporaryDirectory() as name:
        folder, spec = Path(name), config.method[-1]
        fedcal.run(config, out=folder)
        results = read_json(folder / "results.json")
        found, cost = results["methods"][spec], results["methods"][spec]["cost"]
        return Simulated(
            read_tensors(folder / "model.safetensors")[0],
            Scaler.load(folder / "scalers" / f"{file_name(spec)}.safetensors"),
            found["global"],
            results["data"]["clients"],
            cost["rounds"],
            cost["bytes_up_total"],
        )


def grid_of(config: fedcal.Config, app: Callable[[Message, Context], Message] = client_app) -> LocalGrid:
    clients = assemble(config.resolve()).clients
    nodes = [{"partition-id": i, "name": client.name} for i, client in enumerate(clients)]
    return LocalGrid(app, nodes, {"config": json.dumps(config.to_dict())})


def flower(
    config: fedcal.Config, grid: LocalGrid, inner: Strategy | None = None, training: int = ROUNDS, **options: Any
) -> tuple[CalibratedStrategy, ArrayRecord]:
    """The same federation over the grid's nodes. `training` rounds; `options`: the strategy's."""
    start = assemble(config.resolve())
    inner = inner or ExactFedAvg(fraction_evaluate=0.0)
    options = {"timeout": 1.0, "patience": 0.0, **options}
    strategy = CalibratedStrategy(inner, config.method[-1], n_classes=len(start.classes), seed=config.seed, **options)
    result = strategy.start(grid, ArrayRecord(start.model.state_dict()), training, timeout=options["timeout"])
    return strategy, result.arrays


def distance(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The largest difference of two sets of arrays, or tensors, of the same names, in whatever order."""
    assert sorted(ours) == sorted(theirs)
    pairs = ((as_array(ours[name]).astype(float), as_array(theirs[name]).astype(float)) for name in ours)
    return max((float(np.abs(a - b).max()) for a, b in pairs), default=0.0)


How = Callable[[Message, Message], Message | None]  # (request, reply) -> what comes instead


def breaking(node: str, how: How, after: int = 0) -> Callable[[Message, Context], Any]:
    """The app, but one node's replies go through `how` from its message number `after` on (counted from 0)."""
    seen = {"n": -1}

    def app(message: Message, context: Context) -> Message | None:
        reply = client_app(message, context)
        if context.node_config["name"] != node:
            return reply
        seen["n"] += 1
        return how(message, reply) if seen["n"] >= after else reply

    return app
