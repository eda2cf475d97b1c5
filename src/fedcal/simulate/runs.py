"""A run from config to folder: `fedcal.run(Config(...), out="RUN")`.

RUN/config.json           what was asked for
RUN/rounds.jsonl          one line per round: loss, accuracy, ECE, clients, seconds
RUN/results.json          every method's metrics (schema below), the label table, costs
RUN/model.safetensors     the final global model
RUN/scalers/METHOD.safetensors   each method's global scaler and the clients' personal ones
RUN/report.html           the same in pictures
RUN/checkpoint.safetensors     only while the run is unfinished
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedcal import __version__
from fedcal.base.lock import locked
from fedcal.base.run_log import append_round, read_rounds
from fedcal.base.store import RESULTS_SCHEMA, finite, read_json, write_bytes, write_json, write_tensors
from fedcal.data import Dataset
from fedcal.errors import FedCalError
from fedcal.learn.own import Model
from fedcal.measure.reliability import Reliability
from fedcal.measure.tally import Tally
from fedcal.measure.views import Measured
from fedcal.methods import method_to_json
from fedcal.methods.fit import n_bytes
from fedcal.methods.spec import file_name
from fedcal.protocol import Ledger, Scaler
from fedcal.simulate import federation
from fedcal.simulate.assemble import assemble
from fedcal.simulate.checkpoint import load_checkpoint, save_checkpoint
from fedcal.simulate.config import MACHINE, SCHEMA, Config
from fedcal.simulate.federation import Federation, Record
from fedcal.simulate.own import with_own

Results = dict[str, Any]

FILES = (  # of a run folder, besides the scalers
    "config.json",
    "rounds.jsonl",
    "results.json",
    "model.safetensors",
    "report.html",
    "checkpoint.safetensors",
)


@dataclass(frozen=True)
class Stage:
    """Where a run stands after its training rounds."""

    name: str  # what it does
    done: int  # steps
    total: int
    text: str = ""  # what the next step is about


def run(
    config: Config,
    out: str | Path | None = None,
    *,
    data: Any = None,
    model: Model | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_round: Callable[[Record], None] = lambda record: None,
    on_start: Callable[[Federation], None] = lambda state: None,
    on_stage: Callable[[Stage], None] = lambda stage: None,
) -> Results:
    """Train a federation, calibrate it with every method of the config, measure, and write the run folder.

    Args:
        config: what to run.
        out: the run folder; without it nothing is written.
        data: your own data instead of the config's: (x, y), (x, y, client), a mapping of x, y, client, test_x, test_y,
            test_client and classes, or a .npz, .csv or .parquet. docs/own-data.md says what each may hold.
        model: your own model instead of the config's: a function of (shape, n_classes), or of nothing, that returns an
            nn.Module; or a module, whose weights training starts from.
        resume: continue from the folder's last checkpoint, or start if there is none.
        overwrite: replace an earlier run.
        on_round: called after every training round with its line of rounds.jsonl.
        on_start: called with the federation before its first round.
        on_stage: called after training, at each further step: fits, measuring, the report.

    Returns:
        What results.json holds.

    Raises:
        FedCalError: the folder holds another run, a file is damaged, data or model are invalid, or training
            diverged.

    Examples:
        >>> import fedcal
        >>> config = fedcal.Config(data="synthetic", limit=600, clients=3, rounds=2, method=("uncal", "fed-ts"))
        >>> results = fedcal.run(config)  # with out="runs/mine" the run folder is written
        >>> sorted(results["methods"])
        ['fed-ts', 'uncal']
        >>> 0 < results["methods"]["fed-ts"]["global"]["ece"] < 1
        True
    """
    config, dataset = with_own(config, data, model)
    config = config.resolve()
    if config.threads:
        torch.set_num_threads(config.threads)
    elif config.model in ("logistic", "mlp"):  # too small to share: a second thread only waits
        torch.set_num_threads(1)
    if out is None:
        return _run(config, dataset, model, None, resume, on_round, on_start, on_stage)
    folder = Path(out)
    check_folder(folder, config, resume, overwrite)
    with locked(folder, "fedcal run"):
        check_folder(folder, config, resume, overwrite)  # again: another run may just have ended
        if resume and (folder / "results.json").exists() and not (folder / "checkpoint.safetensors").exists():
            return read_json(folder / "results.json")
        return _run(config, dataset, model, folder, resume, on_round, on_start, on_stage)


def _run(
    config: Config,
    dataset: Dataset | None,
    model: Model | None,
    folder: Path | None,
    resume: bool,
    on_round: Callable[[Record], None],
    on_start: Callable[[Federation], None],
    on_stage: Callable[[Stage], None],
) -> Results:
    state = assemble(config, dataset, own_model=model)
    if folder:
        _open_folder(folder, state, resume)
    on_start(state)

    def after_round(state: Federation, record: Record) -> None:
        on_round(record)
        if folder:
            append_round(folder / "rounds.jsonl", record)
            if state.round % config.checkpoint_every == 0 or state.round == config.rounds:
                save_checkpoint(folder / "checkpoint.safetensors", state)

    methods = list(state.calibrations)

    def on_fit(method: str, rounds: int) -> None:
        text = f"{method}, round {rounds}" if rounds else method
        on_stage(Stage("calibrating", methods.index(method), len(methods), text))

    federation.train(state, config.rounds, after_round)
    federation.finish(state, on_fit)
    on_stage(Stage("calibrating", len(methods), len(methods)))
    on_stage(Stage("measuring", 0, 1))
    results = summarise(state, federation.evaluate(state))
    on_stage(Stage("measuring", 1, 1))
    if folder:
        on_stage(Stage("writing the report", 0, 1))
        for name, scaler in state.scalers.items():
            scaler.save(folder / "scalers" / f"{file_name(name)}.safetensors")
        write_outcome(folder, state, results)
        # The checkpoint goes last, so that a run killed here is finished by --resume.
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        on_stage(Stage("writing the report", 1, 1))
    return results


def summarise(state: Federation, measured: dict[str, Measured]) -> Results:
    """The content of results.json: `methods.SPEC.{global,local,own}.METRIC` as fractions; undefined ones are null.

    SPEC is a method with its options, such as "fedcal-plus:accuracy=keep". `methods.SPEC.global.ece_against.OTHER` is its
    ECE minus OTHER's on the same samples, with its 95 % interval:
    [difference, low, high]. It is empty where the methods were not compared. `pooled_own` is all test samples, each under its
    client's personal scaler.

    Args:
        state: the finished federation.
        measured: what `federation.evaluate` gives.
    """
    config, table = state.config, state.skew
    return finite(
        {
            "schema": RESULTS_SCHEMA,
            "fedcal": __version__,
            "torch": torch.__version__.split("+")[0],
            "device": config.device,
            "config": {k: v for k, v in config.to_dict().items() if k not in (*MACHINE, "schema")},
            "data": {
                "name": config.data,
                "classes": list(state.classes),
                "clients": [client.name for client in state.clients],
                **{f"{split}_counts": getattr(table, split).tolist() for split in ("train", "cal", "test")},
                "G": table.G,
                "kl": table.kl.tolist(),
                "parameters": sum(p.numel() for p in state.model.parameters()),
            },
            "methods": {name: _of_method(name, state.scalers[name], measured) for name in measured["local"].tallies},
        }
    )


def _of_method(name: str, scaler: Scaler, measured: dict[str, Measured]) -> dict[str, Any]:
    whole, personal = measured["local"].pooled(name), measured["own"].pooled(name)
    return {
        **method_to_json(scaler.method),
        "summary": scaler.method.summary,
        "global": {"n": whole.n, **whole.summary(interval=True), "ece_against": _against(measured["local"], name)},
        "local": measured["local"].over_clients(name),
        "own": measured["own"].over_clients(name),
        "clients": {kind: _by_client(found.tallies[name]) for kind, found in measured.items()},
        **_diagrams(whole.reliability),
        "pooled_own": {"n": personal.n, **personal.summary(interval=True), **_diagrams(personal.reliability)},
        "cost": _cost(scaler),
        "notes": _notes(scaler.ledger),
    }


def _cost(scaler: Scaler) -> dict[str, Any]:
    method, ledger, final = scaler.method, scaler.ledger, n_bytes(scaler.params)
    return {
        "leaves": method.leaves,
        "bytes_up": ledger.bytes_up,
        "bytes_down": max(ledger.bytes_down, final),
        "bytes_up_total": ledger.total_up,
        "bytes_down_total": ledger.total_down + final,
        "rounds": ledger.rounds,
        "pooled_data": method.needs_pooled_data,
        "additive": method.additive,
    }


def _against(measured: Measured, name: str) -> dict[str, list[float]]:
    others = [other for other in measured.tallies if other != name] if measured.paired else []
    return {other: list(measured.difference(name, other)) for other in others}


def _by_client(tallies: dict[str, Tally]) -> dict[str, list[float]]:
    rows = [tally.summary() for tally in tallies.values()]
    return {
        "n": [tally.n for tally in tallies.values()],
        **{k: [row[k] for row in rows] for k in ("accuracy", "ece", "ece_floor", "nll")},
    }


def _diagrams(bins: Reliability) -> dict[str, dict[str, list[float]]]:
    return {"reliability": _bins(bins), "groups": _bins(bins.groups())}


def _bins(bins: Reliability) -> dict[str, list[float]]:
    (confidence, accuracy), (low, high) = bins.curve(), bins.band()
    columns = {"edges": bins.edges, "count": bins.count, "confidence": confidence, "accuracy": accuracy}
    return {k: v.tolist() for k, v in {**columns, "low": low, "high": high}.items()}


def _notes(ledger: Ledger) -> dict[str, float]:
    """Each remark's mean over all updates: the share of units that matching moved, of clients without a fit, …"""
    return {name: total / ledger.updates for name, total in sorted(ledger.notes.items())}


# --- the folder ----------------------------------------------------------------------------------------------------


def check_folder(folder: Path, config: Config, resume: bool, overwrite: bool) -> None:
    """Refuse to mix runs. Nothing is written or deleted yet."""
    if resume and overwrite:
        raise FedCalError("resume and overwrite contradict each other: give one of them")
    try:
        is_file = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise FedCalError(f"cannot use {folder}: {error.strerror or error}; choose another folder") from None
    if is_file:
        raise FedCalError(f"{folder} is a file: choose another folder")
    if overwrite or not (found := [name for name in FILES if (folder / name).exists()]):
        return
    if not resume:
        raise FedCalError(
            f"{folder} holds a run already ({found[0]}): continue with --resume, replace it with --overwrite, "
            "or choose another"
        )
    stored = Config.from_dict(read_json(folder / "config.json"), str(folder / "config.json"))
    for name, value in asdict(stored).items():
        if name == "data" and "@" in value and "@" in config.data and value != config.data:
            raise FedCalError(f"{folder} was run on other data ({value}; these are {config.data}): give the same again")
        if name not in MACHINE and value != (mine := getattr(config, name)):
            raise FedCalError(
                f"{folder} was run with {name}={value!r}, not {mine!r}: give {value!r} again, or use another folder"
            )


def _open_folder(folder: Path, state: Federation, resume: bool) -> None:
    """Take up the last checkpoint, if there is one, and the log as it stood then; or clear an earlier run away."""
    checkpoint, log = folder / "checkpoint.safetensors", folder / "rounds.jsonl"
    if resume and checkpoint.exists():
        load_checkpoint(checkpoint, state)
    lines: list[bytes] = []
    if state.round:
        read_rounds(log, state.round)  # a damaged log is found here, before hours of training
        lines = log.read_bytes().splitlines(keepends=True)[: state.round]
    write_bytes(log, b"".join(lines))  # first of all: where that fails, nothing is lost
    if not resume:
        for old in (*(folder / name for name in FILES), *(folder / "scalers").glob("*.safetensors")):
            if old != log:
                old.unlink(missing_ok=True)
    write_json(folder / "config.json", state.config.to_dict())


def write_outcome(folder: Path, state: Federation, results: Results) -> None:
    """Write model, results and report."""
    about = {"schema": SCHEMA, "model": state.config.model, "classes": list(state.classes), "round": state.round}
    write_tensors(folder / "model.safetensors", {k: v.cpu() for k, v in state.model.state_dict().items()}, about)
    write_json(folder / "results.json", results)
    from fedcal import report  # matplotlib is slow to import, and only needed here

    report.write(folder)
