"""Post-hoc methods on the logits of sixteen real federations: ECE, noise floor, NLL and accuracy, cell by cell.

    python experiments/federated_logits.py DIR [--method fedcal-plus ...]

DIR holds SET-BETA.npz with cal_logits, cal_labels, cal_client, test_logits, test_labels (as federations.py writes them).
Scalers are fitted on the clients' calibration splits; the whole test set is used once, to measure.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import fedcal
from fedcal.measure.tally import Tally


def read(path: Path) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], torch.Tensor, torch.Tensor]:
    """Each client's calibration samples, and the test set."""
    a = np.load(path, allow_pickle=False)
    clients = {
        str(c): (a["cal_logits"][a["cal_client"] == c], a["cal_labels"][a["cal_client"] == c])
        for c in np.unique(a["cal_client"])
    }
    return clients, torch.from_numpy(a["test_logits"]).double(), torch.from_numpy(a["test_labels"]).long()


def measure(path: Path, methods: dict[str, dict[str, object]]) -> dict[str, dict[str, float]]:
    """Every method's metrics on one federation."""
    clients, logits, labels = read(path)
    rows = {}
    for name, options in methods.items():
        began = time.perf_counter()
        fitted = fedcal.calibrate(clients, name.split(" ")[0], **options)  # pyright: ignore[reportArgumentType]
        seconds = time.perf_counter() - began
        found = Tally.of(fitted.apply(logits), labels).summary()
        kept = {key: found[key] for key in ("ece", "ece_floor", "nll", "accuracy", "classwise_ece")}
        family = next((f for f in ("matrix", "vector", "bias", "temperature") if f in fitted.params), "")
        rows[name] = {
            **kept, "seconds": seconds, "rounds": fitted.rounds, "bytes_up": fitted.total_up, "family": family,
            "map": "beta" in fitted.params or "hist" in fitted.params,
        }  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--method", action="append")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    wanted = args.method or ["uncal", "val-ts", "fed-bias", "fedcal-plus", "fedcal-plus keep"]
    methods = {name: {"accuracy": "keep"} if name.endswith(" keep") else {} for name in wanted}
    table = {}
    for path in sorted(args.folder.glob("*.npz")):
        table[path.stem] = measure(path, methods)
        cells = [
            f"{m}: {r['ece']:.2%} ({r['ece_floor']:.2%}) {r['nll']:.3f} {r['accuracy']:.2%}"
            for m, r in table[path.stem].items()
        ]
        print(f"{path.stem:14s}", " | ".join(cells), flush=True)
    for name in methods:
        rows = [cell[name] for cell in table.values()]
        print(
            f"{name:20s} sum of ECE {100 * sum(r['ece'] for r in rows):7.2f}  of floors {100 * sum(r['ece_floor'] for r in rows):6.2f}"
            f"  mean NLL {np.mean([r['nll'] for r in rows]):.4f}  mean accuracy {np.mean([r['accuracy'] for r in rows]):.2%}"
            f"  seconds {sum(r['seconds'] for r in rows):.0f}"
        )
    if args.out:
        args.out.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
