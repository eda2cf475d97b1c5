"""The figures of the story: one reliability diagram per card, and before and after at each client."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedcal.report.figures import ACCENT, INK, MUTED, draw_reliability, styled
from fedcal.report.story import ClientChange, Panel


@styled
def plot_panel(panel: Panel) -> Figure:
    """Draw one reliability diagram, without a title: the page has it."""
    fig = Figure(figsize=(3, 2.85), layout="constrained")
    ax: Axes = fig.subplots()
    draw_reliability(ax, panel.curve)
    ax.set_title("")
    ax.set_title("", loc="right")
    ax.set(xlabel="Stated confidence", ylabel="Share that is right")
    at = (0, 0.25, 0.5, 0.75, 1)
    ax.set_xticks(at, ("0", "", "50 %", "", "100 %"))
    ax.set_yticks(at, ("", "", "50 %", "", "100 %"))
    return fig


@styled
def plot_change(data: ClientChange) -> Figure:
    """Draw one measure at each client: a grey dot before, a blue one after, hollow where samples are too few to judge."""
    rows = len(data.clients)
    fig = Figure(figsize=(3.6, 0.23 * rows + 1.0), layout="constrained")
    ax: Axes = fig.subplots()
    at = np.arange(rows)
    ax.hlines(at, data.before, data.after, color=MUTED, linewidth=1, alpha=0.6)
    for values, colour in ((data.before, MUTED), (data.after, ACCENT)):
        face = ["none" if noise else colour for noise in data.noise]
        ax.scatter(values, at, 20, face, edgecolors=colour, zorder=3, clip_on=False)
    ax.set_yticks(at, [f"{name} ({n})" for name, n in zip(data.clients, data.n, strict=True)], color=INK)
    ax.set_ylim(rows - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    known = np.append(data.before, data.after)
    reach = known[np.isfinite(known)]
    if data.title.startswith("Accuracy"):
        ax.set_xlim(min(float(reach.min()) - 3, 95) if len(reach) else 0, 101)
    else:
        ax.set_xlim(0, max(1.08 * float(reach.max()), 1) if len(reach) else 1)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_title(data.title, fontweight="bold")
    handles = [
        Line2D([], [], color=colour, marker="o", linewidth=0, label=label)
        for colour, label in ((MUTED, "before"), (ACCENT, "after"))
    ]
    fig.legend(handles=handles, loc="outside lower left", ncols=2, columnspacing=1.2)
    return fig
