"""The figures of an evaluation: calibration plot, decision curve, forest plot. All they show is in the evaluation's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedcal.report.figures import ACCENT, DIAGONAL, GAP, INK, MUTED, NOISE, draw_smooth, short_name, styled
from fedcal.report.prepare import floats

Json = Mapping[str, Any]


@styled
def plot_calibration(measures: Json, title: str, before: Json | None = None, top: bool = False) -> Figure:
    """Draw observed against predicted: the smooth curve with its 95 % band, and groups of samples with their intervals.

    Args:
        measures: of one set of samples.
        title: above the plot.
        before: measures of the same samples before calibration, drawn behind.
        top: whether predictions are confidences in the top class, and not probabilities of class 1.
    """
    fig = Figure(figsize=(3.2, 3.2), layout="constrained")
    ax: Axes = fig.subplots()
    draw_smooth(ax, measures, before)
    ax.set(xlabel="Confidence" if top else "Predicted", ylabel="Accuracy" if top else "Observed", aspect="equal")
    ax.set_title(short_name(title), fontweight="bold")
    return fig


@styled
def plot_decisions(measures: Json) -> Figure:
    """Draw net benefit by threshold, with its 95 % band, against treating everybody and nobody."""
    curve = measures["decision_curve"]
    fig = Figure(figsize=(4.4, 3.2), layout="constrained")
    ax: Axes = fig.subplots()
    t, value, low, high, everybody = (floats(curve[key]) for key in ("threshold", "value", "low", "high", "treat_all"))
    ax.axhline(0, color=MUTED, linewidth=1)
    ax.plot(t, everybody, color=GAP, linewidth=1)
    ax.fill_between(t, low, high, color=ACCENT, alpha=0.18, linewidth=0)
    ax.plot(t, value, color=ACCENT)
    reach = max(float(np.nanmax(np.append(value, everybody[0]))), 0.02)
    ax.set(xlim=(0, 1), ylim=(-0.35 * reach, 1.15 * reach), xlabel="Threshold", ylabel="Net benefit")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    return fig


@styled
def plot_forest(
    rows: Sequence[tuple[str, Json]], title: str, reference: float | None = None, log: bool = False
) -> Figure:
    """Draw one measure of several sets of samples: a dot with its 95 % interval in each row.

    Args:
        rows: names and estimates; an estimate with only `low` and `high` is a range without a value, and one without any of
            them says whether it is `hidden`.
        title: the measure.
        reference: the value of a calibrated model, as a line.
        log: whether the scale is logarithmic.
    """
    fig = Figure(figsize=(3.6, 0.24 * len(rows) + 0.75), layout="constrained")
    ax: Axes = fig.subplots()
    if reference is not None:
        ax.axvline(reference, **DIAGONAL)
    for y, (_, one) in enumerate(rows):
        value, low, high = one.get("value"), one.get("low"), one.get("high")
        colour = ACCENT if y else INK
        if low is not None and high is not None:
            if value is None:
                ax.plot([low, high], [y, y], color=NOISE, linewidth=5, solid_capstyle="butt")
            else:
                ax.plot([low, high], [y, y], color=colour, linewidth=1.2)
        elif value is None:
            spot = {"transform": ax.get_yaxis_transform(), "va": "center", "fontsize": 7.5, "color": MUTED}
            ax.text(0.08, y, "hidden" if one.get("hidden") else "no value", **spot)
        if value is not None:
            ax.plot([value], [y], "o" if y else "D", color=colour, markersize=4)
    known = floats([end for _, one in rows for end in (one.get("low"), one.get("high"), one.get("value"))])
    known = known[np.isfinite(known) & ((known > 0) | (not log))]
    if log:
        ax.set_xscale("log")
        at = _log_ticks(known)
        ax.set_xticks(at, [f"{tick:g}" for tick in at])
        ax.set_xticks([], minor=True)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_yticks(np.arange(len(rows)), [short_name(name) for name, _ in rows], color=INK)
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.grid(axis="y", visible=False)
    ax.set_title(title, fontweight="bold")
    return fig


def _log_ticks(values: np.ndarray) -> list[float]:
    """Round numbers within the values, few enough to stand side by side; 1 if there are none."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 1.0)
    fine, middle = (0.5, 0.6, 0.75, 0.9, 1.0, 1.2, 1.5, 2.0), (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
    coarse = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
    widest = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
    steps = fine if high < 2.5 * low else middle if high < 6 * low else coarse if high < 50 * low else widest
    return [tick for tick in steps if low <= tick <= high] or [1.0]
