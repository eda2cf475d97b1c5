"""The figures of the story: one reliability diagram per card, and before and after at each client."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedcal.report.figures import ACCENT, GAP, INK, MUTED, draw_reliability, short_name, styled
from fedcal.report.story import ClientChange, Panel


@styled
def plot_panel(panel: Panel) -> Figure:
    """Draw one reliability diagram, without a title: the page has it."""
    fig = Figure(figsize=(3, 2.85), layout="constrained")
    ax: Axes = fig.subplots()
    draw_reliability(ax, panel.curve)
    for side in ("left", "right"):
        ax.set_title("", loc=side)
    ax.set(xlabel="Stated confidence", ylabel="Share that is right")
    at = (0, 0.25, 0.5, 0.75, 1)
    ax.set_xticks(at, ("0", "", "50 %", "", "100 %"))
    ax.set_yticks(at, ("", "", "50 %", "", "100 %"))
    return fig


@styled
def plot_change(data: ClientChange) -> Figure:
    """Draw one measure at each client on a new figure."""
    fig = Figure(figsize=(3.6, 0.23 * len(data.clients) + 1.1), layout="constrained")
    handles = draw_change(fig.subplots(), data)
    fig.legend(handles=handles, loc="outside lower left", ncols=3, columnspacing=1.2, handletextpad=0.2)
    return fig


def draw_change(ax: Axes, data: ClientChange) -> list[Line2D]:
    """Draw one measure at each client: a grey dot before, a blue one after, hollow where samples are too few to judge.

    Of an ECE, an orange mark is what a perfectly calibrated model would show.

    Returns:
        The entries of a legend.
    """
    rows = len(data.clients)
    at = np.arange(rows)
    ax.hlines(at, data.before, data.after, color=MUTED, linewidth=1, alpha=0.6)
    if data.floor is not None:
        ax.vlines(data.floor, at - 0.32, at + 0.32, color=GAP, linewidth=1.6)
    for values, colour in ((data.before, MUTED), (data.after, ACCENT)):
        face = ["none" if noise else colour for noise in data.noise]
        ax.scatter(values, at, 20, face, edgecolors=colour, zorder=3, clip_on=False)
    ax.set_yticks(at, [f"{short_name(name)} ({n})" for name, n in zip(data.clients, data.n, strict=True)], color=INK)
    ax.set_ylim(rows - 0.4, -0.6)
    ax.grid(axis="y", visible=False)
    known = np.append(data.before, data.after)
    reach = known[np.isfinite(known)]
    if data.title.startswith("Accuracy"):
        ax.set_xlim(min(float(reach.min()) - 3, 95) if len(reach) else 0, 101)
    else:
        ax.set_xlim(0, max(1.08 * float(reach.max()), 1) if len(reach) else 1)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    ax.set_title(data.title, loc="left", fontweight="bold")
    shown = [("before", MUTED, "o"), ("after", ACCENT, "o")] if np.isfinite(data.before).any() else []
    shown += [("a perfect model", GAP, "|")] if data.floor is not None else []
    return [
        Line2D([], [], color=colour, marker=marker, markersize=4 if marker == "o" else 8, linewidth=0, label=label)
        for label, colour, marker in shown
    ]
