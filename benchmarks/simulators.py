"""A round of federated averaging on a CPU: FedCal beside plain PyTorch, Flower's Ray simulation and pfl-research.

5 of 20 clients per round, 3 000 random images of MNIST's shape each, 3 epochs, batch 256, SGD 0.01; a CNN of two 3×3
convolutions (32, 64) and a layer of 128. Everyone's net computes the same functions; FedCal's is built of its own layers,
which pool before bias and ReLU and flatten without a copy, the others' as tutorials write it, and `plain, our layers` shows
what that alone is worth. Every contender is a process of its own, taken in turn, its first round not counted. CPU seconds
are those of the process and its descendants: on a busy machine the clock says more about the neighbours.

Flower and pfl want an environment of their own (never another torch, never torchvision):

    python -m venv .venv-simulators
    .venv-simulators/bin/pip install -c constraints.txt -e . 'flwr[simulation]==1.41.0' pfl==0.6.0
    .venv-simulators/bin/python benchmarks/simulators.py [--epochs 3] [--rounds 2] [--passes 2] [--record]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

CLIENTS, CHOSEN, SAMPLES, BATCH, LR = 20, 5, 3000, 256, 0.01
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}  # fmt: skip

Mark = Callable[[], None]


def cnn(our_layers: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    if our_layers:
        from fedcal.learn.models import ConvPoolReLU, Flatten

        front = [ConvPoolReLU(1, 32, 3, padding=1), ConvPoolReLU(32, 64, 3, padding=1), Flatten()]
    else:
        front = [
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        ]  # fmt: skip
    return nn.Sequential(*front, nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10))


def data(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(client)
    return torch.randn(SAMPLES, 1, 28, 28, generator=rng), torch.randint(10, (SAMPLES,), generator=rng)


def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
    """The loop of every tutorial."""
    optimiser, loss_of = torch.optim.SGD(model.parameters(), lr=LR), nn.CrossEntropyLoss()
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            loss_of(model(x[batch]), y[batch]).backward()
            optimiser.step()


# --- the contenders ------------------------------------------------------------------------------------------------


def plain(rounds: int, epochs: int, mark: Mark, our_layers: bool = False) -> None:
    model, clients = cnn(our_layers), [data(c) for c in range(CHOSEN)]
    for _ in range(rounds):
        received, found = {k: v.clone() for k, v in model.state_dict().items()}, []
        for x, y in clients:
            model.load_state_dict(received)
            fit(model, x, y, epochs)
            found.append({k: v.clone() for k, v in model.state_dict().items()})
        model.load_state_dict({k: sum(one[k] for one in found) / CHOSEN for k in received})
        mark()


def plain_our_layers(rounds: int, epochs: int, mark: Mark) -> None:
    plain(rounds, epochs, mark, our_layers=True)


def fedcal(rounds: int, epochs: int, mark: Mark) -> None:
    from fedcal.learn.cpu import Engine
    from fedcal.learn.local import SGD, Job, average, copy_state

    model, clients = cnn(our_layers=True), [data(c) for c in range(CHOSEN)]
    engine = Engine(model, SGD(lr=LR, batch_size=BATCH, epochs=epochs), torch.get_num_threads())
    for t in range(rounds):
        received = copy_state(model)
        jobs = [Job(received, x, y, np.random.default_rng((t, c))) for c, (x, y) in enumerate(clients)]
        model.load_state_dict(average([done.state for done in engine.train(jobs)], by=[SAMPLES] * CHOSEN))
        mark()


def flower(rounds: int, epochs: int, mark: Mark) -> None:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)  # as many actors as cores, a thread each
        model = cnn()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        fit(model, *data(int(context.node_config["partition-id"])), epochs)
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": SAMPLES})}
        return Message(content=RecordDict(content), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=CHOSEN / CLIENTS, fraction_evaluate=0.0, min_train_nodes=CHOSEN, min_available_nodes=CLIENTS
        )

        def after(server_round: int, arrays: ArrayRecord) -> None:
            if server_round:  # it is called before the first one too
                mark()

        strategy.start(grid, ArrayRecord(cnn().state_dict()), num_rounds=rounds, timeout=3600, evaluate_fn=after)

    run_simulation(server_app, client_app, CLIENTS, backend_config={"client_resources": {"num_cpus": 1}})


def pfl(rounds: int, epochs: int, mark: Mark) -> None:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Weighted
    from pfl.model.pytorch import PyTorchModel

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = cnn()

        def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
            self.train(not eval)
            return nn.functional.cross_entropy(self.net(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, Weighted]:
            return {"loss": Weighted(float(self.loss(x, y, eval)) * len(y), len(y))}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, *args: object, **kwargs: object):
            mark()
            return super().after_central_iteration(*args, **kwargs)

    kept = [data(c) for c in range(CLIENTS)]
    dealt = FederatedDataset(
        lambda user: Dataset(raw_data=list(kept[user]), user_id=str(user)),
        get_user_sampler("minimize_reuse", list(range(CLIENTS))),
    )
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=10**6, train_cohort_size=CHOSEN, val_cohort_size=0),
        SimulatedBackend(dealt, dealt),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=epochs, local_learning_rate=LR),
        NNEvalHyperParams(local_batch_size=BATCH),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )


CONTENDERS = {
    "FedCal": fedcal, "plain PyTorch": plain, "plain, our layers": plain_our_layers, "Flower on Ray": flower,
    "pfl-research": pfl,
}  # fmt: skip
GOAL = ("plain PyTorch", "Flower on Ray", "pfl-research")  # at least twice as fast as each


# --- taking time ---------------------------------------------------------------------------------------------------


def cpu_seconds(root: int) -> float:
    """User and system time of a process, its living descendants, and those it waited for (Linux)."""
    found: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # gone meanwhile
                continue
            found[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total, waiting = 0, [root]
    while waiting:
        pid = waiting.pop()
        total += found.get(pid, (0, 0))[1]
        waiting += [child for child, (parent, _) in found.items() if parent == pid]
    return total / os.sysconf("SC_CLK_TCK")


def contend(name: str, rounds: int, epochs: int) -> None:
    """In a process of its own: a line of JSON with each round's seconds, by the clock and of CPU."""
    marks: list[tuple[float, float]] = []
    CONTENDERS[name](rounds + 1, epochs, lambda: marks.append((time.perf_counter(), cpu_seconds(os.getpid()))))
    print("ROUNDS " + json.dumps(np.diff(np.array(marks), axis=0).tolist()), flush=True)


def measure(name: str, rounds: int, epochs: int) -> list[list[float]]:
    command = [sys.executable, __file__, "--contender", name, "--rounds", str(rounds), "--epochs", str(epochs)]
    with tempfile.TemporaryFile("w+") as said:  # not a pipe: Ray's daemons would hold it open
        subprocess.run(command, env={**os.environ, **QUIET}, stdout=said, stderr=subprocess.STDOUT, timeout=3600)
        said.seek(0)
        words = said.read()
    lines = [line for line in words.splitlines() if line.startswith("ROUNDS ")]
    if not lines:
        raise SystemExit(f"{name} failed:\n{words[-2000:]}")
    return json.loads(lines[0].removeprefix("ROUNDS "))


def table(found: dict[str, list[list[float]]]) -> list[str]:
    ours = np.array(found["FedCal"])
    lines = [
        "|  | a round by the clock, s: median (best) | CPU, s: median (best) | times slower by the clock | by CPU | goal |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, rows in found.items():
        theirs = np.array(rows)
        wall, cpu = (f"{np.median(v):.1f} ({v.min():.1f})" for v in theirs.T)
        by_clock, by_cpu = (np.median(theirs, axis=0) / np.median(ours, axis=0)).tolist()
        goal = ("reached" if by_clock >= 2 else "missed") if name in GOAL else ""
        lines.append(f"| {name} | {wall} | {cpu} | {by_clock:.2f} | {by_cpu:.2f} | {goal} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="rounds that count, a process")
    parser.add_argument("--passes", type=int, default=2, help="processes of each contender, in turn")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--contender", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    parser.add_argument("--record", action="store_true", help="add the table to RECORDS.md")
    args = parser.parse_args()
    if args.contender:
        return contend(args.contender, args.rounds, args.epochs)
    found: dict[str, list[list[float]]] = {name: [] for name in args.only}
    before = os.getloadavg()[0]
    for _ in range(args.passes):
        for name in args.only:
            found[name] += measure(name, args.rounds, args.epochs)
            print(name, [[round(value, 1) for value in row] for row in found[name]], flush=True)
    load = f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    lines = table(found)
    print("\n".join([load, *lines]))
    if args.record:
        record(lines, args, load)
    return None


def record(lines: list[str], args: argparse.Namespace, load: str) -> None:
    """A dated section of RECORDS.md, below the kernels' key and above what is older."""
    from paper.results import commit

    libraries = [f"{name} {version(name)}" for name in ("torch", "flwr", "ray", "pfl", "numpy") if find_spec(name)]
    head = (
        f"## {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit()}, simulators: {args.passes} × {args.rounds} rounds "
        f"of {args.epochs} epochs"
    )
    about = f"{os.cpu_count()} cores, {load}; {', '.join(libraries)}. Workload: see simulators.py."
    path = Path(__file__).parent / "RECORDS.md"
    title, _, earlier = path.read_text().partition("\n## ")
    path.write_text("\n".join([title.rstrip("\n"), "", head, "", about, "", *lines, ""]) + "\n## " + earlier)


if __name__ == "__main__":
    main()
