"""Algorithm 1: rounds of local training, with calibration beside it, on one machine.

One training run serves every calibration method: none of them changes the model, so all look at the same rounds.
Random streams are named by (seed, purpose, round, client), so a resumed run needs no generator state and gives the
same bytes as one that was never interrupted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fedcal.calibrate.rounds import Calibration, Samples, begin, calibration_round
from fedcal.config import Config
from fedcal.data import Client, Dataset, Skew, load, make_clients, skew
from fedcal.errors import FedCalError
from fedcal.learn.local import average, copy_state, predict, train_locally
from fedcal.learn.models import build
from fedcal.measure.tally import Tally
from fedcal.seeds import numpy_rng, torch_rng

Record = dict[str, Any]  # what rounds.jsonl says of a round


@dataclass
class Federation:
    """Everything a run holds between rounds."""

    config: Config
    clients: list[Client]
    skew: Skew
    classes: tuple[str, ...]
    model: nn.Module  # θ; its state is the global model's between rounds
    calibrations: dict[str, Calibration]  # π̄ and every π_c, by method
    round: int = 0


def assemble(config: Config, dataset: Dataset | None = None) -> Federation:
    """The federation before its first round; of the config's data set, or of one's own."""
    device = _device(config.device)
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
    model = build(config.model or "mlp", dataset.shape, dataset.n_classes, torch_rng(config.seed, "model"))
    return Federation(
        config,
        [_on(client, device) for client in clients],
        skew(clients, dataset.n_classes),
        dataset.classes,
        model.to(device),
        {name: begin(method, dataset.n_classes, config.seed) for name, method in config.methods().items()},
    )


def run_round(state: Federation) -> Record:
    """Lines 3–8 of Algorithm 1; returns what rounds.jsonl says of it."""
    config, clients, model, t = state.config, state.clients, state.model, state.round
    began = time.perf_counter()
    m = config.clients_per_round or min(5, len(clients))
    chosen = sorted(numpy_rng(config.seed, "choose", t).choice(len(clients), m, replace=False).tolist())  # line 3
    received = copy_state(model)
    calibrations = {n: c for n, c in state.calibrations.items() if c.method.schedule == "interleaved"}
    samples: dict[str, dict[str, Samples]] = {name: {} for name in calibrations}

    trained, losses, sizes = [], [], []
    for c in chosen if config.algorithm == "fedavg" else []:  # lines 4–6
        _look(samples, calibrations, "received", clients[c], model)
        losses.append(_train(model, clients[c].train_x, clients[c].train_y, config, f"client {c}", t))
        trained.append(copy_state(model))
        sizes.append(clients[c].n)
        _look(samples, calibrations, "local", clients[c], model)
        model.load_state_dict(received)
    if config.algorithm == "centralised":
        for c in chosen:  # there is no local model: both readings mean the received one
            _look(samples, calibrations, "received", clients[c], model)
            _look(samples, calibrations, "local", clients[c], model)
        x, y = (torch.cat([getattr(c, part) for c in clients]) for part in ("train_x", "train_y"))
        losses, sizes = [_train(model, x, y, config, "pooled", t)], [len(y)]
        trained = [copy_state(model)]

    model.load_state_dict(average(trained, by=sizes))  # line 7
    for name, calibration in calibrations.items():  # lines 8, 12–13 and 20
        calibration_round(calibration, samples[name], config.seed)
    state.round += 1
    loss = sum(a * b for a, b in zip(losses, sizes, strict=True)) / sum(sizes)
    if not math.isfinite(loss):
        raise FedCalError(f"training diverged in round {state.round} (loss {loss}): lower lr, now {config.lr}")
    return {
        "round": state.round,
        "clients": chosen,
        "loss": loss,
        **_glance(state),
        "seconds": time.perf_counter() - began,
    }


def finish(state: Federation) -> None:
    """Calibration rounds on the frozen final model, all clients taking part."""
    frozen: dict[str, dict[str, Samples]] = {}
    for calibration in state.calibrations.values():
        method = calibration.method
        if method.rounds and method.fit_on not in frozen:
            frozen[method.fit_on] = {c.name: _samples(c, state.model, method.fit_on) for c in state.clients}
        for _ in range(method.rounds):
            if calibration.done:
                break
            calibration_round(calibration, frozen[method.fit_on], state.config.seed)


def evaluate(state: Federation) -> dict[str, dict[str, list[Tally]]]:
    """Each method's tallies on the clients' test sets: under the global scaler (`local`) and their own (`own`)."""
    logits = {c.name: predict(state.model, c.test_x) for c in state.clients}
    tallies: dict[str, dict[str, list[Tally]]] = {}
    for name, calibration in state.calibrations.items():
        tallies[name] = {
            "local": [_tally(calibration, logits[c.name], c, None, state.config) for c in state.clients],
            "own": [_tally(calibration, logits[c.name], c, c.name, state.config) for c in state.clients],
        }
    return tallies


def train(state: Federation, rounds: int, after_round: Callable[[Federation, Record], None]) -> None:
    """Rounds up to the given one."""
    while state.round < rounds:
        after_round(state, run_round(state))


# --- parts of the above ------------------------------------------------------------------------------------------


def _train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, config: Config, who: str, t: int) -> float:
    return train_locally(
        model, x, y, lr=config.lr or 0.01, batch_size=config.batch_size or 256, epochs=config.epochs,
        momentum=config.momentum, weight_decay=config.weight_decay, prox_mu=config.prox_mu,
        rng=numpy_rng(config.seed, "batches", t, who),
    )  # fmt: skip


def _samples(client: Client, model: nn.Module, fit_on: str) -> Samples:
    """What a client fits a scaler on: a model's logits on its held-out or its training data."""
    x, y = (client.cal_x, client.cal_y) if fit_on == "held-out" else (client.train_x, client.train_y)
    return predict(model, x), y.cpu()


def _look(
    samples: dict[str, Any], methods: dict[str, Calibration], whose: str, client: Client, model: nn.Module
) -> None:
    """Collect the samples of the methods that fit on this model's logits, with one pass for each kind of data."""
    seen: dict[str, Samples] = {}
    for name, calibration in methods.items():
        if calibration.method.logits_of == whose:
            fit_on = calibration.method.fit_on
            seen[fit_on] = seen.get(fit_on) or _samples(client, model, fit_on)
            samples[name][client.name] = seen[fit_on]


def _glance(state: Federation) -> dict[str, float]:
    """Accuracy and ECE of the uncalibrated global model on the calibration data; the test data stays unseen."""
    logits = predict(state.model, torch.cat([c.cal_x for c in state.clients]))
    found = Tally.of(logits, torch.cat([c.cal_y for c in state.clients]).cpu(), state.config.n_bins).summary()
    return {"accuracy": found["accuracy"], "ece": found["ece"]}


def _tally(calibration: Calibration, logits: torch.Tensor, client: Client, own: str | None, config: Config) -> Tally:
    known = own if own in calibration.own else None  # a client without calibration samples has nothing of its own
    return Tally.of(calibration.apply(logits, known), client.test_y.cpu(), config.n_bins)


def _on(client: Client, device: torch.device) -> Client:
    parts = {name: value.to(device) for name, value in vars(client).items() if isinstance(value, torch.Tensor)}
    return Client(client.name, **parts)


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
    """How many numbers a round of FedAvg moves a client."""
    return sum(p.numel() for p in model.parameters())
