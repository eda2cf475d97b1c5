"""The paper, measured: one module for each table and figure (`python -m paper table1`)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path

from fedcal.errors import FedCalError


def reproduce(
    name: str,
    out: Path,
    runs: Path,
    seeds: Sequence[int],
    quick: bool,
    device: str,
    say: Callable[[str], None],
    data: Sequence[str] | None = None,
) -> Path:
    """Measure one table or figure.

    Args:
        name: The table or figure: a module of this package, such as "table1".
        out: Folder of the results; quick ones go to its subfolder `quick`.
        runs: Folder of the recordings of trained federations.
        seeds: One federation of each kind is trained for each of them.
        quick: Only a small piece of it.
        device: "cpu", "cuda" or "cuda:N".
        say: Is called with progress messages.
        data: Only federations of these data sets.

    Returns:
        The Markdown file of the table or figure.

    Raises:
        FedCalError: Nothing in it is made of these data sets.
    """
    from paper import cells

    module = importlib.import_module(f"paper.{name}")
    out = out / "quick" if quick else out
    page = out / f"{name}.md"
    if not hasattr(module, "cells"):  # trains its own small models
        if data:
            raise FedCalError(f"{name} has no federations of {', '.join(data)}: leave --data out")
        module.run(out, seeds, quick, say)
        return page
    every = module.cells(seeds, device, quick)
    wanted = [cell for cell in every if not data or cell.data in data]
    if not wanted:
        what, sets = f"{name} --quick" if quick else name, ", ".join(dict.fromkeys(cell.data for cell in every))
        raise FedCalError(f"{what} has no federations of {', '.join(data or ())}, only of {sets}: leave --data out")
    folders = cells.train(wanted, runs, say, tune=name in ("ensemble", "head"), features=name == "head")
    if name == "ensemble":
        module.present([module.measure(folder) for folder in folders], out)
    elif name == "head":  # refits the last layer, which only recordings with features allow
        module.present(
            cells.fit(folders, out / "head", say, module.FITTED, total=len(wanted), task=module.fit_cell), out
        )
    elif name == "figure2":  # draws clients' reliability, which only the recordings have
        module.present(cells.fit(folders, out / "cells", say, total=len(wanted)), out, runs)
    else:
        module.present(cells.fit(folders, out / "cells", say, total=len(wanted)), out)
    return page
