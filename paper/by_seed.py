"""An experiment that is one file: its settings, and one line per seed. It goes on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paper import results


def by_seed(
    path: Path,
    config: dict[str, Any],
    seeds: Sequence[int],
    measure: Callable[[int], dict[str, Any]],
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Measure every seed and write it to the file; seeds that the file has with the same config are not measured again."""
    known = results.read(path)
    data = known["data"] if known.get("config") == config else {}
    here = results.machine()  # before the first file is written: the commit is that of the code
    for i, seed in enumerate(seeds, start=1):
        if str(seed) in data:
            continue
        began = time.perf_counter()
        found = measure(seed)
        data[str(seed)] = {**found, "seconds": time.perf_counter() - began}
        total = sum(one["seconds"] for one in data.values())
        content = {"config": config, **here, "seconds": total, "seeds": sorted(map(int, data)), "data": data}
        results.write(path, content, depth=2)
        say(f"{path.stem}: seed {seed} ({i} of {len(seeds)}) in {data[str(seed)]['seconds']:.1f} s")
    data = results.read(path)["data"]
    return [data[str(seed)] for seed in seeds]


def origin(path: Path) -> str:
    """One sentence on seeds, commit, device and time."""
    about = results.read(path)
    seeds = ", ".join(map(str, about["seeds"]))
    return f"Seeds {seeds}; commit {about['commit']}, {about['device']}, {about['seconds']:.0f} s."
