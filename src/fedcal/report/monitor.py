"""The page of `fedcal monitor`: the verdict, what to do, and the evidence over time. The same state gives the same bytes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedcal.base.store import write_bytes
from fedcal.monitor.verdict import ADVICE, Action, Finding, Null, Verdict
from fedcal.report.figures import ACCENT, GAP, INK, MUTED, short_name, styled
from fedcal.report.numbers import percent
from fedcal.report.page import fill_template
from fedcal.report.svg import inline

MOST = 24  # sites that get a plot
COLOURS = {Null.CALIBRATION: ACCENT, Null.LABELS: GAP, Null.PREDICTIONS: MUTED}
NAMES = {Null.CALIBRATION: "probabilities", Null.LABELS: "label counts", Null.PREDICTIONS: "predictions alone"}
HEAD = ("Site", "tested", "batches", "samples", "evidence now", "highest", "alarm with", "what explains it most")
TEXT = (HEAD[1], HEAD[-1])  # columns of words, which begin at the left
ALL_SITES = "All sites"
COMMANDS = {
    Action.NOTHING: "",
    Action.NEW_OFFSET: "fedcal client finish scaler.safetensors FILE --name {site} --out site.safetensors",
    Action.NEW_FIT: "fedcal calibrate FILE... --out calibrated",
    Action.COLLECT_LABELS: "fedcal monitor sums FILE --name {site} --scaler scaler.safetensors --out batch.sums",
}


def write_page(path: Path, verdict: Verdict) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        verdict: what the monitor says.
    """
    write_bytes(path, render(verdict).encode())


def render(verdict: Verdict) -> str:
    """The page as HTML."""
    by_site: dict[str, list[Finding]] = {}
    for one in verdict.findings:
        by_site.setdefault(one.site or ALL_SITES, []).append(one)
    order = sorted(by_site, key=lambda site: (site != ALL_SITES, -max(one.peak for one in by_site[site])))
    figures = [
        inline(plot_evidence(site, by_site[site], verdict.alpha), f"site-{i}", _label(site, by_site[site]))
        for i, site in enumerate(order[:MOST])
    ]
    steps = [
        (f"{site or ALL_SITES}: {ADVICE[action]}", COMMANDS[action].format(site=shlex.quote(site or "SITE")))
        for site, action in verdict.actions.items()
    ]
    return fill_template(
        "monitor.html.j2",
        verdict=verdict,
        steps=steps or [(ADVICE[Action.NOTHING], "")],
        figures=figures,
        left_out=max(0, len(order) - MOST),
        line=math.log10(1 / verdict.alpha),
        head=HEAD,
        text=TEXT,
        status=_status(verdict),
        within=[percent(1 / (1 + math.exp(shift)), 0, sign=True) for shift in (verdict.tolerance, -verdict.tolerance)],
        rows=[_row(one) for site in order for one in by_site[site]],
    )


def _status(verdict: Verdict) -> str:
    """The colour of the dot, as a CSS class: red, orange or green; grey while a site has sent nothing."""
    if any(one.drifted and one.null is Null.CALIBRATION for one in verdict.findings):
        return "not-calibrated"
    if verdict.drifted:
        return "in-part"
    return "calibrated" if verdict.findings and not verdict.sentences else ""


def _label(site: str, findings: Sequence[Finding]) -> str:
    alarms = [NAMES[one.null] for one in findings if one.drifted]
    return f"Evidence over time, {site}: {'alarm by ' + ', '.join(alarms) if alarms else 'no alarm'}"


def _row(one: Finding) -> tuple[object, ...]:
    powers = (f"{value / math.log(10):.1f}" for value in (one.evidence, one.peak))
    counts = (f"{one.batches:,}", f"{one.samples:,}")
    cause = one.cause if one.drifted else "–"
    return (one.site or ALL_SITES, NAMES[one.null], *counts, *powers, one.alarm_at or "–", cause, one.drifted)


@styled
def plot_evidence(site: str, findings: Sequence[Finding], alpha: float) -> Figure:
    """Draw the evidence after every batch, in powers of ten, and the line from which on it is an alarm.

    Args:
        site: above the plot.
        findings: of the site, one for each test.
        alpha: the false-alarm probability.
    """
    fig = Figure(figsize=(3.4, 2.3), layout="constrained")
    ax: Axes = fig.subplots()
    line = math.log10(1 / alpha)
    ax.axhline(line, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    top = line
    for one in findings:
        value = np.array(one.curve) / math.log(10)
        top = max(top, float(value.max()))
        ax.plot(np.arange(1, len(value) + 1), value, color=COLOURS[one.null], marker="o" if len(value) == 1 else None)
        if one.alarm_at is not None:
            at = one.names.index(one.alarm_at)
            ax.plot([at + 1], [value[at]], "o", color=COLOURS[one.null], markersize=4)
    longest = max(len(one.curve) for one in findings)
    ax.set_ylim(-4.5, max(3.0, 1.08 * top))
    ax.set_xlim(0.5, longest + 0.5)
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True, min_n_ticks=1))
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.set(xlabel="Batches", ylabel="Evidence (powers of ten)")
    ax.set_title(short_name(site), fontweight="bold")
    return fig
