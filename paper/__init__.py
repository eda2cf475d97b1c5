"""The paper, measured: one module for each table and figure (`fedcal paper`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from fedcal.errors import FedCalError


def reproduce(
    name: str, out: Path, runs: Path, seeds: Sequence[int], quick: bool, device: str, say: Callable[[str], None],
    data: Sequence[str] | None = None,
) -> Path:  # fmt: skip
    """Measure one table or figure into `out`; returns its Markdown. Quick ones get names of their own."""
    from paper import cells

    module = importlib.import_module(f"paper.{name}")
    out = out / "quick" if quick else out
    if hasattr(module, "run"):  # made of no trained cells
        module.run(out, seeds, quick, say)
        return out / f"{name}.md"
    wanted = module.cells(seeds, device, quick)
    if data:
        wanted = [cell for cell in wanted if cell.data in data]
        if not wanted:
            raise FedCalError(f"{name} has no cells of {', '.join(data)}: leave --data out")
    if name == "ensemble":
        module.present([module.measure(folder) for folder in cells.train(wanted, runs, say, tune=True)], out)
        return out / "ensemble.md"
    results = cells.fit(cells.train(wanted, runs, say), out / "cells", say)
    module.present(results, out, *([runs] if name == "figure2" else []))
    return out / f"{name}.md"
