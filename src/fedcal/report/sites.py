"""How good the probabilities of some sites are, as one small self-contained page (`fedcal evaluate --report`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from fedcal.base.store import write_bytes
from fedcal.measure.tally import Tally
from fedcal.report import figures
from fedcal.report.page import environment
from fedcal.report.prepare import Curve
from fedcal.report.svg import inline

MOST = 24  # sites that get a diagram of their own


def curve(name: str, tally: Tally) -> Curve:
    """A tally as a reliability diagram."""
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
    """The table, and a diagram of each tally, with the one `before` behind it."""
    drawn = []
    for number, (name, tally) in enumerate(list(after.items())[: MOST + 1]):
        behind = curve("before", before[name]) if before else None
        figure, _ = figures.plot_reliability([curve(name, tally)], behind, legend=False)
        drawn.append(Markup(inline(figure, f"site-{number}", f"Reliability diagram of {name}")))  # escaped there
    page = environment().get_template("sites.html.j2")
    text = page.render(title=title, head=head, rows=rows, figures=drawn, before=before is not None)
    write_bytes(path, text.encode())
