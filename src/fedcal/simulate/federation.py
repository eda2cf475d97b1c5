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
from fedcal.base.seeds import numpy_rng
from fedcal.data import Client, Skew
from fedcal.data.samples import Samples
from fedcal.errors import FedCalError
from fedcal.learn.local import Job, Trained, average, copy_state, predict
from fedcal.measure.tally import Tally
from fedcal.measure.views import Measured, View, measure
from fedcal.protocol import Scaler
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
