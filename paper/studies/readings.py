"""Which reading of Algorithm 1 should be the default? Measured on development data; no test set is touched.

The paper leaves open what a scaler is fitted on, whose logits, where it starts, who is averaged, and how it is trained
(docs/paper.md). Here every reading runs beside the others on the same federation: Fashion-MNIST and CIFAR-10, whose
*training* sets are split again into a part to train on and a part to judge by. The official test sets stay closed.

    python -m paper.studies.readings --data fashion-mnist --beta 0.1 --momentum 0 --seed 100 --device cuda [--out FILE.json]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from fedcal import Config
from fedcal.base.seeds import torch_rng
from fedcal.data import Dataset, load
from fedcal.methods import METHODS, Method
from fedcal.methods.fedcal import FedCal
from fedcal.simulate import federation
from fedcal.simulate.assemble import assemble, calibration
from paper.results import STUDIES, add

BASE = FedCal(
    schedule="interleaved",
    net="sorted",
    logits_of="received",
    fit_on="held-out",
    start="matched",
    rounds=0,
)

READINGS: dict[str, Method] = {
    "uncal": METHODS["uncal"],
    "val-ts": METHODS["val-ts"],
    "ens": METHODS["ens"],
    "avg-t": METHODS["avg-t"],
    "lr-ts": METHODS["lr-ts"],
    "literal: raw, local model, training data": replace(BASE, net="raw", logits_of="local", fit_on="train"),
    "raw, local model": replace(BASE, net="raw", logits_of="local"),
    "raw, received model": replace(BASE, net="raw"),
    "sorted, local model": replace(BASE, logits_of="local"),
    "sorted, received model": BASE,
    "sorted, received, training data": replace(BASE, fit_on="train"),
    "from the global scaler": replace(BASE, start="global"),
    "from the global scaler, local model": replace(BASE, start="global", logits_of="local"),
    "own, not matched": replace(BASE, start="own"),
    "independent starts, matched": replace(BASE, shared_init=False),
    "independent starts, not matched": replace(BASE, shared_init=False, start="own"),
    "latest of every client": replace(BASE, average="latest"),
    "by samples": replace(BASE, weights="samples"),
    "hidden 8": replace(BASE, hidden=8),
    "lr 1e-2": replace(BASE, lr=1e-2),
    "lr 1e-4": replace(BASE, lr=1e-4),
    "decay 1": replace(BASE, weight_decay=1.0),
    "10 steps": replace(BASE, steps=10),
    "200 steps": replace(BASE, steps=200, patience=40),
    "+ 10 rounds on the final model": replace(BASE, rounds=10),
    "+ 30 rounds on the final model": replace(BASE, rounds=30),
    "from global, + 30 rounds": replace(BASE, start="global", rounds=30),
    "from global, latest": replace(BASE, start="global", average="latest"),
    "raw, from global, + 30 rounds": replace(BASE, net="raw", start="global", rounds=30),
    "post-hoc only, 30 rounds": replace(BASE, schedule="post-hoc", rounds=30),
    "post-hoc only, 30 rounds from global": replace(BASE, schedule="post-hoc", rounds=30, start="global"),
    "post-hoc from global, lr 1e-2": replace(replace(BASE, schedule="post-hoc", rounds=30, start="global"), lr=1e-2),
    "plain net": replace(BASE, net="plain"),
}


def development(dataset: Dataset, seed: int) -> Dataset:
    """Only the training set, with 15 % of it in place of the test set."""
    order = torch.randperm(len(dataset.train_y), generator=torch_rng(seed, "development"))
    held = round(0.15 * len(order))
    judge, rest = order[:held], order[held:]
    x, y = dataset.train_x, dataset.train_y
    return replace(dataset, train_x=x[rest], train_y=y[rest], test_x=x[judge], test_y=y[judge])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--beta", type=float, default=0.5)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, default=STUDIES / "readings.json")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)

    config = Config(
        data=args.data,
        beta=args.beta,
        momentum=args.momentum,
        rounds=args.rounds,
        seed=args.seed,
        device=args.device,
    ).resolve()
    began = time.perf_counter()
    state = assemble(config, development(load(args.data), args.seed))
    k = len(state.classes)
    state.calibrations = {name: calibration(method, k, config) for name, method in READINGS.items()}
    federation.train(
        state,
        args.rounds,
        lambda _, r: print(f"{r['round']} {r['loss']:.3f} {r['accuracy']:.3f} {r['seconds']:.1f}s", flush=True),
    )
    federation.finish(state)
    rows = {}
    measured = federation.evaluate(state, compare=False)
    for name, scaler in state.scalers.items():
        whole = measured["local"].pooled(name)
        rows[name] = {
            **whole.summary(),
            "local_ece": measured["local"].over_clients(name)["ece"],
            "own_ece": measured["own"].over_clients(name)["ece"],
            "notes": {n: v / scaler.ledger.updates for n, v in scaler.ledger.notes.items()},
        }
        print(
            f"{name:45s} acc {rows[name]['accuracy']:.4f} ece {rows[name]['ece']:.4f} nll {rows[name]['nll']:.4f}",
            flush=True,
        )
    about = {k: v for k, v in vars(args).items() if k != "out"}
    name = f"{args.data}-{args.beta:g}-{args.momentum:g}-s{args.seed}"
    add(args.out, name, {**about, "seconds": time.perf_counter() - began, "readings": rows})


if __name__ == "__main__":
    main()
