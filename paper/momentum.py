"""Which momentum gives the paper's accuracies and over-confidence? Table 1's federations with 0 and 0.9."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedcal.simulate.config import Config
from paper import plan
from paper.present import Result, Table, by, metric, over_seeds, write
from paper.table1 import PAPER

__all__ = ["cells", "present"]


def cells(seeds: Sequence[int], device: str, quick: bool) -> list[Config]:
    """One seed of each: the difference is far larger than the seeds' spread."""
    return [*plan.table1(seeds[:1], device, quick), *plan.momentum(seeds[:1], device, quick)]


def present(results: Sequence[Result], out: Path) -> None:
    """momentum.{md,tex}: accuracy, confidence − accuracy, and Uncal's ECE."""
    rows, apart = [], {0.0: 0.0, 0.9: 0.0}
    groups = by(results, "data", "beta", "momentum")
    for (data, beta, momentum), some in groups.items():
        accuracy, ece, confidence = (
            over_seeds(some, metric("uncal", key=key)) for key in ("accuracy", "ece", "confidence")
        )
        paper = PAPER.get((data, beta))
        over = f"{confidence.mean - accuracy.mean:+.1f}" if confidence and accuracy else None
        rows.append(
            [f"{data} β={beta:g}", f"{momentum:g}", accuracy, paper and paper[0], ece, paper and paper[1], over]
        )
        if paper and accuracy and ece:
            apart[momentum] += abs(accuracy.mean - paper[0]) + abs(ece.mean - paper[1])
    head = ["cell", "momentum", "accuracy", "paper", "Uncal ECE", "paper", "confidence − accuracy"]
    table = Table("The uncalibrated model, with and without momentum, in %", head, rows)
    words = "Sum of the distances to the paper's accuracy and Uncal columns: " + ", ".join(
        f"{total:.1f} with momentum {momentum:g}" for momentum, total in apart.items()
    )
    write(out, "momentum", results, [table], words, distance={str(k): v for k, v in apart.items()})
