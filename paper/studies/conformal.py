"""Conformal sets on real federations: coverage and size under several calibrations, globally and at every client.

    python -m paper.studies.conformal FILE.npz … [--alpha 0.1] [--score aps]

Files as for federated_logits.py. One half of each client's calibration split fits the calibration, the other half sets the
threshold; the test set is used once, to measure. `own`: prior-shifted probabilities, both for the threshold and at each
client's test samples. Sets are randomised (aps, raps). In brackets, over clients: the lowest decile of coverage, and its
standard deviation.
"""

from __future__ import annotations

import argparse
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import torch

import fedcal
from fedcal.base.conformal import ConformalHistogram, Score, predict_sets
from fedcal.base.seeds import numpy_rng
from fedcal.measure.conformal import SetTally
from fedcal.protocol import Scaler
from paper.logits import Split, read

METHODS = {"uncal": False, "val-ts": False, "fedcal-plus": False, "fedcal-plus own": True}
ENOUGH = 20  # test samples from which on a client's coverage says something


def halves(clients: Split) -> tuple[Split, Split]:
    """Each client's samples, split at random into two."""
    first, second = {}, {}
    for name, (logits, labels) in clients.items():
        order = numpy_rng(0, "halves", name).permutation(len(labels))
        a, b = order[: len(order) // 2], order[len(order) // 2 :]
        first[name], second[name] = (logits[a], labels[a]), (logits[b], labels[b])
    return first, second


def ready(
    fitted: Scaler, clients: Split, own: bool, purpose: str
) -> dict[str, tuple[torch.Tensor, torch.Tensor, np.ndarray]]:
    """Each client's probabilities and labels, and one uniform random number per sample."""
    return {
        name: (
            fitted.predict_proba(z, client=name if own and name in fitted.personal else None),
            y,
            numpy_rng(0, "conformal", purpose, name).random(len(y)),
        )
        for name, (z, y) in clients.items()
        if len(y)
    }


def measure(path: Path, alpha: float, score: Score) -> dict[str, tuple[float, float, float, float]]:
    """Of each method: coverage and mean size over all test samples; the lowest decile and spread of clients' coverage."""
    cal, test = read(path)
    fitting, held = halves(cal)
    rows = {}
    for method, own in METHODS.items():
        fitted = fedcal.calibrate(fitting, method.split()[0])
        sent = [ConformalHistogram.of(p, y, score, u) for p, y, u in ready(fitted, held, own, "threshold").values()]
        threshold = reduce(add, sent).threshold(alpha)
        found = [
            SetTally.of(predict_sets(p, threshold, score, u), y)
            for p, y, u in ready(fitted, test, own, "test").values()
        ]
        whole, each = reduce(add, found), np.array([one.coverage for one in found if one.n >= ENOUGH])
        rows[method] = whole.coverage, whole.mean_size, float(np.quantile(each, 0.1)), float(each.std())
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--score", choices=["lac", "aps", "raps"], default="aps")
    args = parser.parse_args()
    torch.set_num_threads(1)
    table = {}
    for path in args.files:
        table[path.stem] = measure(path, args.alpha, Score(args.score))
        cells = [f"{m}: {c:.1%} {s:.2f} ({low:.1%}, ±{sd:.1%})" for m, (c, s, low, sd) in table[path.stem].items()]
        print(f"{path.stem:14s}", " | ".join(cells), flush=True)
    for method in METHODS:
        c, s, low, sd = np.mean([cell[method] for cell in table.values()], axis=0)
        print(f"{method:16s} coverage {c:.2%}  size {s:.2f}  lowest decile of clients {low:.1%}  their spread {sd:.1%}")


if __name__ == "__main__":
    main()
