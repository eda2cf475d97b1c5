"""A cell of a table: one federation, trained once, recorded, and every method fitted on the record.

`train` runs cells of one data set and one way to train together on a GPU (their clients share it), or one after the other
on a CPU. `fit` fits all methods in worker processes, a cell each, while `train` goes on with the next. Both skip what is
there already, so that work goes on where it stopped.

    RUNS/NAME/          the recording of a cell, and its scalers (large; never committed)
    RESULTS/NAME.json   config, commit, device, seconds, and every method's metrics
"""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedcal.base.seeds import numpy_rng
from fedcal.base.store import read_json, read_tensors, write_json, write_tensors
from fedcal.data import DATASETS, Dataset, load
from fedcal.learn.local import Job, copy_state
from fedcal.measure.tally import Tally, over_clients, pooled
from fedcal.methods import METHODS, Method, get_method
from fedcal.methods.fedcal import FedCal
from fedcal.nets.batched import calibration_rounds
from fedcal.protocol.rounds import Calibration, begin, calibrate
from fedcal.protocol.scaler_file import load_scaler, save_scaler
from fedcal.simulate import federation
from fedcal.simulate.config import Config
from fedcal.simulate.runs import finite
from paper.recording import Recording, write_final, write_round

KEEP = "local/train"  # what Algorithm 1 as printed is fitted on
SPECS = {"fedcal-plus-keep": "fedcal-plus:accuracy=keep"}  # the results' own name for the flagship's second mode
METHOD_NAMES = (*METHODS, *SPECS)

Say = Callable[[str], None]


def name_of(config: Config) -> str:
    """A cell's file name: what sets it apart from the paper's setup."""
    parts = [config.data, config.model or "", "iid" if config.partition == "iid" else f"b{config.beta:g}"]
    for flag, value, default in (
        ("m", config.momentum, None), ("mu", config.prox_mu, 0), ("c", config.clients or 20, 20),
        ("r", config.rounds, 100), ("n", config.limit, None),
    ):  # fmt: skip
        if value not in (default, None):
            parts.append(f"{flag}{value:g}")
    if config.algorithm != "fedavg":
        parts.append(config.algorithm)
    return "-".join((*parts, f"s{config.seed}"))


def method(name: str) -> Method:
    """The method that a name in the results, or a spec, stands for."""
    return get_method(SPECS.get(name, name))


# --- training ------------------------------------------------------------------------------------------------------


def train(cells: Iterable[Config], runs: Path, say: Say, tune: bool = False) -> Iterator[Path]:
    """Record every cell that is not recorded yet, and give its folder; those that are come first.

    `tune` also keeps what clients' models become after one more round.
    """
    cells = [cell.resolve() for cell in cells]
    waiting = [cell for cell in cells if not (runs / name_of(cell) / "final.safetensors").exists()]
    for cell in (cell for cell in cells if cell not in waiting):
        folder = runs / name_of(cell)
        if tune and not (folder / "tuned.safetensors").exists():
            state = _assemble(cell)
            state.model.load_state_dict(read_tensors(folder / "model.safetensors")[0])
            _tune(state, folder)
            say(f"{folder.name}: its clients trained once more")
        yield folder
    groups: dict[tuple[Any, ...], list[Config]] = {}
    for cell in waiting:
        alone = cell.seed if cell.device == "cpu" else None
        key = (cell.data, cell.model, cell.momentum, cell.prox_mu, cell.rounds, cell.algorithm, cell.limit)
        groups.setdefault((*key, cell.beta if alone is not None else None, alone), []).append(cell)
    for group in groups.values():
        _train_group(group, runs, say, tune)
        yield from (runs / name_of(cell) for cell in group)


def _train_group(cells: list[Config], runs: Path, say: Say, tune: bool) -> None:
    began, first = time.perf_counter(), cells[0]

    states = [_assemble(first)]
    with ThreadPoolExecutor(8) as pool:
        states += pool.map(lambda cell: _assemble(cell, states[0].train), cells[1:])
    label = name_of(first) if len(cells) == 1 else f"{first.data} {first.model}, {len(cells)} cells"
    say(f"{label}: ready after {time.perf_counter() - began:.0f} s")
    training, steps = time.perf_counter(), 0
    with ThreadPoolExecutor(1) as writer:
        written: list[Future[None]] = []
        for t in range(1, first.rounds + 1):
            records = federation.run_rounds(states, glance=False)
            for state, record in zip(states, records, strict=True):
                steps += _steps(state, record)
                if state.keep:
                    folder = runs / name_of(state.config)
                    written.append(writer.submit(write_round, folder, t, state.seen))
            if t % max(1, first.rounds // 10) == 0 or t == 1:
                spent = time.perf_counter() - training
                say(f"{label}: round {t} of {first.rounds}, loss {records[0]['loss']:.3f}, {spent:.0f} s")
        for future in written:
            future.result()
    seconds = time.perf_counter() - training
    for cell, state in zip(cells, states, strict=True):
        folder = runs / name_of(state.config)
        speed = {"seconds": seconds / len(cells), "together": len(cells), "ms_a_step": 1000 * seconds / steps}
        methods = [name for name in cell.method if state.keep or method(name).schedule != "interleaved"]
        told = {**speed, **machine(), "methods": methods}
        model = {name: value.cpu() for name, value in state.model.state_dict().items()}
        write_tensors(folder / "model.safetensors", model, {"schema": 1, **told})
        if tune:
            _tune(state, folder)
        write_final(folder, state, told)  # last: what has it is whole
    per_step = f"{1000 * seconds / steps:.2f} ms a client-step"
    say(f"{label}: trained in {seconds:.0f} s ({per_step}), recorded after {time.perf_counter() - began:.0f} s")


def _assemble(cell: Config, train: federation.Trainer | None = None) -> federation.Federation:
    """The cell's federation, its methods left for later; what Algorithm 1 as printed needs of each round is kept."""
    state = federation.assemble(replace(cell, method=("uncal",)), _dataset(cell), train)
    if "fedcal-literal" in cell.method and cell.algorithm == "fedavg":
        state.keep = (KEEP,)
    return state


def _steps(state: federation.Federation, record: federation.Record) -> int:
    """How many batches the round's clients trained on."""
    chosen = state.clients if state.config.algorithm == "centralised" else [state.clients[c] for c in record["clients"]]
    return state.config.epochs * sum(math.ceil(c.n / (state.config.batch_size or 256)) for c in chosen)


@functools.lru_cache(maxsize=1)
def _whole(data: str, data_dir: str | None) -> Dataset:
    return load(data, data_dir)


def _dataset(cell: Config) -> Dataset:
    """Published sets are read once; parts of them, and sets that are drawn, depend on the seed."""
    if cell.limit or DATASETS[cell.data].embedded:
        return load(cell.data, cell.data_dir, cell.seed, limit=cell.limit)
    return _whole(cell.data, cell.data_dir)


def _tune(state: federation.Federation, folder: Path) -> None:
    """Every client trains the final model once more; its logits on its own and on all test samples are kept."""
    received, everything = copy_state(state.model), torch.cat([client.test_x for client in state.clients])
    jobs = [
        Job(received, c.train_x, c.train_y, numpy_rng(state.config.seed, "tune", c.name), after={"all": everything})
        for c in state.clients
    ]
    trained = state.train(jobs)
    tensors = {client.name: t.after["all"].float() for client, t in zip(state.clients, trained, strict=True)}
    write_tensors(folder / "tuned.safetensors", tensors, {"schema": 1})


# --- fitting -------------------------------------------------------------------------------------------------------


def fit(
    folders: Iterable[Path], results: Path, say: Say, names: Sequence[str] = METHOD_NAMES, workers: int | None = None
) -> list[dict[str, Any]]:
    """Fit and measure every method on every recorded cell; returns the cells' results.

    Folders may come from `train` itself: a cell is fitted while the next ones are being trained.
    """
    began, known = time.perf_counter(), []
    workers, spawn = workers or os.cpu_count() or 1, multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=_in_background) as pool:
        submit = pool.submit if workers > 1 else _at_once
        tasks: list[Future[str]] = []
        told = 0

        def tell(wait: bool) -> None:
            nonlocal told
            while told < len(tasks) and (wait or tasks[told].done()):
                text, told = tasks[told].result(), told + 1
                say(f"fitted {told} of {len(tasks)}: {text}, {time.perf_counter() - began:.0f} s")

        try:
            for folder in folders:
                known.append(folder)
                if not _finished(folder, results, names):
                    tasks.append(submit(fit_cell, folder, results, tuple(names)))
                tell(wait=False)
            tell(wait=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what has begun is finished and kept
            raise
    return [read_json(results / f"{folder.name}.json") for folder in known]


def _in_background() -> None:
    """A worker: one thread, no GPU, and behind whoever trains."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    os.nice(10)


def _at_once(task: Callable[..., str], *args: Any) -> Future[str]:
    future: Future[str] = Future()
    future.set_result(task(*args))
    return future


def possible(folder: Path, names: Sequence[str]) -> list[str]:
    """Those of the methods that the cell was recorded for: what runs within training rounds needs the rounds."""
    asked = read_tensors(folder / "final.safetensors")[1]["methods"]
    return [name for name in names if method(name).name in asked]


def _finished(folder: Path, results: Path, names: Sequence[str]) -> bool:
    path = results / f"{folder.name}.json"
    return path.exists() and set(possible(folder, names)) <= set(read_json(path)["methods"])


def fit_cell(folder: Path, results: Path, names: Sequence[str]) -> str:
    """The methods that are not fitted yet, then everyone's metrics on the test data."""
    record, began = Recording(folder), time.perf_counter()
    methods: dict[str, Any] = {}
    for name in possible(folder, names):
        path = folder / "scalers" / f"{name}.safetensors"
        if path.exists():
            calibration = load_scaler(path)
        else:
            calibration = _fit(record, name)
            save_scaler(path, calibration)
        methods[name] = measure(calibration, record)
    content = {
        **about(record),
        "fitting": {"seconds": time.perf_counter() - began, **machine()},
        "G": record.about["G"],
        "methods": methods,
    }
    write_json(results / f"{folder.name}.json", finite(content))
    return folder.name


def about(record: Recording) -> dict[str, Any]:
    """Which federation that is, and how it was trained."""
    config = record.config.to_dict()
    trained = ("seconds", "together", "ms_a_step", "commit", "device", "torch")
    return {
        "name": record.folder.name,
        "config": {key: value for key, value in config.items() if key not in ("method", "data_dir")},
        "training": {key: record.about[key] for key in trained},
    }


def _fit(record: Recording, name: str) -> Calibration:
    seed = record.config.seed
    if not isinstance(method(name), FedCal):
        return calibrate(record.samples(), SPECS.get(name, name), seed=seed)
    state = begin(method(name), record.n_classes, seed)  # all clients' nets at once
    if method(name).schedule == "interleaved":
        for t in range(1, record.config.rounds + 1):
            calibration_rounds([state], [record.round(t, KEEP)], [seed])
    frozen = {name: pair for name, pair in record.samples().items() if len(pair[1])}
    for _ in range(method(name).rounds):
        calibration_rounds([state], [frozen], [seed])
    return state


def measure(calibration: Calibration, record: Recording) -> dict[str, Any]:
    """Metrics under the global scaler, pooled and by client, and with each client's own scaler."""
    found: dict[str, list[Tally]] = {"local": [], "own": []}
    for client, (logits, labels) in record.samples("test").items():
        for kind, own in (("local", None), ("own", client if client in calibration.own else None)):
            found[kind].append(Tally.of(calibration.apply(logits, own), labels))
    out: dict[str, Any] = {"global": pooled(found["local"]).summary()}
    for kind, tallies in found.items():
        out[kind] = {k: v for k, v in over_clients(record.names, tallies).items() if k != "spread"}
        out[kind]["ece_by_client"] = [t.summary()["ece"] if t.n else None for t in tallies]
    return out


def machine() -> dict[str, str]:
    """Where and with what: for the record."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    return {"commit": commit(), "device": device, "torch": torch.__version__, "python": platform.python_version()}


def commit() -> str:
    """The checkout's commit, with + where files differ from it; $FEDCAL_COMMIT where there is no repository."""
    if given := os.environ.get("FEDCAL_COMMIT"):
        return given
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        dirty = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=here, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip() + ("+" if dirty.stdout.strip() else "")
