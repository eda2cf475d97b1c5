"""Two commits' `fedcal-plus` on the same federations: quality, rounds, bytes and seconds.

    git worktree add OLD 09aafac
    python -m paper.studies.few_rounds recordings/* --old OLD [--jobs 14] [--out FILE.json]
    python -m paper.studies.few_rounds --train recordings --device cuda --old OLD [--parts 5]
    python -m paper.studies.few_rounds --train recordings --perceptrons --old OLD

Each path is a recording or an archive (paper/logits.py). `--train` trains and records federations of other seeds and other
nets than the tables' (`plan.untouched`; `plan.perceptrons` needs no GPU), and measures these too. Scalers are fitted on the
calibration splits; the whole test set is used once, to measure. The other checkout's code is used in processes of their own,
through what both commits have in common: `fedcal.calibrate`, the scaler it gives, and tallies. Bytes are all that one client
sends and receives.

With `--parts 5`, test sets stay closed: each fifth of the calibration samples is fitted on in turn, and the others are
measured (of more parts, the first five). `--train` then trains federations that hold out half of each client's training
samples (`plan.development`). Choices between variants of a method are made on these.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from paper.logits import Split

ROOT = Path(__file__).parents[2]
DRAWS = 5  # at most, of one federation's calibration samples
METHODS = {"fedcal-plus": "fedcal-plus", "fedcal-plus-keep": "fedcal-plus:accuracy=keep"}


def measure(path: Path, parts: int) -> dict[str, Any]:
    """Both variants on one federation, by the `fedcal` that is imported here; with `parts`, means over draws."""
    from paper.logits import deal, read

    torch.set_num_threads(1)
    cal, test = read(path)
    draws = [deal(cal, parts, i) for i in range(min(parts, DRAWS))] if parts else [(cal, test)]
    return {name: _mean([_measure(spec, *draw) for draw in draws]) for name, spec in METHODS.items()}


def _measure(spec: str, cal: Split, test: Split) -> dict[str, Any]:
    import fedcal
    from fedcal.measure.tally import Tally, over_clients, pooled

    began = time.process_time()
    fitted = fedcal.calibrate(cal, spec)
    seconds, ledger = time.process_time() - began, fitted.ledger
    everybody = pooled([Tally.of(fitted.apply(x), y) for x, y in test.values()]).summary()
    tallies = [Tally.of(fitted.apply(x, c if c in fitted.personal else None), y) for c, (x, y) in test.items()]
    own = over_clients(list(test), tallies)
    return {
        "global": {m: everybody[m] for m in ("accuracy", "nll", "brier", "ece", "ece_floor", "debiased_l2")},
        "own": {m: own[m] for m in ("accuracy", "ece", "ece_floor")}
        | {"nll": statistics.mean(tally.summary()["nll"] for tally in tallies)},
        "seconds": seconds,
        "rounds": ledger.rounds,
        "total_up": ledger.total_up,
        "total_down": ledger.total_down,
        "family": next(f for f in ("matrix", "vector", "bias", "temperature") if f in fitted.params),
        "classes": next(iter(cal.values()))[0].shape[1],
    }


def _mean(draws: list[Any]) -> Any:
    """The mean of numbers, and of each entry of dictionaries; strings stay as they are, one per draw."""
    if len(draws) == 1:
        return draws[0]
    if isinstance(draws[0], dict):
        return {key: _mean([of[key] for of in draws]) for key in draws[0]}
    return draws if isinstance(draws[0], str) else statistics.mean(draws)


def by_checkout(checkout: Path, path: Path, parts: int) -> dict[str, Any]:
    """`measure` with that checkout's code."""
    paths = os.pathsep.join(map(str, (checkout.resolve() / "src", ROOT)))
    command = [sys.executable, "-m", "paper.studies.few_rounds", str(path), "--one", "--parts", str(parts)]
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    return json.loads(found.stdout)


def commit_of(checkout: Path) -> str:
    """The commit that is checked out there."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def show(table: dict[str, dict[str, Any]], commits: list[str]) -> None:
    """Sums of the ECE, means of NLL and accuracy, and medians of the costs: of all federations, and of each data set."""
    sets = sorted({name.split("-")[0] for name in table})
    for method in METHODS:
        for data in ["", *sets]:
            for commit in commits:
                rows = [
                    row[commit][method] for name, row in table.items() if name.startswith(f"{data}-" if data else "")
                ]
                ece, floor = (100 * sum(row["global"][m] for row in rows) for m in ("ece", "ece_floor"))
                nll, accuracy = (statistics.mean(row["global"][m] for row in rows) for m in ("nll", "accuracy"))
                up, down = (statistics.median(row[m] for row in rows) / 1e6 for m in ("total_up", "total_down"))
                print(
                    f"{method:17s} {data or 'all':9s} {commit:8s} {len(rows):3d} federations  ECE, summed {ece:6.2f}"
                    f" (floor {floor:6.2f})  NLL {nll:.4f}  accuracy {accuracy:.2%}  rounds up to"
                    f" {max(row['rounds'] for row in rows)}  {up:.2f} MB up {down:.2f} down"
                    f"  {statistics.median(row['seconds'] for row in rows):.1f} CPU s"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument(
        "--train", type=Path, help="folder of recordings; trains the federations that are missing there"
    )
    parser.add_argument("--perceptrons", action="store_true", help="with --train: small nets, which a CPU can train")
    parser.add_argument("--parts", type=int, default=0, help="fit on one of so many parts of the calibration samples")
    parser.add_argument("--device", default="cpu", help="with --train")
    parser.add_argument("--old", type=Path, help="a checkout of the other commit")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in the child process
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.paths[0], args.parts)))
        return
    from paper.results import write

    checkouts = {commit_of(place): place for place in ([args.old] if args.old else []) + [ROOT]}
    paths = [path.resolve() for path in args.paths]
    if args.train:
        from paper import cells, plan

        wanted = plan.development if args.parts else plan.perceptrons if args.perceptrons else plan.untouched
        paths += [path.resolve() for path in cells.train(wanted(args.device), args.train, print)]
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {p: {c: pool.submit(by_checkout, at, p, args.parts) for c, at in checkouts.items()} for p in paths}
        table = {p.stem if p.is_file() else p.name: {c: f.result() for c, f in of.items()} for p, of in futures.items()}
    if args.out:
        write(args.out, table)
    show(table, list(checkouts))


if __name__ == "__main__":
    main()
