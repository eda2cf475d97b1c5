"""The simulator's federation as a Flower app: the same data, training and random streams, so that both give the same.

A node takes its client's data by `partition-id`. The run's `config` is a `fedcal.Config` as JSON.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedcal.base.seeds import numpy_rng
from fedcal.base.store import write_bytes, write_json
from fedcal.data import Client, skew, together
from fedcal.learn.local import predict, train_locally
from fedcal.methods import spec_of
from fedcal.methods.spec import file_name
from fedcal.protocol import Privacy, Server
from fedcal.simulate.assemble import assemble, sgd
from fedcal.simulate.config import Config
from fedcal.simulate.federation import Federation
from fedcal.simulate.runs import summarise, write_outcome
from fedcal.transport.flower.average import ExactFedAvg
from fedcal.transport.flower.server import ALL_NODES
from fedcal.transport.flower.strategy import CalibratedStrategy


def federation(config: str) -> Federation:
    """Return the federation with all its clients, and an untrained model."""
    return assemble(Config.from_dict(json.loads(config)).resolve())


_kept = lru_cache(maxsize=2)(federation)


def at_node(config: str) -> Federation:
    """Return the federation for a node, which uses its own client only: for every method the same one, which is kept."""
    settings = replace(Config.from_dict(json.loads(config)), method=("uncal",))
    return _kept(json.dumps(settings.to_dict()))


def client_of(context: Context) -> tuple[Federation, Client]:
    """Return the federation and the node's client."""
    state = at_node(str(context.run_config["config"]))
    return state, state.clients[int(context.node_config["partition-id"])]


def logits(arrays: ArrayRecord, context: Context, split: str) -> tuple[Tensor, Tensor]:
    """Return the model's logits and the labels of a split, as `calibration_mod` wants them."""
    state, client = client_of(context)
    state.model.load_state_dict(arrays.to_torch_state_dict())
    part = {"held-out": "cal", "train": "train", "test": "test"}[split]
    return predict(state.model, getattr(client, f"{part}_x")), getattr(client, f"{part}_y")


def train(message: Message, context: Context) -> Message:
    """Run a client's local epochs, as the simulator does."""
    (state, client), config = client_of(context), message.content.config_records["config"]
    settings, t = state.config, int(config["server-round"]) - 1  # type: ignore[arg-type]
    state.model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    rng = numpy_rng(settings.seed, "batches", t, f"client {state.clients.index(client)}")
    loss = train_locally(state.model, client.train_x, client.train_y, sgd(settings), rng)
    metrics: dict[str, Any] = {"num-examples": client.n, "loss": loss}
    trained = ArrayRecord(state.model.state_dict())
    return Message(RecordDict({"arrays": trained, "metrics": MetricRecord(metrics)}), reply_to=message)


def serve(grid: Grid, config: str, options: dict[str, Any], out: str) -> CalibratedStrategy:
    """Run the server: train, calibrate, measure, and write a run folder like the simulator's.

    Args:
        grid: of the run.
        config: a `fedcal.Config` as JSON.
        options: the strategy's.
        out: the run folder.

    Returns:
        The strategy, at its end.
    """
    state, folder = federation(config), Path(out)
    inner = ExactFedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
    strategy = CalibratedStrategy(
        inner, spec_of_run(state.config), n_classes=len(state.classes), seed=state.config.seed, n_bins=state.config.n_bins,
        folder=folder, nodes=len(state.clients), **strategy_options(options),
    )  # fmt: skip
    # federation.json comes last, and then the checkpoint is deleted: whoever is killed before that can go on, and who finds
    # the file knows that the run is done.
    strategy.save_first = lambda: write_run(folder, state, strategy)
    strategy.start(grid, ArrayRecord(state.model.state_dict()), state.config.rounds, timeout=strategy.timeout)
    return strategy


def spec_of_run(config: Config) -> str:
    """Return the one method that a Flower run is of, with its options."""
    return next(spec for spec in reversed(config.method) if spec != "uncal")


def strategy_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the strategy's options from their JSON values."""
    asked = options.get("privacy")
    return {**options, "privacy": Privacy(**asked)} if asked else options


def write_run(folder: Path, state: Federation, strategy: CalibratedStrategy) -> None:
    """Write the run folder's files as the simulator does, of the nodes that took part in measuring.

    Args:
        folder: the run folder.
        state: the federation, which gets the final model.
        strategy: at its end.
    """
    state.model.load_state_dict(strategy.arrays.to_torch_state_dict())
    spec, classes = spec_of(strategy.server.plan.method), len(state.classes)
    strategy.scaler.save(folder / "scalers" / f"{file_name(spec)}.safetensors")
    # Results name clients and their label counts: of a private run, the strategy itself writes what may be shown.
    if strategy.server.privacy:
        return
    measured_by = strategy.report()["measured_by"]
    here = [client for client in state.clients if client.name in measured_by]
    if strategy.secure:
        here = [together(ALL_NODES, here)]
    scalers = {"uncal": Server("uncal", classes).scaler, spec: strategy.scaler}
    state = replace(state, clients=here, skew=skew(here, classes), scalers=scalers, round=state.config.rounds)
    views = {"local": {"uncal": "uncal", "local": spec}, "own": {"uncal": "uncal", "own": spec}}
    order = [client.name for client in here]
    results = summarise(state, {kind: strategy.measured.select(names, order) for kind, names in views.items()})
    write_json(folder / "config.json", state.config.to_dict())
    write_bytes(folder / "rounds.jsonl", b"")  # losses stay with the strategy
    write_outcome(folder, state, results)
