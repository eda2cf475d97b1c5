"""Turn the results of federations into tables: means and spreads over seeds, as Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.base.store import write_bytes
from fedcal.report.booktabs import latex_table
from paper import results as files

Result = dict[str, Any]  # of one cell: see cells.py

LABELS = {
    "uncal": "Uncal", "val-ts": "Val-TS", "ens": "Ens", "avg-t": "AvgT", "lr-ts": "LR-TS", "fedcal": "FedCal",
    "fedcal-literal": "FedCal, as printed", "fedcal-no-wm": "no matching", "fedcal-small": "8 units",
    "fedcal-no-op": "no order", "fedcal-plus": "fedcal-plus", "fedcal-plus-keep": "fedcal-plus, keep",
}  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """Mean ± standard deviation over seeds."""

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> Spread:
        """Of one value per seed."""
        values = np.asarray(values, np.float64)
        return cls(float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0, len(values))

    def __format__(self, spec: str) -> str:
        return f"{self.mean:{spec}}" + (f" ± {self.std:{spec}}" if self.n > 1 else "")

    def __str__(self) -> str:
        return f"{self:.2f}"


def spread(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Mean ± standard deviation as text."""
    return f"{Spread.of(values):.{digits}f}"


def over_seeds(results: Sequence[Result], value: Callable[[Result], float | None]) -> Spread | None:
    """A fraction over seeds, in per cent; None where no seed has it."""
    found = [100 * v for v in (value(result) for result in results) if v is not None]
    return Spread.of(found) if found else None


def metric(name: str, kind: str = "global", key: str = "ece") -> Callable[[Result], float | None]:
    """A function that reads a method's metric from a result, None if the method was not run."""
    return lambda result: result["methods"][name][kind][key] if name in result["methods"] else None


def by(results: Sequence[Result], *keys: str) -> dict[tuple[Any, ...], list[Result]]:
    """Group results by fields of their configs: what is left to differ in a group is the seed."""
    groups: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result["config"][key] for key in keys), []).append(result)
    return groups


@dataclass(frozen=True)
class Table:
    """Rows of cells: text, spreads, or None for nothing."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def markdown(self) -> str:
        lines = [
            f"### {self.title}",
            "",
            *(_line(row) for row in (self.columns, ["---"] * len(self.columns), *self.rows)),
        ]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        return latex_table(self.columns, self.rows, self.title)


def write(
    out: Path, name: str, results: Sequence[Result], tables: Sequence[Table], words: str = "", **sums: Any
) -> None:
    """Write OUT/NAME.md and .tex, and an entry in OUT/tables.json: the federations of the table, and its sums."""
    files.add(out / "tables.json", name, {"cells": sorted(result["name"] for result in results), **sums})
    write_pages(out, name, tables, words)


def write_pages(out: Path, name: str, tables: Sequence[Table], words: str = "") -> None:
    """Write OUT/NAME.md and .tex."""
    write_bytes(out / f"{name}.md", "\n".join([*(t.markdown() for t in tables), words]).rstrip().encode() + b"\n")
    write_bytes(out / f"{name}.tex", "\n".join(t.latex() for t in tables).encode())


def _line(row: Sequence[Any]) -> str:
    return "| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |"
