"""FedCal's open choices on a frozen model, judged on calibration data that the scalers did not see.

Each client's calibration split is cut: two thirds to fit on, one third to judge by. Test sets stay closed.

    python -m paper.studies.readings_post_hoc FILE.npz … [--out FILE.json]      (files as in federated_logits.py)
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedcal.base.seeds import numpy_rng
from fedcal.measure.tally import Tally
from fedcal.methods import METHODS, Method
from fedcal.methods.fedcal import FedCal
from fedcal.protocol import Server
from fedcal.transport.memory import Exchange
from paper.results import write

OWN = FedCal(schedule="post-hoc", net="sorted", start="matched", rounds=30)
GLOBAL = replace(OWN, start="global")
READINGS: dict[str, Method] = {
    "uncal": METHODS["uncal"],
    "val-ts": METHODS["val-ts"],
    "ens": METHODS["ens"],
    "avg-t": METHODS["avg-t"],
    "own net, 1 round": replace(OWN, rounds=1),
    "own net, 30 rounds": OWN,
    "from global, 30 rounds": GLOBAL,
    "from global, by samples": replace(GLOBAL, weights="samples"),
    "from global, hidden 8": replace(GLOBAL, hidden=8),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for path in args.files:
        a = np.load(path, allow_pickle=False)
        logits, labels = torch.from_numpy(a["cal_logits"]).double(), torch.from_numpy(a["cal_labels"]).long()
        judge = torch.from_numpy(numpy_rng(0, "judge", path.stem).random(len(labels)) < 1 / 3)
        of = {str(c): torch.from_numpy(a["cal_client"] == c) & ~judge for c in np.unique(a["cal_client"])}
        samples = {name: (logits[mine], labels[mine]) for name, mine in of.items()}
        table[path.stem] = {}
        for name, method in READINGS.items():
            scaler = Exchange(Server(method, logits.shape[1])).run(samples)
            found = Tally.of(scaler.apply(logits[judge]), labels[judge]).summary()
            table[path.stem][name] = {key: found[key] for key in ("ece", "ece_floor", "nll", "accuracy")}
        print(path.stem, {name: round(100 * row["ece"], 2) for name, row in table[path.stem].items()}, flush=True)
    for name in READINGS:
        rows = [cell[name] for cell in table.values()]
        print(f"{name:32s} ECE {100 * sum(r['ece'] for r in rows):6.2f}  NLL {np.mean([r['nll'] for r in rows]):.4f}")
    if args.out:
        write(args.out, table)


if __name__ == "__main__":
    main()
