"""An experiment that is one JSON file: what was measured, seed by seed, and where. It goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.base.store import read_json, write_json
from fedcal.simulate.runs import finite
from paper.cells import Say, machine


def by_seed(
    path: Path, config: dict[str, Any], seeds: Sequence[int], measure: Callable[[int], dict[str, Any]], say: Say
) -> list[dict[str, Any]]:
    """Every seed's `measure(seed)`, kept in the file; those that it holds of the same config are not measured again."""
    known = read_json(path) if path.exists() else {}
    data = known["data"] if known.get("config") == config else {}
    here = machine()  # before the first file is written: the commit is that of the code
    for i, seed in enumerate(seeds, start=1):
        if str(seed) in data:
            continue
        began = time.perf_counter()
        found = measure(seed)
        data[str(seed)] = {**finite(found), "seconds": time.perf_counter() - began}
        total = sum(one["seconds"] for one in data.values())
        content = {"config": config, **here, "seconds": total, "seeds": sorted(map(int, data)), "data": data}
        write_json(path, content)
        say(f"{path.stem}: seed {seed} ({i} of {len(seeds)}) in {data[str(seed)]['seconds']:.1f} s")
    return [data[str(seed)] for seed in seeds]


def origin(path: Path) -> str:
    """A line on where the figures come from, for the Markdown."""
    about = read_json(path)
    seeds = ", ".join(map(str, about["seeds"]))
    return f"Seeds {seeds}; commit {about['commit']}, {about['device']}, {about['seconds']:.0f} s."


def spread(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Mean ± standard deviation over seeds."""
    values = np.asarray(values, np.float64)
    deviation = f" ± {values.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{deviation}"
