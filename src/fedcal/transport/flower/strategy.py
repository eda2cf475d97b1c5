"""`CalibratedStrategy(FedAvg(), method="fedcal-plus", n_classes=10)`: any Flower strategy, with calibration around it.

The inner strategy is composed, not subclassed: it never sees FedCal's records, nor a reply that was refused. After its last
training round come the calibration rounds on the final model, and one round that measures. It must be the outermost
wrapper: CalibratedStrategy(DP(FedAvg())), not the other way round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedcal.base.labels import check_classes
from fedcal.base.store import finite, write_json
from fedcal.data.samples import name_columns
from fedcal.errors import FedCalError
from fedcal.measure.views import Measured
from fedcal.methods import DEFAULT, get_method, method_to_json, spec_of
from fedcal.methods.robust import Robust
from fedcal.protocol import Privacy, Scaler, Server
from fedcal.protocol.privacy import check_privacy
from fedcal.protocol.wire import pack_request
from fedcal.transport.flower.checkpoint import Checkpoint
from fedcal.transport.flower.checks import bad_metrics, bad_models
from fedcal.transport.flower.grid import PatientGrid, TooFewNodes, wait_for_nodes
from fedcal.transport.flower.inner import weight_of
from fedcal.transport.flower.records import REQUEST, Phase, Records, record_of, size, take_out
from fedcal.transport.flower.rounds import Rounds
from fedcal.transport.flower.secure import SecureRounds
from fedcal.transport.flower.server import Frozen, Nodes

if TYPE_CHECKING:
    from fedcal.assess.evaluation import Evaluation


class CalibratedStrategy(Strategy):
    """A strategy that also calibrates.

    Args:
        inner: the strategy that trains.
        method: a name (see `fedcal methods`), or a name with options: "fedcal-plus:accuracy=keep".
        n_classes: K of the model's logits.
        classes: the label of each column, if labels are not the columns' numbers.
        seed: for everything that is random.
        robust: "median" or "trimmed" instead of the mean, for methods whose nodes send scalers.
        privacy: differential privacy of an additive method. With `where="local"` or `"distributed"` nodes add the noise; a
            node with its own `Privacy` (`calibration_mod`) follows that. `"distributed"` needs `secure`.
        secure: secure aggregation of an additive method's sums: the server sees only totals over at least three nodes.
        timeout: seconds that nodes have for a calibration round.
        nodes: the number of nodes to wait for before the first round.
        patience: seconds to wait for nodes; then a round continues without them, or is skipped.
        n_bins: bins of the ECE.
        thresholds: evaluate the calibrated model at nodes that share their scores, with decisions at these probabilities.
        folder: for scaler, report, and a checkpoint after every round; a run that finds a checkpoint continues from it.
        options: the method's options as Python values, e.g. `accuracy="keep"`.

    Raises:
        FedCalError: an argument is invalid.
    """

    def __init__(
        self,
        inner: Strategy,
        method: str = DEFAULT,
        *,
        n_classes: int,
        classes: Any = None,
        seed: int = 0,
        robust: Robust | None = None,
        privacy: Privacy | None = None,
        secure: bool = False,
        timeout: float = 300.0,
        nodes: int = 1,
        patience: float = 60.0,
        n_bins: int = 15,
        thresholds: Sequence[float] | None = None,
        folder: str | Path | None = None,
        **options: Any,
    ) -> None:
        chosen = get_method(method, **options)
        if chosen.needs_pooled_data:
            raise FedCalError(
                f"{chosen.name} sends every logit and label to the server: choose fed-ts, which is its equal"
            )
        if secure and not chosen.additive:
            raise FedCalError(
                f"{chosen.name} does not only add, as secure aggregation does: choose fedcal-plus or fed-ts"
            )
        privacy = check_privacy(privacy)
        if privacy and privacy.where == "distributed" and not secure:
            raise FedCalError("distributed noise hides a node only within a total: give secure=True too (--secure)")
        if privacy:
            privacy.check_sent()
            if privacy.measure == 0:
                raise FedCalError("privacy: measure=0 leaves no budget for the round that measures: give more than 0")
        labels = () if classes is None else name_columns(check_classes(classes, n_classes))
        self._new_server = partial(Server, chosen, n_classes, seed, classes=labels, privacy=privacy, robust=robust)
        self.inner, self.server, self.nodes = inner, self._new_server(), Nodes()
        self.rounds, self.secure = Rounds(self.nodes), SecureRounds(self.nodes) if secure else None
        self.timeout, self.wanted, self.patience, self.n_bins = timeout, nodes, patience, n_bins
        self.folder = Path(folder) if folder else None
        self.checkpoint = Checkpoint(self.folder / "checkpoint", inner, secure) if self.folder else None
        self.measured, self.thresholds = Measured({}), thresholds
        if thresholds is not None:
            from fedcal.assess.sums import all_thresholds

            all_thresholds(thresholds)
        self.evaluation: Evaluation | None = None  # of the nodes that share their scores
        self._interleaved = chosen.schedule == "interleaved"
        self._asked: set[int] = set()
        self.arrays = ArrayRecord()  # the model
        self.save_first: Callable[[], None] = lambda: None  # what else to write at the end, before what `save` does
        self._sent = Records()
        self._before, self._round = 0, 0  # training rounds before this start, and since then

    @property
    def scaler(self) -> Scaler:
        """The scaler: `scaler.predict_proba(logits)`. Nodes' personal ones are at the nodes."""
        return self.server.scaler

    def summary(self) -> None:
        """Log the method, and the inner strategy's summary."""
        log(INFO, "\t├── FedCal: %s", spec_of(self.server.plan.method))
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
        """Run Flower's rounds, then the calibration rounds on the final model, then one that measures.

        Args:
            grid: of the run.
            initial_arrays: the model to begin with.
            num_rounds: training rounds.
            timeout: seconds that nodes have for a round.
            train_config: as for any strategy.
            evaluate_config: as for any strategy.
            evaluate_fn: as for any strategy.

        Returns:
            What the inner strategy's run gives, with the calibrated model's metrics in the last round's.

        Raises:
            FedCalError: where no node is there, or none is left to calibrate or to measure with.
        """
        if self._interleaved:
            self.server = self._new_server(rounds=num_rounds + self.server.plan.method.rounds)
        arrays = initial_arrays
        if self.checkpoint:
            self._before, arrays = self.checkpoint.load(initial_arrays, self.server, self.nodes)
        result = Result(arrays=arrays)
        self.arrays, self._round = arrays, 0
        wait_for_nodes(grid, self.wanted, self.patience)
        if num_rounds > self._before:
            evaluate = (lambda t, a: evaluate_fn(t + self._before, a)) if evaluate_fn else None
            view = PatientGrid(grid, self.nodes.present, math.inf)
            left = num_rounds - self._before
            result = super().start(view, arrays, left, timeout, train_config, evaluate_config, evaluate)
            arrays = self.arrays = result.arrays = result.arrays or arrays
        nodes, limit = wait_for_nodes(grid, 1, self.patience), min(timeout, self.timeout)

        def after_round() -> None:
            if self.checkpoint:
                self.checkpoint.save_round(self._trained, arrays, self.server, self.nodes)

        rounds, frozen = self.secure or self.rounds, Frozen(grid, self.server, arrays, limit)
        nodes = rounds.calibrate(frozen, nodes, after_round)
        if self.checkpoint and self.folder:
            self.scaler.save(self.folder / "scaler.safetensors")  # nodes may have no budget left to measure it with
            self.checkpoint.save_measuring(self.nodes)
        self.measured = rounds.measure(frozen, nodes, self.n_bins)
        if not self.measured.clients:
            reasons = "; ".join(sorted({str(fault["reason"]) for fault in self.nodes.faults}))
            raise FedCalError(f"no node is left to measure with ({reasons}): go on from the checkpoint, or start again")
        if self.thresholds is not None:
            self.evaluation = self.rounds.evaluate(frozen, nodes, self.n_bins, self.thresholds)
        metrics = {f"fedcal-{key}": value for key, value in self.metrics()["global"].items()}
        result.evaluate_metrics_clientapp[num_rounds] = MetricRecord(
            {**(result.evaluate_metrics_clientapp.get(num_rounds) or {}), **metrics}
        )
        if self.folder:
            self.save_first()
            self.save(self.folder)
        return result

    # --- Flower's four steps, around the inner strategy's ----------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's messages, with FedCal's records in them."""
        self.arrays, self._round = arrays, server_round
        self.nodes.begin("training", self._trained)
        messages = self._configure(self.inner.configure_train, server_round, arrays, config, grid)
        self._asked = {message.metadata.dst_node_id for message in messages}
        request = self.server.request if self._interleaved else None
        data = pack_request(self.server.plan, request) if request else b""
        phase: Phase = "train" if request else "meet"
        self._sent = {REQUEST: record_of(data, phase=phase, model="", bins=0)}
        for message in messages:
            message.content.update(self._sent)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return what the inner strategy makes of the replies that are not refused; the server receives its part."""
        by_node = {reply.metadata.src_node_id: reply for reply in replies}
        self.nodes.blame_silent(self._asked, by_node)
        whole = {node: reply for node, reply in by_node.items() if not reply.has_error()}
        records = {node: take_out(reply.content) for node, reply in whole.items()}
        cost = {
            "up": sum(size(sent.values()) for sent in records.values()),
            "down": len(self._asked) * size(self._sent.values()),
            "model_up": sum(size(reply.content.array_records.values()) for reply in whole.values()),
            "model_down": len(self._asked) * size([self.arrays]),
        }
        self.nodes.introduce(records)
        for node, reason in bad_models(whole, self.arrays, weight_of(self.inner)).items():
            self.nodes.blame(node, reason)
            del records[node]
        if self._interleaved:
            good = self.nodes.read(self.server, records)
            self.nodes.receive(self.server, good)
        else:
            good = self.nodes.meet(records)
        in_order = sorted(good, key=self.nodes.names.__getitem__)
        outcome = self.inner.aggregate_train(server_round + self._before, [whole[node] for node in in_order])
        self.nodes.end(in_order, cost)
        if self.checkpoint:
            self.checkpoint.save_training(self._trained, outcome[0] or self.arrays, self.server, self.nodes)
        return outcome

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the inner strategy's messages."""
        return self._configure(self.inner.configure_evaluate, server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return what the inner strategy makes of the replies that are not errors, and whose metrics go together."""
        whole = {reply.metadata.src_node_id: reply for reply in replies if not reply.has_error()}
        bad = bad_metrics(whole, weight_of(self.inner))
        for node, reason in bad.items():
            self.nodes.blame(node, reason)
        good = [reply for node, reply in whole.items() if node not in bad]
        return self.inner.aggregate_evaluate(server_round + self._before, good)

    # --- outcome ---------------------------------------------------------------------------------------------------------

    def metrics(self) -> dict[str, Any]:
        """Return the metrics.

        Returns:
            All nodes' test samples together (`global`, and `uncal` without a scaler), and means over nodes under the
            global scaler (`local`) and under each node's personal one (`own`); with secure aggregation these two are of
            all nodes together as well, and under privacy there is no `own`. Empty before the run is done.
        """
        if not self.measured.clients:
            return {}
        return {
            "uncal": self.measured.pooled("uncal").summary(),
            "global": self.measured.pooled("local").summary(),
            **{view: self.measured.over_clients(view) for view in ("local", "own") if view in self.measured.tallies},
        }

    def before_and_after(self) -> str:
        """Return what calibration changed, one line per view; empty before the run is done."""
        found = self.metrics()
        if not found:
            return ""
        lines = [
            f"{title:20s} accuracy {found[view]['accuracy']:6.1%}  NLL {found[view]['nll']:.3f}  "
            f"ECE {found[view]['ece']:.1%} (noise floor {found[view]['ece_floor']:.1%})"
            for view, title in (("uncal", "before calibration"), ("global", "one scaler for all"))
        ]
        if own := found.get("own"):
            how = "all nodes together" if self.secure else "means over nodes"
            lines.append(f"{'personal scalers':20s} accuracy {own['accuracy']:6.1%}  NLL {own['nll']:.3f}  ({how})")
        if (noise := self.nodes.nll_noise) is not None:
            lines.append(
                f"all figures carry noise for privacy: that of each NLL has a standard deviation of {noise:.3g}"
            )
        if self.server.privacy and "fallback" in self.server.fit.params:
            lines.append("no correction gained more than noise alone could: the one scaler for all changes nothing")
        return "\n".join(lines)

    def report(self) -> dict[str, Any]:
        """Return who took part in what, who did not and why, what it cost, and what privacy it kept."""
        plan, ledger, privacy = self.server.plan, self.server.ledger, self.server.privacy
        fitted, measured = (
            [one["took_part"] for one in self.nodes.rounds if one["phase"] == phase]
            for phase in ("calibration", "evaluation")
        )
        outcome = {"fallback": "fallback" in self.server.fit.params, "nll_noise": self.nodes.nll_noise}
        return {
            **method_to_json(plan.method),
            "n_classes": plan.n_classes,
            "federation": plan.federation,
            "training_rounds": self._trained,
            "calibration_rounds": len(fitted),
            "restarts": ledger.restarts,
            "fitted_by": fitted[-1] if fitted else [],
            "measured_by": measured[-1] if measured else [],
            "faults": self.nodes.faults,
            "rounds": self.nodes.rounds,
            "bytes_up": ledger.total_up,
            "bytes_down": ledger.total_down,
            "privacy": privacy.report(ledger.spent) | outcome if privacy else None,
            "node_privacy": self.server.private,
            "secure": self.secure.report() if self.secure else None,
            "metrics": self.metrics(),
        }

    def save(self, folder: str | Path) -> None:
        """Write scaler.safetensors, federation.json and perhaps evaluation.json, and delete the checkpoint.

        Args:
            folder: where to.
        """
        self.scaler.save(Path(folder) / "scaler.safetensors")
        write_json(Path(folder) / "federation.json", finite(self.report()))
        if self.evaluation:
            self.evaluation.save(Path(folder) / "evaluation.json")
        if self.checkpoint:
            self.checkpoint.clear()

    # --- training rounds ---------------------------------------------------------------------------------------------------

    @property
    def _trained(self) -> int:
        """Training rounds so far, the one that is on included."""
        return self._before + self._round

    def _configure(
        self,
        configure: Callable[..., Iterable[Message]],
        server_round: int,
        arrays: ArrayRecord,
        config: Any,
        grid: Grid,
    ) -> list[Message]:
        """The inner strategy's messages; none where too few nodes come while it waits."""
        try:
            view = PatientGrid(grid, self.nodes.present, self.patience)
            return list(configure(server_round + self._before, arrays, config, view))
        except TooFewNodes as error:
            log(WARNING, "FedCal: round %d is left out: %s", server_round + self._before, error)
            return []
