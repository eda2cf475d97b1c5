"""`CalibratedStrategy(FedAvg(), method="fedcal-plus", n_classes=10)`: any Flower strategy, with calibration around it.

The inner strategy is composed, not subclassed: it never sees FedCal's records, nor a reply that was refused. After its last
training round come the calibration rounds on the final model, and one round that measures. It must be the outermost
wrapper: CalibratedStrategy(DP(FedAvg())), not the other way round.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcal.base.store import finite, write_json
from fedcal.errors import FedCalError
from fedcal.measure.views import Measured
from fedcal.methods import DEFAULT
from fedcal.protocol.privacy import Privacy
from fedcal.protocol.rounds import Calibration
from fedcal.protocol.scaler_file import save_scaler
from fedcal.transport.flower.checkpoint import Checkpoint
from fedcal.transport.flower.checks import bad_models
from fedcal.transport.flower.grid import PatientGrid, TooFewNodes
from fedcal.transport.flower.records import size, take_out
from fedcal.transport.flower.robust import Robust
from fedcal.transport.flower.server import Calibrator


class CalibratedStrategy(Strategy):
    """A strategy that also calibrates.

    Args:
        inner: the strategy that trains.
        method: see `fedcal methods`; `options` are the method's own, e.g. `accuracy="keep"`.
        n_classes: K of the model's logits.
        robust: "median" or "trimmed" in place of the mean, for methods whose nodes send scalers.
        privacy: central differential privacy of an additive method's sums.
        timeout: seconds that nodes have for a calibration round.
        nodes: how many nodes to wait for before the first round.
        patience: seconds to wait for nodes; then a round goes on without them, or is left out.
        folder: where scaler and report go, and a checkpoint after every round; a run that finds one goes on from it.
    """

    def __init__(
        self,
        inner: Strategy,
        method: str = DEFAULT,
        *,
        n_classes: int,
        seed: int = 0,
        robust: Robust | None = None,
        privacy: Privacy | None = None,
        timeout: float = 300.0,
        nodes: int = 1,
        patience: float = 60.0,
        n_bins: int = 15,
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        self.inner, self.timeout, self.nodes, self.patience = inner, timeout, nodes, patience
        self.calibrator = Calibrator(method, options, n_classes, seed, robust, privacy, n_bins)
        self.folder = Path(folder) if folder else None
        self.checkpoint = Checkpoint(self.folder / "checkpoint", self.calibrator, inner) if self.folder else None
        self.measured = Measured({})
        self._phase = "train" if self.calibrator.method.schedule == "interleaved" else "meet"
        self._silences = Counter[int]()  # how often a node let a training round time out
        self._back: dict[int, int] = {}  # the round from which on it is asked again: later each time
        self._asked: set[int] = set()
        self._arrays = ArrayRecord()
        self._before, self._began, self._round, self._trained = 0, 0.0, 0, 0

    @property
    def calibration(self) -> Calibration:
        """The scaler: `calibration.predict_proba(logits)`. Nodes' own ones are at the nodes."""
        state = self.calibrator.state
        return Calibration(state.method, state.params, n_classes=state.n_classes, name=state.name)

    def summary(self) -> None:
        log(INFO, "\t├── FedCal: %s", self.calibrator.name)
        self.inner.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's rounds, then the calibration rounds on the final model, then one that measures."""
        arrays = initial_arrays
        if self.checkpoint:
            self._before, arrays = self.checkpoint.load(initial_arrays)
        result = Result(arrays=arrays)
        self._arrays = arrays
        self._wait(grid, self.nodes)
        if num_rounds > self._before:
            judge = (lambda t, a: evaluate_fn(t + self._before, a)) if evaluate_fn else None
            view = PatientGrid(grid, self._present, math.inf)
            left = num_rounds - self._before
            result = super().start(view, arrays, left, timeout, train_config, evaluate_config, judge)
            arrays = result.arrays = result.arrays or arrays
        nodes = self._wait(grid, 1)
        if self.calibrator.method.rounds:
            limit = min(timeout, self.timeout)
            nodes = self.calibrator.fit(grid, nodes, arrays, limit, self._save_round)
        self.measured = self.calibrator.measure(grid, nodes, arrays, min(timeout, self.timeout))
        if not self.measured.clients:
            reasons = "; ".join(sorted({str(fault["reason"]) for fault in self.calibrator.faults}))
            raise FedCalError(f"no node is left to measure with ({reasons}): go on from the checkpoint, or start anew")
        metrics = {f"fedcal-{key}": value for key, value in self.metrics()["global"].items()}
        result.evaluate_metrics_clientapp[num_rounds] = MetricRecord(
            {**(result.evaluate_metrics_clientapp.get(num_rounds) or {}), **metrics}
        )
        if self.folder:
            self.save(self.folder)
        return result

    # --- Flower's four steps, around the inner strategy's ----------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._arrays, self._began, self._round = arrays, time.perf_counter(), server_round
        messages = self._configure(self.inner.configure_train, server_round, arrays, config, grid)
        self._asked = {message.metadata.dst_node_id for message in messages}
        for message in messages:
            message.content.update(self.calibrator.records(self._phase))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        by_node, calibrator = {reply.metadata.src_node_id: reply for reply in replies}, self.calibrator
        self._blame_the_silent(by_node)
        whole = {node: reply for node, reply in by_node.items() if not reply.has_error()}
        records = {node: take_out(reply.content) for node, reply in whole.items()}
        model = size([self._arrays])
        cost = {"up": sum(size(r.values()) for r in records.values()), "model_down": len(self._asked) * model}
        cost["model_up"] = sum(size(reply.content.array_records.values()) for reply in whole.values())
        for node, reason in bad_models(whole, self._arrays).items():
            calibrator.blame(node, reason)
            del whole[node]
        cost["down"] = len(self._asked) * size(calibrator.records(self._phase).values())
        read = calibrator.meet if self._phase == "meet" else calibrator.read
        updates = read({node: records[node] for node in whole})
        good = sorted(calibrator.heard, key=calibrator.names.__getitem__)
        if self._phase == "train":
            calibrator.conclude(updates)
        outcome = self.inner.aggregate_train(server_round + self._before, [whole[node] for node in good])
        calibrator.note("training", updates, cost, self._began)
        self._trained = server_round + self._before
        if self.checkpoint:
            self.checkpoint.save_training(self._trained, outcome[0] or self._arrays)
        return outcome

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self._configure(self.inner.configure_evaluate, server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.inner.aggregate_evaluate(
            server_round + self._before, [reply for reply in replies if not reply.has_error()]
        )

    # --- outcome ---------------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """Metrics of all nodes' test samples together (`global`, and `uncal` before), and means over nodes."""
        if not self.measured.clients:
            return {}
        return {
            "uncal": self.measured.pooled("uncal").summary(),
            "global": self.measured.pooled("local").summary(),
            "local": self.measured.over_clients("local"),
            "own": self.measured.over_clients("own"),
        }

    def report(self) -> dict[str, Any]:
        """Who took part in what, who did not and why, what it cost, and what privacy it kept."""
        c = self.calibrator
        last = [r["took_part"] for r in c.rounds if r["phase"] == "calibration"]
        return {
            "method": c.name,
            "options": asdict(c.method),
            "n_classes": c.n_classes,
            "federation": c.federation,
            "training_rounds": max(self._trained, self._before),
            "calibration_rounds": c.fitted,
            "restarts": c.restarts,
            "fitted_by": last[-1] if last else [],
            "measured_by": self.measured.clients,
            "faults": c.faults,
            "rounds": c.rounds,
            "bytes_up": c.state.total_up,
            "bytes_down": c.state.total_down,
            "privacy": c.privacy.report("central", c.releases) if c.privacy else None,
            "local_privacy": c.local,
            "metrics": self.metrics(),
        }

    def save(self, folder: str | Path) -> None:
        """scaler.safetensors and federation.json; the checkpoint is no longer needed."""
        save_scaler(Path(folder) / "scaler.safetensors", self.calibration)
        write_json(Path(folder) / "federation.json", finite(self.report()))
        if self.checkpoint:
            self.checkpoint.clear()

    # --- nodes -----------------------------------------------------------------------------------------------------------

    def _configure(
        self,
        configure: Callable[..., Iterable[Message]],
        server_round: int,
        arrays: ArrayRecord,
        config: Any,
        grid: Grid,
    ) -> list[Message]:
        """The inner strategy's messages; none, where it waits for nodes that do not come."""
        try:
            view = PatientGrid(grid, self._present, self.patience)
            return list(configure(server_round + self._before, arrays, config, view))
        except TooFewNodes as error:
            log(WARNING, "FedCal: round %d is left out: %s", server_round + self._before, error)
            return []

    def _present(self, nodes: list[int]) -> list[int]:
        return [node for node in nodes if self._back.get(node, 0) <= self._round]

    def _blame_the_silent(self, replies: dict[int, Message]) -> None:
        """Nodes that sent an error, or nothing. Who let the time run out is left out of the next round; the second time, of
        two."""
        for node in sorted(self._asked):
            if node not in replies:
                self._silences[node] += 1
                self._back[node] = self._round + 1 + self._silences[node]
                self.calibrator.blame(node, "no reply in time")
            elif replies[node].has_error():
                self.calibrator.blame(node, f"error: {replies[node].error.reason}")

    def _wait(self, grid: Grid, wanted: int) -> list[int]:
        """The nodes that are there, once they are as many as wanted or patience is over; at least one."""
        until = time.monotonic() + self.patience
        while len(nodes := sorted(grid.get_node_ids())) < wanted and time.monotonic() < until:
            time.sleep(0.5)
        if not nodes:
            raise TooFewNodes("no node is there: start SuperNodes, then run again")
        return nodes

    def _save_round(self, outcome: dict[str, Any]) -> None:
        if self.checkpoint:
            self.checkpoint.save_round(outcome)
