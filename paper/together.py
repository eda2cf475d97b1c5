"""Several federations trained side by side: their clients share one engine, so that a GPU has enough to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from fedcal.learn.local import Job, Trained
from fedcal.simulate.federation import Federation, average_models, choose_clients, training_jobs


@dataclass(frozen=True)
class Round:
    """What a round of one federation gave."""

    loss: float
    steps: int  # batches that its clients trained on
    logits: dict[str, Tensor]  # of each client's own model on its training samples; empty unless asked for


def run_rounds(states: Sequence[Federation], keep_logits: Sequence[bool] | None = None) -> list[Round]:
    """Train the next round of several federations of one model and one way to train.

    `federation.run_round` without calibrations: scalers are fitted later, on what was recorded.

    Args:
        states: The federations; the first one's engine trains all of them.
        keep_logits: For which of them to keep the logits of the clients' own models (FedAvg only).
    """
    keep_logits = keep_logits or [False] * len(states)
    chosen = [choose_clients(state) for state in states]
    jobs = [training_jobs(state, clients) for state, clients in zip(states, chosen, strict=True)]
    jobs = [[_with_logits(job) for job in mine] if keep else mine for mine, keep in zip(jobs, keep_logits, strict=True)]
    done = iter(states[0].train([job for mine in jobs for job in mine]))
    trained = [[next(done) for _ in mine] for mine in jobs]
    rounds = []
    for i, state in enumerate(states):
        loss = average_models(state, jobs[i], trained[i])
        state.round += 1
        names = [state.clients[c].name for c in chosen[i]]
        rounds.append(Round(loss, _steps(state, jobs[i]), _logits(names, trained[i]) if keep_logits[i] else {}))
    return rounds


def _with_logits(job: Job) -> Job:
    return replace(job, after={**job.after, "train": job.x})


def _logits(names: list[str], trained: list[Trained]) -> dict[str, Tensor]:
    return {name: one.after["train"] for name, one in zip(names, trained, strict=True)}


def _steps(state: Federation, jobs: list[Job]) -> int:
    return state.config.epochs * sum(math.ceil(len(job.y) / (state.config.batch_size or 256)) for job in jobs)
