"""Table 2: what order preservation costs and buys. Global ECE and top-3 accuracy on MNIST at β = 0.5 and 0.1.

The paper's caption says β = 0.5; its baselines are those of β = 0.1 in its Table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper.plan import table2 as cells
from paper.present import LABELS, Result, Table, by, metric, over_seeds, write

NAMES = ("uncal", "ens", "avg-t", "lr-ts", "fedcal-no-op", "fedcal", "fedcal-plus-keep", "fedcal-plus")
PAPER = {"uncal": (4.6, 92.3), "ens": (2.13, None), "avg-t": (3.17, None), "lr-ts": (5.51, None),
         "fedcal-no-op": (1.32, 87.91), "fedcal": (1.71, 92.3)}  # fmt: skip

__all__ = ["cells", "present"]


def present(results: Sequence[Result], out: Path) -> None:
    """table2.{md,tex}: a table for each β."""
    tables = []
    for (beta,), some in by(results, "beta").items():
        rows = []
        for name in NAMES:
            ece, top3 = PAPER.get(name, (None, None))
            ours = [over_seeds(some, metric(name, key=key)) for key in ("ece", "top3", "accuracy", "nll")]
            nll = f"{ours[3].mean / 100:.4f}" if ours[3] else None
            rows.append([LABELS[name], *ours[:3], nll, ece, top3])
        head = ["method", "global ECE, %", "top-3 accuracy, %", "accuracy, %", "NLL", "paper: ECE", "paper: top-3"]
        tables.append(Table(f"MNIST, CNN, β = {beta:g}, {len(some)} seeds", head, rows))
    write(out, "table2", results, tables)
