"""FedAvg as the simulator computes it: Σ (n_c / N) θ_c summed in float64, integer counters left as they are.

Flower's FedAvg adds in the model's type, which differs in the last bits. Such models give the same temperature to seven
digits, but not the same folds, which follow from the logits' exact bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedcal.base.arrays import tensors
from fedcal.learn.local import average
from fedcal.transport.flower.records import from_record, to_record


class ExactFedAvg(FedAvg):
    """Flower's FedAvg, except for the sum itself."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the averaged model, and the metrics that Flower averages."""
        good = [reply for reply in replies if not reply.has_error()]
        arrays, metrics = super().aggregate_train(server_round, good)
        if arrays is None:
            return None, metrics
        states = [tensors(from_record(next(iter(reply.content.array_records.values())))) for reply in good]
        counts: list[Any] = [next(iter(r.content.metric_records.values()))[self.weighted_by_key] for r in good]
        return to_record(average(states, by=counts)), metrics
