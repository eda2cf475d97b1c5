"""Train and record a federation once, and fit every method on the recording. A cell is one federation of a table.

On a GPU `train` trains all cells that share a data set and training settings side by side; on a CPU one after the other.
`fit` fits cells in worker processes while `train` goes on with the next ones. Both skip what is already done, so that an
interrupted command goes on where it stopped.

    RUNS/NAME/        the recording of a cell, and its scalers (large; never committed)
    OUT/DATA.json     every cell of a data set: config, commit, device, seconds and every method's metrics
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedcal.base.arrays import arrays, tensors
from fedcal.base.seeds import numpy_rng
from fedcal.base.store import finite, read_tensors, write_tensors
from fedcal.data import DATASETS, Dataset, load
from fedcal.data.samples import Samples
from fedcal.learn.local import Job, copy_state
from fedcal.measure.views import measure as measure_views
from fedcal.methods import METHODS, get_method
from fedcal.methods.fedcal import FedCal
from fedcal.nets.mlp import Net
from fedcal.protocol import Scaler, Server
from fedcal.simulate import federation
from fedcal.simulate.assemble import assemble
from fedcal.simulate.config import Config
from fedcal.transport.memory import calibrate
from paper import results
from paper.batched import stacked_round
from paper.recording import FEATURES, Recording, write_features, write_final, write_round
from paper.together import run_rounds

Methods = Mapping[str, str]  # by the name in the tables: the method's spec
FITTED: Methods = {
    **{name: name for name, method in METHODS.items() if method.takes == "logits"},
    "fedcal-plus-keep": "fedcal-plus:accuracy=keep",
}

Say = Callable[[str], None]


def name_of(config: Config) -> str:
    """Name a cell by what differs from the paper's setup."""
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


# --- training ------------------------------------------------------------------------------------------------------


def train(cells: Iterable[Config], runs: Path, say: Say, tune: bool = False, features: bool = False) -> Iterator[Path]:
    """Train and record every cell that is not recorded yet.

    Args:
        cells: The federations.
        runs: Folder of the recordings.
        say: Is called with progress messages.
        tune: Whether to also record each client's model after one more round of its own.
        features: Whether to also record what the last layer takes, of all samples.

    Yields:
        The folder of each recording; those that existed come first.
    """
    cells = [cell.resolve() for cell in cells]
    waiting = [cell for cell in cells if not (runs / name_of(cell) / "final.safetensors").exists()]
    for cell in (cell for cell in cells if cell not in waiting):
        folder = runs / name_of(cell)
        more = {"tuned.safetensors": _tune} if tune else {}
        more |= {FEATURES: lambda state, folder: write_features(folder, state)} if features else {}
        if missing := [file for file in more if not (folder / file).exists()]:
            state = _assemble(cell)
            state.model.load_state_dict(tensors(read_tensors(folder / "model.safetensors")[0]))
            for file in missing:
                more[file](state, folder)
            say(f"{folder.name}: {' and '.join(missing)} added")
        yield folder
    groups: dict[tuple[Any, ...], list[Config]] = {}
    for cell in waiting:
        key = (cell.data, cell.model, cell.momentum, cell.prox_mu, cell.rounds, cell.algorithm, cell.limit)
        alone = (cell.beta, cell.seed) if cell.device == "cpu" else ()
        groups.setdefault((*key, *alone), []).append(cell)
    for number, group in enumerate(groups.values(), 1):
        _train_group(group, runs, lambda text, n=number: say(f"training {n} of {len(groups)}: {text}"), tune, features)
        yield from (runs / name_of(cell) for cell in group)


def _train_group(cells: list[Config], runs: Path, say: Say, tune: bool, features: bool) -> None:
    """Train cells that share an engine, and write their recordings."""
    began, first = time.perf_counter(), cells[0]
    states = [_assemble(first)]
    with ThreadPoolExecutor(8) as pool:
        states += pool.map(lambda cell: _assemble(cell, states[0].train), cells[1:])
    label = name_of(first) if len(cells) == 1 else f"{first.data} {first.model}, {len(cells)} cells"
    say(f"{label}: ready after {time.perf_counter() - began:.0f} s")
    training, steps, keep_logits = time.perf_counter(), 0, [_keeps_rounds(cell) for cell in cells]
    with ThreadPoolExecutor(1) as writer:
        written: list[Future[None]] = []
        for t in range(1, first.rounds + 1):
            rounds = run_rounds(states, keep_logits)
            steps += sum(round.steps for round in rounds)
            for cell, round in zip(cells, rounds, strict=True):
                if round.logits:
                    written.append(writer.submit(write_round, runs / name_of(cell), t, round.logits))
            if t % max(1, first.rounds // 10) == 0 or t == 1:
                spent = time.perf_counter() - training
                left = spent / t * (first.rounds - t)
                say(
                    f"{label}: round {t} of {first.rounds}, loss {rounds[0].loss:.3f}, {spent:.0f} s, {left:.0f} s left"
                )
        for future in written:
            future.result()
    seconds = time.perf_counter() - training
    for cell, state in zip(cells, states, strict=True):
        folder = runs / name_of(cell)
        speed = {"seconds": seconds / len(cells), "together": len(cells), "ms_a_step": 1000 * seconds / steps}
        methods = [name for name in cell.method if _keeps_rounds(cell) or METHODS[name].schedule != "interleaved"]
        about = {**speed, **results.machine(), "methods": methods}
        model = {name: value.cpu() for name, value in state.model.state_dict().items()}
        write_tensors(folder / "model.safetensors", model, {"schema": 1, **about})
        if tune:
            _tune(state, folder)
        if features:
            write_features(folder, state)
        write_final(folder, state, about)  # last: its file marks a complete recording
    per_step = f"{1000 * seconds / steps:.2f} ms per client and step"
    say(f"{label}: trained in {seconds:.0f} s ({per_step}), recorded after {time.perf_counter() - began:.0f} s")


def _assemble(cell: Config, train: federation.Trainer | None = None) -> federation.Federation:
    """The cell's federation; its methods are fitted later, on the recording."""
    return assemble(replace(cell, method=("uncal",)), _dataset(cell), train)


def _keeps_rounds(cell: Config) -> bool:
    """Whether to record every round: Algorithm 1 as printed is fitted on what its clients see."""
    return "fedcal-literal" in cell.method and cell.algorithm == "fedavg"


@functools.lru_cache(maxsize=1)
def _whole(data: str, data_dir: str | None) -> Dataset:
    return load(data, data_dir)


def _dataset(cell: Config) -> Dataset:
    """The cell's data set. Published ones are read once; a limited or synthetic one depends on the seed."""
    if cell.limit or DATASETS[cell.data].embedded:
        return load(cell.data, cell.data_dir, cell.seed, limit=cell.limit)
    return _whole(cell.data, cell.data_dir)


def _tune(state: federation.Federation, folder: Path) -> None:
    """Let every client train the final model once more, and write its logits on all test samples."""
    received, everything = copy_state(state.model), torch.cat([client.test_x for client in state.clients])
    jobs = [
        Job(received, c.train_x, c.train_y, numpy_rng(state.config.seed, "tune", c.name), after={"all": everything})
        for c in state.clients
    ]
    trained = state.train(jobs)
    state.model.load_state_dict(received)  # the reference loop trains the model itself
    tensors = {client.name: t.after["all"].float() for client, t in zip(state.clients, trained, strict=True)}
    write_tensors(folder / "tuned.safetensors", tensors, {"schema": 1})


# --- fitting -------------------------------------------------------------------------------------------------------


def fit(
    folders: Iterable[Path],
    out: Path,
    say: Say,
    methods: Methods = FITTED,
    workers: int | None = None,
    total: int | None = None,
    task: Callable[[Path, Methods], dict[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Fit and measure every method on every recorded cell.

    Args:
        folders: The recordings; they may come from `train` itself, so that a cell is fitted while others are trained.
        out: Folder of the results, one file per data set; what it has is not fitted again.
        say: Is called with progress messages.
        methods: What to fit.
        workers: How many processes fit; as many as there are cores unless given.
        total: How many folders there are, for progress messages: they may come one by one.
        task: Fits and measures one cell; `fit_cell` unless given.

    Returns:
        The cells' results, in the order of the folders.
    """
    began, known, fitted, skipped = time.perf_counter(), [], 0, 0
    workers, spawn = workers or os.cpu_count() or 1, multiprocessing.get_context("spawn")
    waiting: set[Future[dict[str, Any]]] = set()

    def keep(done: Iterable[Future[dict[str, Any]]]) -> None:
        nonlocal fitted
        for task in done:
            found, fitted = task.result(), fitted + 1
            results.add(_file(out, found["config"]["data"]), found["name"], found)
            spent = time.perf_counter() - began
            of, left = f"{fitted + skipped}", ""
            if total:
                of, left = f"{of} of {total}", f", {spent / fitted * (total - skipped - fitted):.0f} s left"
            say(f"fitted {of}: {found['name']}, {spent:.0f} s{left}")

    with ProcessPoolExecutor(workers, spawn, initializer=_in_background) as pool:
        submit = pool.submit if workers > 1 else _at_once
        try:
            for folder in folders:
                data = read_tensors(folder / "final.safetensors")[1]["config"]["data"]
                known.append((folder.name, data))
                stored = results.read(_file(out, data)).get(folder.name, {"methods": {}})
                if not set(possible(folder, methods)) <= set(stored["methods"]):
                    waiting.add(submit(task or fit_cell, folder, methods))
                else:
                    skipped += 1
                ready = {task for task in waiting if task.done()}
                waiting -= ready
                keep(ready)
            keep(as_completed(waiting))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # what has begun is finished; its scalers are kept
            raise
    files = {data: results.read(_file(out, data)) for _, data in known}
    return [files[data][name] for name, data in known]


def _file(out: Path, data: str) -> Path:
    return out / f"{data}.json"


def _in_background() -> None:
    """Set up a worker process: one thread, no GPU, and a lower priority than training."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)
    os.nice(10)


def _at_once(task: Callable[..., dict[str, Any]], *args: Any) -> Future[dict[str, Any]]:
    future: Future[dict[str, Any]] = Future()
    future.set_result(task(*args))
    return future


def possible(folder: Path, methods: Methods) -> Methods:
    """The methods that the cell was recorded for: those that run beside training need every round."""
    asked = read_tensors(folder / "final.safetensors")[1]["methods"]
    if (folder / FEATURES).exists():
        asked = [*asked, *(name for name, method in METHODS.items() if method.takes == "features")]
    return {label: spec for label, spec in methods.items() if get_method(spec).name in asked}


def fit_cell(folder: Path, methods: Methods) -> dict[str, Any]:
    """Fit the methods that are not fitted yet; returns all methods' metrics on the test data."""
    record, began = Recording(folder), time.perf_counter()
    measured: dict[str, Any] = {}
    for label, spec in possible(folder, methods).items():
        path = folder / "scalers" / f"{label}.safetensors"
        if path.exists():
            scaler = Scaler.load(path)
        else:
            scaler = _fit(record, spec)
            scaler.save(path)
        measured[label] = measure(scaler, record)
    content = {
        **about(record),
        "fitting": {"seconds": time.perf_counter() - began, **results.machine()},
        "G": record.about["G"],
        "methods": measured,
    }
    return finite(content)


def about(record: Recording) -> dict[str, Any]:
    """The federation's name, its config, and how it was trained."""
    config = record.config.to_dict()
    trained = ("seconds", "together", "ms_a_step", "commit", "device", "torch")
    return {
        "name": record.folder.name,
        "config": {key: value for key, value in config.items() if key not in ("method", "data_dir")},
        "training": {key: record.about[key] for key in trained},
    }


def _fit(record: Recording, spec: str) -> Scaler:
    """Fit one method on the recorded logits; FedCal's nets are trained in stacks."""
    seed, method = record.config.seed, get_method(spec)
    if not isinstance(method, FedCal):
        return calibrate(record.samples(), spec, seed=seed)
    training = record.config.rounds if method.schedule == "interleaved" else 0
    server = Server(method, record.n_classes, seed, rounds=training + method.rounds)
    nets: dict[str, Net] = {}
    if method.schedule == "interleaved":
        for t in range(1, record.config.rounds + 1):
            stacked_round(server, record.round(t), nets)
    frozen = {client: pair for client, pair in record.samples().items() if len(pair[1])}
    for _ in range(method.rounds):
        stacked_round(server, frozen, nets)
    scaler = server.scaler
    scaler.personal = {client: arrays(net) for client, net in nets.items()}
    return scaler


def measure(scaler: Scaler, record: Recording, test: Mapping[str, Samples] | None = None) -> dict[str, Any]:
    """Metrics of the global scaler, pooled (`global`) and per client (`local`), and of the personal scalers (`own`).

    Args:
        scaler: What to measure.
        record: The federation.
        test: Its test samples as the scaler takes them; their logits unless given.
    """
    views = {
        "local": lambda _, logits: scaler.apply(logits),
        "own": lambda client, logits: scaler.apply(logits, client if client in scaler.personal else None),
    }
    found = measure_views(test or record.samples("test"), views, compare=False)
    out: dict[str, Any] = {"global": found.pooled("local").summary()}
    for kind in views:
        out[kind] = {k: v for k, v in found.over_clients(kind).items() if k != "spread"}
        out[kind]["ece_by_client"] = [t.summary()["ece"] if t.n else None for t in found.tallies[kind].values()]
    return out
