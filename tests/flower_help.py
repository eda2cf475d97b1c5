"""What the tests of fedcal.transport.flower share: the simulator's federation, and the same over nodes in one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fedcal.protocol.rounds import begin

import fedcal
from fedcal.methods import get_method
from fedcal.simulate import federation
from fedcal.simulate.federation import Federation

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import ArrayRecord, Context, Message
from flwr.serverapp.strategy import Strategy

from fedcal.transport.flower import CalibratedStrategy, ExactFedAvg, LocalGrid
from fedcal.transport.flower.app.client_app import app as client_app

ROUNDS = 3


def config_of(data: str, method: str, clients: int = 3, **more: Any) -> fedcal.Config:
    sizes = {} if data == "heart" else {"clients": clients, "clients_per_round": clients}
    return fedcal.Config(data=data, method=("uncal", method), **{"rounds": ROUNDS, **sizes, **more})


def simulated(config: fedcal.Config, **options: Any) -> tuple[Federation, dict[str, float]]:
    """The simulator's federation at its end, and the metrics of its global scaler. `options`: the method's."""
    state, name = federation.assemble(config.resolve()), config.method[-1]
    if options:
        state.calibrations[name] = begin(get_method(name, **options), len(state.classes), config.seed)
    federation.train(state, ROUNDS, lambda state, record: None)
    federation.finish(state)
    return state, federation.evaluate(state)["local"].pooled(name).summary()


def grid_of(config: fedcal.Config, app: Callable[[Message, Context], Message] = client_app) -> LocalGrid:
    clients = federation.assemble(config.resolve()).clients
    nodes = [{"partition-id": i, "name": client.name} for i, client in enumerate(clients)]
    return LocalGrid(app, nodes, {"config": json.dumps(config.to_dict())})


def flower(
    config: fedcal.Config, grid: LocalGrid, inner: Strategy | None = None, training: int = ROUNDS, **options: Any
) -> tuple[CalibratedStrategy, ArrayRecord]:
    """The same federation over the grid's nodes. `training` rounds; `options`: the strategy's and the method's."""
    start = federation.assemble(config.resolve())
    inner = inner or ExactFedAvg(fraction_evaluate=0.0)
    options = {"timeout": 1.0, "patience": 0.0, **options}
    strategy = CalibratedStrategy(inner, config.method[-1], n_classes=len(start.classes), seed=config.seed, **options)
    result = strategy.start(grid, ArrayRecord(start.model.state_dict()), training, timeout=options["timeout"])
    return strategy, result.arrays


def distance(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert list(ours) == list(theirs)
    return max(float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours)


How = Callable[[Message, Message], Message | None]  # (asked, reply) -> what comes instead


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
