"""Table 3: FedProx, with and without calibration, on MNIST at four β."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper.plan import table3 as cells
from paper.present import Result, Table, by, metric, over_seeds, write

PAPER = {1.0: (94.32, 0.38, 0.40), 0.5: (94.07, 0.57, 0.42), 0.3: (90.25, 1.32, 0.58), 0.1: (89.93, 3.19, 1.07)}

__all__ = ["cells", "present"]


def present(results: Sequence[Result], out: Path) -> None:
    """table3.{md,tex}."""
    rows = []
    for (beta,), some in by(results, "beta").items():
        ours = [over_seeds(some, metric("uncal", key="accuracy"))]
        ours += [over_seeds(some, metric(name)) for name in ("uncal", "fedcal", "val-ts", "fedcal-plus")]
        floor = over_seeds(some, metric("fedcal-plus", key="ece_floor"))
        rows.append([f"{beta:g}", *ours, floor, *PAPER.get(beta, (None, None, None))])
    head = ["β", "accuracy", "FedProx", "+ FedCal", "+ Val-TS", "+ fedcal-plus", "floor",
            "paper: accuracy", "paper: FedProx", "paper: + FedCal"]  # fmt: skip
    mu = results[0]["config"]["prox_mu"]
    write(out, "table3", results, [Table(f"FedProx (µ = {mu:g}), MNIST, CNN: global ECE in %", head, rows)])
