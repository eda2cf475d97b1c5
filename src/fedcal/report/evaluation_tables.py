"""An evaluation as the tables that TRIPOD+AI asks for: Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedcal.assess.evaluation import Evaluation
from fedcal.base.store import write_bytes
from fedcal.errors import FedCalError
from fedcal.report.booktabs import latex_table
from fedcal.report.numbers import UNDEFINED

Json = Mapping[str, Any]
KINDS = (".md", ".tex", ".csv")
NAMES = {  # of the measures, in the order of the tables
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "accuracy": "Accuracy",
    "calibration_intercept": "Calibration intercept",
    "calibration_slope": "Calibration slope",
    "oe_ratio": "O/E ratio",
    "ici": "ICI",
    "e50": "E50",
    "e90": "E90",
    "ece": "ECE",
    "smooth_ece": "Smooth ECE",
    "brier": "Brier score",
    "brier_calibration": "Brier: calibration",
    "brier_discrimination": "Brier: discrimination",
    "brier_uncertainty": "Brier: uncertainty",
    "nll": "NLL",
    "prevalence": "Prevalence",
    "sensitivity": "Sensitivity",
    "specificity": "Specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "net_benefit": "Net benefit",
}
SHORT = ("auroc", "calibration_intercept", "calibration_slope", "oe_ratio", "ici", "brier", "net_benefit")
AT_THRESHOLD = ("sensitivity", "specificity", "ppv", "npv", "net_benefit")


class Table(NamedTuple):
    """A table: title, head, rows of text."""

    title: str
    head: list[str]
    rows: list[list[str]]


def cell(estimate: Json | None, digits: int = 2) -> str:
    """A value with its interval: 0.84 (0.81 to 0.87)."""
    if not estimate or estimate.get("value") is None:
        return UNDEFINED
    value, low, high = (estimate.get(end) for end in ("value", "low", "high"))
    if low is None or high is None:
        return f"{value:z.{digits}f}"
    return f"{value:z.{digits}f} ({low:z.{digits}f} to {high:z.{digits}f})"


def digits_of(name: str) -> int:
    """Errors are small: a third digit."""
    return 2 if name in ("auroc", "auprc", "accuracy", "calibration_intercept", "calibration_slope", "oe_ratio") else 3


def sets(result: Evaluation) -> Iterator[tuple[str, str, Json]]:
    """Every set of samples: its kind, its name, its measures."""
    yield "pooled", "All sites", result.pooled
    yield from (("site", name, one) for name, one in result.sites.items())
    yield from (("group", name, one) for name, one in result.groups.items())
    for site, groups in result.site_groups.items():
        yield from (("site and group", f"{site}, {name}", one) for name, one in groups.items())


def tables(result: Evaluation) -> list[Table]:
    """Performance overall, by site and subgroup, at thresholds, by class, and the spread over sites."""
    pooled = result.pooled
    found = [
        Table(
            "Performance with 95 % intervals",
            ["Measure", "All sites" if pooled["n"] is None else f"All sites (n = {pooled['n']})"],
            [[label, cell(pooled[key], digits_of(key))] for key, label in NAMES.items() if key in pooled],
        ),
        Table(
            "Performance by site and subgroup",
            ["", "n", "Events", *(NAMES[key] for key in SHORT)],
            [set_row(name, one) for _, name, one in sets(result)],
        ),
    ]
    if pooled.get("thresholds"):  # None where few samples hide them
        rows = [[f"{one['threshold']:g}", *(cell(one[key]) for key in AT_THRESHOLD)] for one in pooled["thresholds"]]
        found.append(
            Table("Decisions at thresholds, all sites", ["Threshold", *(NAMES[key] for key in AT_THRESHOLD)], rows)
        )
    if pooled.get("classes"):
        rows = [set_row(name, one) for name, one in pooled["classes"].items()]
        found.append(
            Table("Each class against the rest", ["Class", "n", "Events", *(NAMES[key] for key in SHORT)], rows)
        )
    if result.spread:
        rows = [[NAMES[key], *spread_cells(one)] for key, one in result.spread.items()]
        found.append(Table("Spread over sites", ["Measure", "Sites", "Mean", "Prediction interval", "I²"], rows))
    return found


def spread_cells(summary: Json) -> list[str]:
    """The number of sites, the mean over sites, where a new site is to be expected, and I²."""
    low, high = (f"{summary['prediction'][end]:.2f}" for end in ("low", "high"))
    return [str(summary["sites"]), cell(summary["mean"]), f"{low} to {high}", f"{100 * summary['i2']:.0f} %"]


def set_row(name: str, measures: Json) -> list[str]:
    """A row of the table by site and subgroup."""
    counts = [UNDEFINED if measures.get(key) is None else str(measures[key]) for key in ("n", "events")]
    return [name, *counts, *(cell(measures.get(key), digits_of(key)) for key in SHORT)]


def escape_markdown(text: str) -> str:
    """Write text so that it stays in its cell, and is no tag."""
    return "".join(f"\\{c}" if c in "\\|<" else c for c in " ".join(text.split()))


def as_markdown(result: Evaluation) -> str:
    """All tables in Markdown."""
    parts = []
    for table in tables(result):
        lines = [table.head, ["---", *("---:" for _ in table.head[1:])], *table.rows]
        body = "\n".join(f"| {' | '.join(map(escape_markdown, line))} |" for line in lines)
        parts.append(f"**{table.title}**\n\n{body}\n")
    return "\n".join(parts)


def as_latex(result: Evaluation) -> str:
    """All tables in LaTeX, with booktabs."""
    return "\n".join(latex_table(table.head, table.rows, table.title) for table in tables(result)).replace("²", "$^2$")


def as_csv(result: Evaluation) -> str:
    """Every measure of every set of samples, a row each."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["set", "name", "n", "measure", "value", "low", "high"])
    for kind, name, one in sets(result):
        for key in NAMES:
            if key in one:
                rows.writerow([kind, name, one.get("n"), key, *(one[key][end] for end in ("value", "low", "high"))])
    return text.getvalue()


def table_files(path: Path) -> list[Path]:
    """The files that `save_tables` writes: one by its ending, or all three kinds in a folder, which has no ending.

    Raises:
        FedCalError: there is no table of that ending.
    """
    if path.suffix and path.suffix.lower() not in KINDS:
        raise FedCalError(f"{path}: tables are written as {', '.join(KINDS)}, or to a folder, not {path.suffix!r}")
    return [path] if path.suffix else [path / f"evaluation{kind}" for kind in KINDS]


def save_tables(result: Evaluation, path: Path) -> list[Path]:
    """Write the tables, and return their files."""
    make = {".md": as_markdown, ".tex": as_latex, ".csv": as_csv}
    files = table_files(path)
    for file in files:
        write_bytes(file, make[file.suffix.lower()](result).encode())
    return files
