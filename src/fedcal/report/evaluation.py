"""The page of `fedcal evaluate`: one self-contained file. The same evaluation gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedcal.assess.evaluation import Evaluation
from fedcal.base.store import write_bytes
from fedcal.report.evaluation_figures import plot_calibration, plot_decisions, plot_forest
from fedcal.report.evaluation_tables import NAMES, cell, digits_of, tables
from fedcal.report.page import environment
from fedcal.report.svg import inline

MOST = 24  # sites that get a plot of their own
# (measure, value of a calibrated model, logarithmic scale)
FORESTS: tuple[tuple[str, float | None, bool], ...] = (
    ("auroc", None, False),
    ("calibration_slope", 1.0, False),
    ("oe_ratio", 1.0, True),
    ("ici", 0.0, False),
)
TILES = ("auroc", "calibration_slope", "oe_ratio", "ici")

Json = Mapping[str, Any]


def write_page(path: Path, result: Evaluation, title: str, before: Evaluation | None = None) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        result: the evaluation.
        title: what was evaluated.
        before: the evaluation of the same samples before calibration.
    """
    write_bytes(path, render(result, title, before).encode())


def render(result: Evaluation, title: str, before: Evaluation | None = None) -> str:
    """The page as HTML."""
    top = len(result.classes) > 2
    pooled = result.pooled
    figures = {
        "calibration": _svg(
            plot_calibration(pooled, "All sites", before.pooled if before else None, top),
            "calibration",
            "Calibration plot of all sites: " + result.verdict[0],
        ),
        "decisions": _svg(plot_decisions(pooled), "decisions", "Decision curve of all sites")
        if pooled.get("decision_curve")
        else None,
        "forests": [_forest(result, *one) for one in FORESTS],
        "sites": _sites(result, before, top),
    }
    return (
        environment()
        .get_template("evaluation.html.j2")
        .render(
            title=title,
            result=result,
            headline=result.verdict[0],
            rest=result.verdict[1:],
            tiles=[_tile(pooled, key, before.pooled if before else None) for key in TILES],
            figures=figures,
            tables=tables(result),
            before=before is not None,
            tests=pooled.get("tests") or {},
        )
    )


def _svg(figure: Any, key: str, label: str) -> Markup:
    return Markup(inline(figure, key, label))  # the label is escaped there


def _tile(measures: Json, key: str, before: Json | None) -> dict[str, str]:
    one = measures[key]
    value = "–" if one["value"] is None else f"{one['value']:.{digits_of(key)}f}"
    interval = "" if one["low"] is None else f"{one['low']:.{digits_of(key)}f} to {one['high']:.{digits_of(key)}f}"
    earlier = cell(before[key], digits_of(key)).split(" ")[0] if before else ""
    return {"name": NAMES[key], "value": value, "interval": interval, "before": earlier}


def _forest(result: Evaluation, key: str, reference: float | None, log: bool) -> Markup:
    """One measure of all samples, of every site with the summary over sites, and of every group."""
    rows: list[tuple[str, Json]] = [("All sites", result.pooled[key])]
    rows += [(name, one[key]) for name, one in list(result.sites.items())[:MOST]] if len(result.sites) > 1 else []
    if key in result.spread:
        rows.append(("a new site (95 %)", result.spread[key]["prediction"]))
    rows += [(name, one[key]) for name, one in result.groups.items()]
    label = f"{NAMES[key]} of all sites, of each site and of each group, with 95 % intervals"
    return _svg(plot_forest(rows, NAMES[key], reference, log), f"forest-{key}", label)


def _sites(result: Evaluation, before: Evaluation | None, top: bool) -> list[Markup]:
    """Calibration plots of the first sites and groups."""
    shown = [*result.sites.items()] if len(result.sites) > 1 else []
    earlier = {**before.sites, **before.groups} if before else {}
    drawn = [(name, one) for name, one in [*shown, *result.groups.items()] if not one.get("hidden") and one["n"]]
    return [
        _svg(plot_calibration(one, name, earlier.get(name), top), f"site-{i}", f"Calibration plot of {name}")
        for i, (name, one) in enumerate(drawn[:MOST])
    ]
