"""How good the probabilities of some sites are: as table rows, as JSON, and as one small self-contained page.

Used by `fedcal calibrate` and `fedcal evaluate`. All three take tallies by name, `Measured.rows`: all sites together first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedcal.base.store import finite, write_bytes
from fedcal.measure.tally import Tally
from fedcal.measure.views import POOLED
from fedcal.report import figures
from fedcal.report.numbers import number, percent
from fedcal.report.page import environment
from fedcal.report.prepare import Curve
from fedcal.report.svg import inline

MOST = 24  # sites that get a diagram of their own
# floor: of the ECE; class: classwise ECE
COLUMNS = ["", "n", "ECE %", "95 %", "floor %", "class %", "NLL", "Brier", "right %"]


def table_row(name: str, tally: Tally) -> list[str]:
    """One row of a table with `COLUMNS`."""
    s = finite(tally.summary(interval=True))
    ece, low, high, floor, classwise, accuracy = (
        percent(s[key]) for key in ("ece", "ece_low", "ece_high", "ece_floor", "classwise_ece", "accuracy")
    )
    interval = f"{low}–{high}"
    return [name, str(tally.n), ece, interval, floor, classwise, number(s["nll"]), number(s["brier"]), accuracy]


def metrics_json(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """Every metric, of all clients together and of each client, and the worst client; undefined metrics are None."""
    rows = {name: {"n": tally.n, **finite(tally.summary(interval=True))} for name, tally in tallies.items()}
    whole = rows.pop(POOLED)
    worst = max(rows, key=lambda name: rows[name]["ece"])
    return {"pooled": whole, "clients": rows, "worst_client": worst, "worst_ece": rows[worst]["ece"]}


def curve(name: str, tally: Tally) -> Curve:
    """The reliability diagram of a tally."""
    bins = tally.reliability
    return Curve(name, bins.ece(), bins.edges, bins.count.astype(float), *bins.curve(), *bins.band())


def write_sites(
    path: Path,
    title: str,
    head: list[str],
    rows: list[list[str]],
    after: Mapping[str, Tally],
    before: Mapping[str, Tally] | None = None,
) -> None:
    """Write the page: the table, and a reliability diagram of each of the first `MOST` sites.

    Args:
        path: the HTML file.
        title: its heading.
        head: the table's columns.
        rows: the table's rows.
        after: the tallies to draw, by name.
        before: tallies of the same names, drawn behind them.
    """
    drawn = []
    for i, (name, tally) in enumerate(list(after.items())[: MOST + 1]):
        behind = curve("before", before[name]) if before else None
        figure, _ = figures.plot_reliability([curve(name, tally)], behind, legend=False)
        drawn.append(Markup(inline(figure, f"site-{i}", f"Reliability diagram of {name}")))  # escaped there
    page = environment().get_template("sites.html.j2")
    text = page.render(title=title, head=head, rows=rows, figures=drawn, before=before is not None)
    write_bytes(path, text.encode())
