"""Heart disease, one hospital left out: train and calibrate at three, serve the fourth.

Ten seeds, CPU, commit f164111: a temperature takes the ECE from 18–28 to 8–13 %; labels of the fourth help, its unlabelled
patients may harm (docs/exact.md has the table).

    python -m paper.studies.hospitals [--seeds 10] [--out paper/results/studies/hospitals.json]

A federation of three hospitals (FedAvg, `fedcal run --data heart`'s setup, but 30 % of the patients held out to calibrate on)
trains and calibrates. The fourth took no part. Half of its patients, drawn again for each seed, are what it knows of itself:
with their labels, or without. All methods are judged on the other half.

    uncal, val-ts          as they are
    fedcal-plus            the global scaler
      + labels             prior shift by the label counts of the known half
      + unlabelled         prior shift by EM on the known half's calibrated probabilities
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import fedcal
from fedcal import Config
from fedcal.base.seeds import numpy_rng
from fedcal.data import DATASETS, Dataset
from fedcal.data.hospitals import HOSPITALS, read
from fedcal.learn.local import predict
from fedcal.measure.tally import Tally
from fedcal.simulate import federation
from fedcal.simulate.assemble import assemble
from paper.results import write

METRICS = ("accuracy", "nll", "ece", "ece_floor", "debiased_l2")
METHODS = ("uncal", "val-ts", "fedcal-plus", "fedcal-plus + labels", "fedcal-plus + unlabelled")


def without(left_out: int) -> Dataset:
    """The other three, all of their patients to train and calibrate on; the one that is left out is their test set.

    (Its patients are put down to the first client, so that they are standardised as everybody's: by training statistics.)
    """
    x, y, hospital = read()
    here = hospital != left_out
    order = torch.tensor([c - (c > left_out) for c in range(len(HOSPITALS))])
    return Dataset(
        "heart", DATASETS["heart"].classes, x[here], y[here], x[~here], y[~here],
        train_client=order[hospital[here]], test_client=torch.zeros(int((~here).sum()), dtype=torch.int64),
        client_names=tuple(name for c, name in enumerate(HOSPITALS) if c != left_out),
    )  # fmt: skip


def served(left_out: int, seed: int) -> dict[str, dict[str, float]]:
    """Each method's metrics at the hospital that took no part."""
    config = Config(data="heart", cal_fraction=0.3, seed=seed, method=("uncal",)).resolve()
    state = assemble(config, without(left_out))
    federation.train(state, config.rounds, lambda *_: None)
    clients = {c.name: (predict(state.model, c.cal_x), c.cal_y) for c in state.clients}
    logits, labels = predict(state.model, state.clients[0].test_x), state.clients[0].test_y
    order = torch.from_numpy(numpy_rng(seed, "halves", HOSPITALS[left_out]).permutation(len(labels)))
    known, judged = order[: len(order) // 2], order[len(order) // 2 :]
    plus = fedcal.calibrate(clients, "fedcal-plus")
    plus.welcome("labels", logits[known], labels[known])
    plus.welcome("unlabelled", logits[known])
    found: dict[str, Tensor] = {
        "uncal": logits[judged],
        "val-ts": fedcal.calibrate(clients, "val-ts").apply(logits[judged]),
        "fedcal-plus": plus.apply(logits[judged]),
        "fedcal-plus + labels": plus.apply(logits[judged], client="labels"),
        "fedcal-plus + unlabelled": plus.apply(logits[judged], client="unlabelled"),
    }
    summaries = {name: Tally.of(u, labels[judged]).summary() for name, u in found.items()}
    return {name: {metric: summary[metric] for metric in METRICS} for name, summary in summaries.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    _, y, hospital = read()
    table = {}
    for left_out, name in enumerate(HOSPITALS):
        runs = [served(left_out, seed) for seed in range(args.seeds)]
        here = y[hospital == left_out].double()
        table[name] = {"patients": len(here), "diseased": float(here.mean()), "methods": {}}
        print(f"{name}: {len(here)} patients, {here.mean():.0%} diseased")
        for method in METHODS:
            each = {metric: [run[method][metric] for run in runs] for metric in METRICS}
            cells = {metric: {"mean": float(np.mean(v)), "std": float(np.std(v, ddof=1))} for metric, v in each.items()}
            table[name]["methods"][method] = cells
            print(f"  {method:26s}", *(f"{m} {c['mean']:.3f} ± {c['std']:.3f} " for m, c in cells.items()), flush=True)
    if args.out:
        write(args.out, {"seeds": args.seeds, "hospitals": table}, depth=2)


if __name__ == "__main__":
    main()
