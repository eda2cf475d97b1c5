"""Measured results as JSON that people and git can read: one federation, one seed or one table per line.

    OUT/cells/DATA.json      every federation of a data set: config, commit, device, seconds and all methods' metrics
    OUT/tables.json          every table and figure: the federations it is made of, and what it sums up
    OUT/ensemble.json        the ensembles, one federation per line
    OUT/figure5.json, theory.json      settings, and one line per seed
    results/studies/         what the scripts in paper/studies gave

The files are ordinary JSON objects. Numbers keep all their digits, so what is read equals what was written.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

from fedcal.base.codec import parse_json
from fedcal.base.store import finite, read_bytes, write_bytes

STUDIES = Path(__file__).parent / "results" / "studies"  # what the scripts in paper/studies gave


def write(path: Path, content: dict[str, Any], depth: int = 1) -> None:
    """Write a JSON object with one entry per line; NaN and infinity become null.

    Args:
        path: The file, which is replaced as a whole.
        content: Any JSON object.
        depth: How many levels of objects have their entries on lines of their own.
    """
    write_bytes(path, f"{_text(finite(content), depth)}\n".encode())


def read(path: Path) -> dict[str, Any]:
    """Read what `write` wrote; without such a file, nothing is known yet: an empty dictionary."""
    return parse_json(read_bytes(path), str(path)) if path.exists() else {}


def add(path: Path, name: str, entry: Any) -> None:
    """Add one entry to a file, or replace it; entries are sorted by name."""
    write(path, dict(sorted({**read(path), name: entry}.items())))


def _text(value: Any, depth: int) -> str:
    if not depth or not isinstance(value, dict) or not value:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return "{\n" + ",\n".join(f"{_text(key, 0)}: {_text(entry, depth - 1)}" for key, entry in value.items()) + "\n}"


def machine() -> dict[str, str]:
    """The commit, device and versions with which something was measured."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    return {"commit": commit(), "device": device, "torch": torch.__version__, "python": platform.python_version()}


def commit() -> str:
    """The checkout's commit, with + if files differ from it; $FEDCAL_COMMIT where there is no repository."""
    if given := os.environ.get("FEDCAL_COMMIT"):
        return given
    try:
        head, changed = (_git(*command) for command in (("rev-parse", "--short", "HEAD"), ("status", "-s", "-uno")))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*command: str) -> str:
    found = subprocess.run(["git", *command], cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    return found.stdout.strip()
