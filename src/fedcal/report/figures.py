"""The figures. Each `plot_*` draws the data of one `prepare_*` on a new Figure, without pyplot."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

from fedcal.base.store import write_bytes
from fedcal.report.numbers import short_percent
from fedcal.report.prepare import ClientErrors, Curve, MethodErrors, Series, Skew
from fedcal.report.results import BASELINE, POOLED, base_name, in_two_lines

# One colour per meaning. The page replaces them by CSS variables, for its dark mode: see svg.py.
INK, MUTED, GRID, PAPER = "#1d2229", "#737c88", "#dfe3e8", "#ffffff"
ACCENT, GAP, NOISE = "#2f6fde", "#e0763a", "#b9c0c9"
LONGEST_NAME = 32  # characters of a client's name in a figure
ON_ACCENT = "#fefefe"  # text on a solid accent: the same in light and dark

STYLE: dict[Any, Any] = {
    "axes.prop_cycle": cycler(color=[ACCENT]),
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "hatch.linewidth": 0.6,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedcal",
}
styled = mpl.rc_context(STYLE)
DIAGONAL: dict[str, Any] = {"color": MUTED, "linewidth": 0.8, "linestyle": (0, (4, 3))}


@styled
def plot_reliability(curve: Curve, before: Curve | None) -> Figure:
    """Draw a reliability diagram: accuracy against confidence, and below it the number of samples.

    Args:
        curve: to draw.
        before: a curve to draw behind it, the model before calibration.
    """
    fig = Figure(figsize=(2.9, 3.5), layout="constrained")
    top, bottom = fig.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    draw_reliability(top, curve, before)
    # Most samples are in the last bin: on a linear scale the others would be invisible.
    bottom.stairs(curve.count, curve.edges, baseline=0.5, fill=True, color=MUTED, alpha=0.55)
    bottom.set(yscale="log", ylim=(0.7, None), xlabel="Confidence")
    bottom.yaxis.set_minor_locator(NullLocator())
    bottom.yaxis.set_major_formatter("{x:g}")
    bottom.grid(axis="x", visible=False)
    top.set_ylabel("Accuracy")
    bottom.set_ylabel("Samples")
    return fig


def draw_reliability(ax: Axes, curve: Curve, before: Curve | None = None) -> None:
    """Draw one reliability diagram on axes: accuracy in each bin, its gap to the confidence, and the band of noise."""
    full = curve.count > 0
    x, y, low, high = (values[full] for values in (curve.confidence, curve.accuracy, curve.low, curve.high))
    ax.plot([0, 1], [0, 1], **DIAGONAL)
    if curve.equal_widths:
        ax.stairs(curve.high, curve.edges, baseline=curve.low, fill=True, color=NOISE, alpha=0.5)
        ax.stairs(curve.accuracy, curve.edges, baseline=curve.confidence, fill=True, color=GAP, alpha=0.3)
    else:  # few and uneven bins: boxes would look like results
        ax.fill_between(x, low, high, color=NOISE, alpha=0.5, linewidth=0)
        ax.vlines(x, x, y, color=GAP, linewidth=4, alpha=0.45)
    if before is not None and before.method != curve.method:
        seen = before.count > 0
        ax.plot(before.confidence[seen], before.accuracy[seen], color=MUTED, linewidth=1)
    ax.plot(x, y, color=ACCENT)
    face = [PAPER if inside else ACCENT for inside in curve.in_band[full]]
    ax.scatter(x, y, 16, face, edgecolors=ACCENT, zorder=3, clip_on=False)
    _unit_square(ax)
    ax.set_title(in_two_lines(curve.method), loc="left", fontweight="bold")
    if np.isfinite(curve.ece):
        ax.set_title(f"ECE {short_percent(curve.ece)} %", loc="right", color=MUTED)


def draw_smooth(ax: Axes, measures: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
    """Draw an evaluation's smooth calibration curve with its 95 % band, and groups of samples with their intervals, on axes.

    Args:
        ax: the axes.
        measures: of one set of samples, with `calibration_curve` and `calibration_bins`.
        before: of the same samples before calibration, drawn behind.
    """
    ax.plot([0, 1], [0, 1], **DIAGONAL)
    if before and (curve := before.get("calibration_curve")):
        ax.plot(curve["predicted"], curve["value"], color=MUTED, linewidth=1)
    if curve := measures.get("calibration_curve"):
        x = curve["predicted"]
        ax.fill_between(x, curve["low"], curve["high"], color=ACCENT, alpha=0.18, linewidth=0)
        ax.plot(x, curve["value"], color=ACCENT)
    if bins := measures.get("calibration_bins"):
        ax.vlines(bins["predicted"], bins["low"], bins["high"], color=MUTED, linewidth=0.9)
        ax.plot(bins["predicted"], bins["value"], "o", color=INK, markersize=3)
    _unit_square(ax)


def _unit_square(ax: Axes) -> None:
    for ticks in (ax.set_xticks, ax.set_yticks):
        ticks((0, 0.25, 0.5, 0.75, 1), ("0", "", "0.5", "", "1"))
    ax.set(xlim=(0, 1), ylim=(0, 1))


@styled
def plot_ece(data: MethodErrors) -> Figure:
    """Draw the global ECE of each method, with its 95 % interval and its noise floor."""
    fig, ax = _method_rows(data.methods)
    at = np.arange(len(data.methods))
    ece, low, high, floor = (100 * values for values in (data.ece, data.low, data.high, data.floor))
    for y, method in enumerate(data.methods):
        colour = MUTED if method == BASELINE else ACCENT
        pooled = base_name(method) == POOLED
        bar = ax.barh(y, ece[y], 0.56, edgecolor=colour, facecolor=PAPER if pooled else colour, alpha=0.8)
        bar[0].set_hatch("/////" if pooled else None)
    reach = np.abs(np.stack([ece - low, high - ece]))
    ax.errorbar(ece, at, xerr=reach, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    _floor_marks(ax, floor)
    for y, (value, end) in enumerate(zip(data.ece, np.fmax(ece, high), strict=True)):
        if np.isfinite(value):
            ax.annotate(short_percent(value), (end, y), (5, 0), textcoords="offset points", va="center")
    ax.set_xlim(0, 1.12 * _largest(high, ece, floor))
    ax.set_xlabel("Global ECE, %")
    handles: list[Artist] = [Line2D([], [], color=INK, linewidth=1, label="95 % interval"), _floor_handle()]
    if POOLED in map(base_name, data.methods):
        label = "sees pooled calibration data"
        handles.append(Patch(facecolor=PAPER, edgecolor=ACCENT, hatch="/////", label=label))
    fig.legend(handles=handles, loc="outside lower left", ncols=3, columnspacing=1.2)
    return fig


@styled
def plot_clients(data: ClientErrors) -> Figure:
    """Draw the clients' ECEs: one row per method, one dot per client, filled if it is above that client's noise floor."""
    fig, ax = _method_rows(data.methods)
    jitter = (np.arange(len(data.clients)) * 0.618) % 1 - 0.5  # golden ratio: neighbours end up far apart
    ece, floor = 100 * data.ece, 100 * data.floor
    dot = 3.5 if len(data.clients) <= 40 else 2.6
    for y in range(len(data.methods)):
        noisy = ~(ece[y] > floor[y])
        for chosen, face in ((~noisy, ACCENT), (noisy, "none")):
            spots = ece[y, chosen], y + 0.5 * jitter[chosen]
            ax.plot(*spots, "o", color=ACCENT, markerfacecolor=face, markersize=dot, alpha=0.6, linewidth=0)
        worst = data.worst(y)
        if worst is not None:
            mean = np.nanmean(ece[y])
            ax.plot([mean, mean], [y - 0.36, y + 0.36], color=INK, linewidth=1.6)
            name = data.clients[worst]
            text = f"client {name}" if name.isdigit() else short_name(name)
            spot = (ece[y, worst], y + 0.5 * jitter[worst])
            ax.annotate(text, spot, (5, 0), textcoords="offset points", va="center", fontsize=7.5, color=MUTED)
    _floor_marks(ax, np.ma.masked_invalid(floor).mean(axis=1).filled(np.nan))
    ax.set_xlim(0, 1.25 * _largest(ece, floor))
    ax.set_xlabel("ECE at a client, %")
    handles = [
        Line2D([], [], color=ACCENT, marker="o", linewidth=0, label="client (hollow: in its noise)"),
        Line2D([], [], color=INK, linewidth=1.6, label="mean"),
        _floor_handle("mean floor"),
    ]
    fig.legend(handles=handles, loc="outside lower left", ncols=3, columnspacing=1.2)
    return fig


@styled
def plot_skew(data: Skew) -> Figure:
    """Draw the clients' label distributions: each class's share of the samples, counts where they fit, totals beside."""
    n_clients, n_classes = data.counts.shape
    fig = Figure(figsize=(5.2, float(np.clip(0.19 * n_clients + 0.9, 1.9, 5.4))), layout="constrained")
    grid, totals = fig.subplots(1, 2, sharey=True, width_ratios=(5, 1))
    # Alpha, not a fade to white: an empty cell shows the page's own background, light or dark.
    fade = LinearSegmentedColormap.from_list("fade", [(ACCENT, 0.0), (ACCENT, 1.0)])
    top = max(float(data.share.max()), 1e-9)
    # A square-root scale: with many classes a single large share would leave all others pale.
    norm = PowerNorm(0.5, 0, top)
    grid.imshow(data.share, cmap=fade, norm=norm, aspect="auto", interpolation="none")
    if n_clients <= 30 and n_classes <= 12:
        for c, k in np.ndindex(data.counts.shape):
            if data.counts[c, k]:
                colour = ON_ACCENT if norm(data.share[c, k]) > 0.72 else INK
                text = f"{data.counts[c, k]}"
                grid.text(k, c, text, ha="center", va="center_baseline", fontsize=7, color=colour)
    at, names = _sparse(data.classes, 10)
    slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len("".join(names)) > 40 else {}
    grid.set_xticks(at, names, **slanted)
    grid.set_yticks(*_sparse(data.clients, 24))
    grid.set(xlabel="Class", ylabel="Client")
    grid.grid(False)
    totals.barh(np.arange(n_clients), data.counts.sum(axis=1), 0.7, color=MUTED, alpha=0.55)
    totals.set_xlabel("Samples")
    totals.grid(axis="y", visible=False)
    totals.xaxis.set_major_locator(MaxNLocator(2, integer=True))
    totals.tick_params(labelleft=False)
    return fig


@styled
def plot_training(series: Series) -> Figure:
    """Draw one quantity by training round."""
    fig = Figure(figsize=(2.9, 2.1), layout="constrained")
    ax = fig.subplots()
    marker = "o" if len(series.rounds) == 1 else None
    ax.plot(series.rounds, series.values, color=ACCENT, marker=marker)
    ax.set_title(series.title, fontweight="bold")
    ax.set_xlabel("Round")
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.yaxis.set_major_locator(MaxNLocator(5))
    return fig


@styled
def save(fig: Figure, path: str | Path) -> Path:
    """Save a figure. The same figure gives the same bytes.

    Args:
        fig: the figure.
        path: the file; its ending (.png, .svg or .pdf) is the format.

    Returns:
        The path.
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    date = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    drawn = io.BytesIO()
    fig.savefig(drawn, format=kind, dpi=200, metadata=date)
    write_bytes(path, drawn.getvalue())
    return path


def _method_rows(methods: Sequence[str]) -> tuple[Figure, Axes]:
    """An empty chart with one horizontal row per method, the first on top."""
    fig = Figure(figsize=(4.8, 0.3 * len(methods) + 0.95), layout="constrained")
    ax = fig.subplots()
    ax.set_yticks(np.arange(len(methods)), [in_two_lines(method) for method in methods], color=INK)
    ax.set_ylim(len(methods) - 0.45, -0.55)
    ax.grid(axis="y", visible=False)
    return fig, ax


def _floor_marks(ax: Axes, floor: np.ndarray) -> None:
    at = np.arange(len(floor))
    ax.vlines(floor, at - 0.36, at + 0.36, color=GAP, linewidth=1.6)


def _floor_handle(label: str = "noise floor") -> Line2D:
    return Line2D([], [], color=GAP, linewidth=1.6, label=label)


def short_name(name: str) -> str:
    """A client's name as a figure has room for it: without its middle, if it is long; between two $ there is no formula."""
    shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}…{name[-8:]}"
    return shown.replace("$", r"\$")


def _largest(*arrays: np.ndarray) -> float:
    """The largest finite value; 1 if there is none, so that an empty chart still has an axis."""
    finite = np.concatenate([a[np.isfinite(a)].ravel() for a in arrays])
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def _sparse(names: Sequence[str], most: int) -> tuple[list[int], list[str]]:
    """Tick positions and labels: every name, or every n-th if there are more than `most`."""
    step = -(-len(names) // most)
    return list(range(0, len(names), step)), [short_name(name) for name in names[::step]]
