"""Algorithm 1: rounds of local training, with calibration beside it, on one machine.

One training run serves every calibration method: none of them changes the model, so all look at the same rounds.
Random streams are named by (seed, purpose, round, client), so a resumed run needs no generator state and gives the
same bytes as one that was never interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from fedcal.base.features import head_of
from fedcal.base.last_layer import last_linear, with_features
from fedcal.base.seeds import numpy_rng, torch_rng
from fedcal.data import Client, Dataset, Skew, load, make_clients, skew
from fedcal.data.own import is_own as is_own_data
from fedcal.data.samples import Samples
from fedcal.errors import FedCalError
from fedcal.learn import cpu
from fedcal.learn.local import SGD, Job, Trained, average, copy_state, predict, train_in_turn
from fedcal.learn.models import build
from fedcal.learn.own import Model, Traits, build_own, try_out
from fedcal.learn.own import is_own as is_own_model
from fedcal.measure.tally import Tally
from fedcal.measure.views import Measured, View, measure
from fedcal.methods import Method
from fedcal.methods.fed_head import with_features_of
from fedcal.protocol import Scaler, Server
from fedcal.simulate.config import Config
from fedcal.transport.features import feature_rows
from fedcal.transport.memory import Exchange

Record = dict[str, Any]  # what rounds.jsonl says of a round
Trainer = Callable[[list[Job]], list[Trained]]


@dataclass
class Federation:
    """Everything a run holds between rounds."""

    config: Config
    clients: list[Client]
    skew: Skew
    classes: tuple[str, ...]
    model: nn.Module  # θ; its state is the global model's between rounds
    calibrations: dict[str, Exchange]  # π̄ and every π_c, by method
    train: Trainer  # how a round's clients are trained: one after the other, or several at once
    round: int = 0
    scalers: dict[str, Scaler] = field(default_factory=dict)  # by method, once training is over
    remarks: list[str] = field(default_factory=list)  # what the user should know before it runs


def assemble(
    config: Config, dataset: Dataset | None = None, train: Trainer | None = None, own_model: Model | None = None
) -> Federation:
    """The federation before its first round.

    Args:
        config: resolved.
        dataset: one's own; the config's if not given.
        train: an engine that others share.
        own_model: a function that builds the model; the config's model if not given.
    """
    device = _device(config.device)
    if dataset is None and is_own_data(config.data):
        raise FedCalError(f"this run is on data of your own, {config.data}: give them again, as data= or --data FILE")
    dataset = dataset or load(config.data, config.data_dir, config.seed, limit=config.limit)
    if config.partition == "natural" and config.clients not in (None, len(dataset.client_names)):
        raise FedCalError(
            f"{config.data} has {len(dataset.client_names)} natural clients, not {config.clients}: leave clients out, "
            "or choose another partition"
        )
    clients = make_clients(
        dataset,
        partition=config.partition or "dirichlet",
        n_clients=config.clients or 20,
        beta=config.beta,
        classes_per_client=config.classes_per_client,
        cal_fraction=config.cal_fraction,
        min_samples=config.min_samples,
        seed=config.seed,
    )
    if (config.clients_per_round or 1) > len(clients):
        raise FedCalError(f"clients_per_round is {config.clients_per_round}, but there are {len(clients)} clients")
    model, traits = _model(config, dataset, clients, own_model)
    model, remarks = model.to(device), list[str]()
    if train is None:
        dtype = clients[0].train_x.dtype
        train = trainer(config, model, dataset.shape, traits, dtype, remarks.append)
    return Federation(
        config,
        [_on(client, device) for client in clients],
        skew(clients, dataset.n_classes),
        dataset.classes,
        model,
        {name: calibration(method, dataset.n_classes, config) for name, method in methods_for(config, model).items()},
        train,
        remarks=remarks,
    )


def methods_for(config: Config, model: nn.Module) -> dict[str, Method]:
    """The methods asked for; those that take features get the number that the model has."""
    methods = config.methods()
    if any(method.takes == "features" for method in methods.values()):
        d = last_linear(model)[1].in_features
        methods = {name: with_features_of(method, d) for name, method in methods.items()}
    return methods


def _model(
    config: Config, dataset: Dataset, clients: list[Client], own: Model | None
) -> tuple[nn.Module, Traits | None]:
    """The model before training; and, of one's own, what an engine must know of it."""
    name, rng = config.model or "mlp", torch_rng(config.seed, "model")
    tokens = clients[0].train_x.dtype == torch.int64
    if own is None and is_own_model(name):
        raise FedCalError(
            f"this run has a model of your own, {name}: give it again, as model= or --model; no file says what to import"
        )
    if own is None and tokens:
        raise FedCalError(
            f"{dataset.name} holds whole numbers, which are token ids, and model {name} has no embedding: give a model of "
            "your own, or standardise to take them as features"
        )
    if own is None:
        return build(name, dataset.shape, dataset.n_classes, rng), None
    model = build_own(own, name, dataset.shape, dataset.n_classes, rng)
    x, y = (torch.cat([getattr(client, part)[:4] for client in clients[:4]]) for part in ("train_x", "train_y"))
    return model, try_out(model, name, x, y, dataset.n_classes)


def calibration(method: Method, n_classes: int, config: Config) -> Exchange:
    """A method's server, and its clients as they come: beside training, and on the final model."""
    beside = config.rounds if method.schedule == "interleaved" else 0
    return Exchange(Server(method, n_classes, config.seed, rounds=beside + method.rounds))


def trainer(
    config: Config,
    model: nn.Module,
    shape: tuple[int, ...],
    traits: Traits | None = None,
    dtype: torch.dtype = torch.float32,
    remark: Callable[[str], None] = lambda text: None,
) -> Trainer:
    """The engine that trains a round's clients. Several federations of one model and one way to train may share it.

    Args:
        config: which engine is wanted. `auto` takes a fast one where that pays and can be, else the reference loop.
        model: to be trained.
        shape: of one input.
        traits: of a user's own model; None for those of models.py, which every engine can train.
        dtype: of the inputs.
        remark: called where the fast engine is not taken though it would pay.

    Raises:
        FedCalError: the fast engine is asked for, and cannot train the model.
    """
    how, device = sgd(config), next(model.parameters()).device.type
    random = traits is not None and traits.random

    def reference(jobs: list[Job]) -> list[Trained]:
        return train_in_turn(model, jobs, how, random)

    if config.engine == "reference" or (config.engine == "auto" and device == "cpu" and not cpu.pays(model)):
        return reference
    if (why := traits.obstacle(device) if traits else None) is None:
        if device == "cpu":
            return cpu.Engine(model, how, torch.get_num_threads(), traits is None or traits.rowwise).train
        from fedcal.learn.fast import Engine

        try:
            return Engine(model, shape, how, config.precision, config.slots, dtype).train
        except RuntimeError as error:
            if traits is None:
                raise
            torch.cuda.synchronize()
            why = f"its step cannot be recorded as a CUDA graph ({str(error).splitlines()[0]})"
    if config.engine == "fast":
        raise FedCalError(f"the fast engine cannot train model {config.model}: {why}; choose --engine reference")
    remark(f"model {config.model} is trained by the reference loop: {why}")
    return reference


def sgd(config: Config) -> SGD:
    """How a client trains, by the config."""
    return SGD(
        lr=config.lr or 0.01, batch_size=config.batch_size or 256, epochs=config.epochs, momentum=config.momentum,
        weight_decay=config.weight_decay, prox_mu=config.prox_mu,
    )  # fmt: skip


# --- one round -----------------------------------------------------------------------------------------------------


def run_round(state: Federation) -> Record:
    """One round of Algorithm 1, in the order of its lines; returns what rounds.jsonl says of it."""
    began = time.perf_counter()
    chosen = choose_clients(state)  # line 3
    jobs = training_jobs(state, chosen)
    trained = state.train(jobs)  # lines 4–6: every chosen client trains the model that it received (lines 14–19)
    loss = average_models(state, jobs, trained)  # line 7
    calibrate_alongside(state, chosen, trained)  # lines 8, 12–13 and 20
    state.round += 1
    record = {"round": state.round, "clients": chosen, "loss": loss, **_glance(state)}
    return {**record, "seconds": time.perf_counter() - began}


def choose_clients(state: Federation) -> list[int]:
    """Line 3: draw the m clients of this round."""
    m = state.config.clients_per_round or min(5, len(state.clients))
    rng = numpy_rng(state.config.seed, "choose", state.round)
    return sorted(rng.choice(len(state.clients), m, replace=False).tolist())


def training_jobs(state: Federation, chosen: list[int]) -> list[Job]:
    """What each chosen client has to train; for a centralised model, one job on everybody's data."""
    received, clients, seed, t = copy_state(state.model), state.clients, state.config.seed, state.round
    if state.config.algorithm == "centralised":
        x, y = (torch.cat([getattr(c, part) for c in clients]) for part in ("train_x", "train_y"))
        before = {f"{c}/{fit_on}": _inputs(clients[c], fit_on) for c in chosen for fit_on in _wanted(state)}
        return [Job(received, x, y, numpy_rng(seed, "batches", t, "pooled"), before)]
    jobs = []
    for c in chosen:
        before, after = (
            {fit_on: _inputs(clients[c], fit_on) for fit_on in _wanted(state, whose)} for whose in ("received", "local")
        )
        rng = numpy_rng(seed, "batches", t, f"client {c}")
        jobs.append(Job(received, clients[c].train_x, clients[c].train_y, rng, before, after))
    return jobs


def average_models(state: Federation, jobs: list[Job], trained: list[Trained]) -> float:
    """Line 7: the new global model is the clients' average, weighted by their samples; returns their mean loss."""
    sizes = [len(job.y) for job in jobs]
    loss = sum(t.loss * n for t, n in zip(trained, sizes, strict=True)) / sum(sizes)
    if not math.isfinite(loss):
        lr = state.config.lr
        raise FedCalError(f"training diverged in round {state.round + 1} (loss {loss}): lower lr, now {lr}")
    state.model.load_state_dict(average([t.state for t in trained], by=sizes))
    return loss


def calibrate_alongside(state: Federation, chosen: list[int], trained: list[Trained]) -> None:
    """Lines 8, 12–13 and 20: the round of every calibration that runs beside training."""
    config, clients = state.config, state.clients
    for exchange in _interleaved(state):
        method, samples = exchange.method, {}
        for i, c in enumerate(chosen):
            if config.algorithm == "centralised":  # there is no local model: both readings mean the received one
                logits = trained[0].before[f"{c}/{method.fit_on}"]
            else:
                seen = trained[i].before if method.logits_of == "received" else trained[i].after
                logits = seen[method.fit_on]
            samples[clients[c].name] = logits.double(), _labels(clients[c], method.fit_on)
        exchange.round(samples)


# --- after training ------------------------------------------------------------------------------------------------


def finish(state: Federation, on_fit: Callable[[str, int], None] = lambda method, rounds: None) -> None:
    """Calibration rounds on the frozen final model, all clients taking part.

    Args:
        state: the federation, after its training rounds.
        on_fit: called with a method and its calibration rounds so far, before its fit and after every round.
    """
    frozen: dict[str, dict[str, Samples]] = {}
    for name, exchange in state.calibrations.items():
        on_fit(name, 0)
        method = exchange.method
        key = f"{method.takes} of {method.fit_on}"
        if exchange.server.request is not None and key not in frozen:
            make = feature_samples if method.takes == "features" else _samples
            frozen[key] = {c.name: make(c, state.model, method.fit_on) for c in state.clients}
        before = exchange.server.ledger.rounds
        state.scalers[name] = scaler = exchange.run(
            frozen.get(key, {}), lambda server, name=name, before=before: on_fit(name, server.ledger.rounds - before)
        )
        if method.takes == "features":
            weight, bias = head_of(last_linear(state.model)[1])
            scaler.params |= {"model_weight": weight, "model_bias": bias}


def feature_samples(client: Client, model: nn.Module, fit_on: str = "held-out") -> Samples:
    """A client's rows, with features: what it fits on, and then the training samples beside them."""
    whole, splits = with_features(model), ["held-out", "train"] if fit_on == "held-out" else [fit_on]
    rows = [feature_rows(whole, _inputs(client, split), trained=i > 0) for i, split in enumerate(splits)]
    return np.concatenate(rows), torch.cat([_labels(client, split) for split in splits])


def test_logits(state: Federation) -> dict[str, Any]:
    """The final model's logits on each client's test set; rows with features where a method takes them."""
    if any(scaler.method.takes == "features" for scaler in state.scalers.values()):
        whole = with_features(state.model)
        return {c.name: feature_rows(whole, c.test_x) for c in state.clients}
    return {c.name: predict(state.model, c.test_x) for c in state.clients}


def evaluate(state: Federation, logits: dict[str, Any] | None = None, compare: bool = True) -> dict[str, Measured]:
    """Measure every method on the clients' test sets, one view per method.

    Args:
        state: the finished federation.
        logits: what `test_logits` gives; if not given, it is computed.
        compare: whether to sum up what compares the methods' global scalers with each other.

    Returns:
        "local": every client under the global scaler; "own": every client under its personal scaler, if it has one.
    """
    logits = test_logits(state) if logits is None else logits
    samples = {c.name: (logits[c.name], c.test_y.cpu()) for c in state.clients}
    n_bins = state.config.n_bins
    return {
        "local": measure(samples, {k: _global_view(s) for k, s in state.scalers.items()}, n_bins, compare),
        "own": measure(samples, {k: _personal_view(s) for k, s in state.scalers.items()}, n_bins, compare=False),
    }


def train(state: Federation, rounds: int, after_round: Callable[[Federation, Record], None]) -> None:
    """Rounds up to the given one."""
    while state.round < rounds:
        after_round(state, run_round(state))


# --- parts of the above ------------------------------------------------------------------------------------------


def _interleaved(state: Federation) -> list[Exchange]:
    return [exchange for exchange in state.calibrations.values() if exchange.method.schedule == "interleaved"]


def _wanted(state: Federation, logits_of: str | None = None) -> list[str]:
    """The splits on which calibrations beside training want logits (of the received or the local model)."""
    methods = [exchange.method for exchange in _interleaved(state)]
    return sorted({method.fit_on for method in methods if logits_of in (None, method.logits_of)})


def _inputs(client: Client, fit_on: str) -> torch.Tensor:
    return client.cal_x if fit_on == "held-out" else client.train_x


def _labels(client: Client, fit_on: str) -> torch.Tensor:
    return (client.cal_y if fit_on == "held-out" else client.train_y).cpu()


def _samples(client: Client, model: nn.Module, fit_on: str) -> Samples:
    """What a client fits a scaler on: a model's logits on its held-out or its training data."""
    return predict(model, _inputs(client, fit_on)), _labels(client, fit_on)


def _glance(state: Federation) -> dict[str, float]:
    """Accuracy and ECE of the uncalibrated global model on the calibration data; the test data stays unseen."""
    logits = predict(state.model, torch.cat([c.cal_x for c in state.clients]))
    found = Tally.of(logits, torch.cat([c.cal_y for c in state.clients]).cpu(), state.config.n_bins).summary()
    return {"accuracy": found["accuracy"], "ece": found["ece"]}


def _global_view(scaler: Scaler) -> View:
    return lambda _, rows: scaler.apply(_of_rows(scaler, rows), probs=False)


def _personal_view(scaler: Scaler) -> View:
    """A client without calibration samples has no personal scaler: the global one serves it."""
    return lambda client, rows: scaler.apply(
        _of_rows(scaler, rows), client if client in scaler.personal else None, probs=False
    )


def _of_rows(scaler: Scaler, rows: torch.Tensor) -> torch.Tensor:
    """What a scaler takes of rows that may hold features beside the logits."""
    return rows if scaler.method.takes == "features" else rows[:, : scaler.n_classes]


def _on(client: Client, device: torch.device) -> Client:
    """The client's tensors there; on a GPU images are channels-last, as its engine wants them."""

    def moved(value: torch.Tensor) -> torch.Tensor:
        images = value.ndim == 4 and device.type == "cuda"
        return value.to(device, memory_format=torch.channels_last if images else torch.preserve_format)

    return Client(client.name, **{k: moved(v) for k, v in vars(client).items() if isinstance(v, torch.Tensor)})


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise FedCalError(f"unknown device {name!r}: choose cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise FedCalError(f"device {name!r} is not supported: choose cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise FedCalError(
            f"device {name!r} is not here: PyTorch sees {torch.cuda.device_count()} CUDA devices; choose cpu"
        )
    return device


def n_parameters(model: nn.Module) -> int:
    """How many numbers a client sends, and receives, in a round of FedAvg."""
    return sum(p.numel() for p in model.parameters())
