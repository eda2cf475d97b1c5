"""From cells' results to tables: means and spreads over seeds, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.base.store import write_bytes, write_json

Result = dict[str, Any]  # of one cell: see cells.py

LABELS = {
    "uncal": "Uncal", "val-ts": "Val-TS", "ens": "Ens", "avg-t": "AvgT", "lr-ts": "LR-TS", "fedcal": "FedCal",
    "fedcal-literal": "FedCal, as printed", "fedcal-no-wm": "no matching", "fedcal-small": "8 units",
    "fedcal-no-op": "no order", "fedcal-plus": "fedcal-plus", "fedcal-plus-keep": "fedcal-plus, keep",
}  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """A figure over seeds, in per cent."""

    mean: float
    std: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.std:.2f}" if self.n > 1 else "")


def over_seeds(results: Sequence[Result], value: Callable[[Result], float | None]) -> Spread | None:
    """Mean and standard deviation of a fraction, in per cent; None where no seed has it."""
    found = [100 * v for v in (value(result) for result in results) if v is not None]
    return (
        Spread(float(np.mean(found)), float(np.std(found, ddof=1)) if len(found) > 1 else 0.0, len(found))
        if found
        else None
    )


def metric(name: str, kind: str = "global", key: str = "ece") -> Callable[[Result], float | None]:
    """What to read from a result: a method's metric; None where the method was not run."""
    return lambda result: result["methods"][name][kind][key] if name in result["methods"] else None


def by(results: Sequence[Result], *keys: str) -> dict[tuple[Any, ...], list[Result]]:
    """Results by these fields of their configs, the seeds of a cell together, in the order of appearance."""
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
        body = " \\\\\n".join(" & ".join(_tex(cell) for cell in row) for row in self.rows)
        head = " & ".join(_tex(cell) for cell in self.columns)
        return (
            f"% {self.title}\n\\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}\n\\toprule\n{head} \\\\\n\\midrule\n"
            f"{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n"
        )


def write(out: Path, name: str, content: dict[str, Any], tables: Sequence[Table], words: str = "") -> None:
    """OUT/NAME.json, .md and .tex."""
    write_json(out / f"{name}.json", content)
    write_bytes(out / f"{name}.md", "\n".join([*(t.markdown() for t in tables), words]).rstrip().encode() + b"\n")
    write_bytes(out / f"{name}.tex", "\n".join(t.latex() for t in tables).encode())


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """What a table was made of: each cell's config, commits, device and seconds. Its figures stand in cells/NAME.json."""
    return {result["name"]: {key: result[key] for key in ("config", "training", "fitting", "G")} for result in results}


def _line(row: Sequence[Any]) -> str:
    return "| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |"


def _tex(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    for a, b in (("%", "\\%"), ("β", "$\\beta$"), ("µ", "$\\mu$"), ("±", "$\\pm$"), ("−", "$-$"), ("_", "\\_")):
        text = text.replace(a, b)
    return text
