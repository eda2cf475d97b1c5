"""Figure 4: mean local, worst local and global ECE on MNIST as skew grows, with FedCal's ablations and the baselines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedcal.simulate.config import Config
from paper.plan import BETAS, paper_cells
from paper.present import LABELS, Result, Table, by, metric, over_seeds, write

DASHES = {
    "uncal": "-", "val-ts": "--", "ens": ":", "avg-t": "-.", "lr-ts": (0, (1, 3)), "fedcal": "-", "fedcal-no-wm": "--",
    "fedcal-small": ":", "fedcal-literal": "-.", "fedcal-plus": "-",
}  # fmt: skip
PANELS = (
    ("own", "ece", "mean local ECE, %"),
    ("own", "worst_ece", "worst local ECE, %"),
    ("global", "ece", "global ECE, %"),
)

__all__ = ["cells", "present"]


def cells(seeds: Sequence[int], device: str, quick: bool) -> list[Config]:
    """Table 1's MNIST row."""
    return paper_cells("mnist", BETAS, seeds, device, quick)


def present(results: Sequence[Result], out: Path) -> None:
    """figure4.{md,tex,png}. Local errors are with each client's personal scaler, as the paper's."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    from fedcal.report.figures import ACCENT, GAP, MUTED, STYLE, save

    groups = dict(sorted(by(results, "beta").items(), reverse=True))
    x = [-np.log(beta) for (beta,) in groups]
    tables, lines = [], {}
    for kind, key, title in PANELS:
        rows = []
        for name in DASHES:
            found = [over_seeds(some, metric(name, kind, key)) for some in groups.values()]
            if all(found):
                lines[key, kind, name] = [spread.mean for spread in found if spread]
                rows.append([LABELS[name], *found])
        tables.append(Table(f"MNIST, CNN: {title}", ["method", *(f"β={beta:g}" for (beta,) in groups)], rows))
    write(out, "figure4", results, tables)

    with rc_context(STYLE):
        fig = Figure(figsize=(9, 3.2), layout="constrained")
        panels = fig.subplots(1, 3)
        for axes, (kind, key, title) in zip(panels, PANELS, strict=True):
            for name, dash in DASHES.items():
                if (key, kind, name) in lines:
                    ours, family = name == "fedcal-plus", name.startswith("fedcal")
                    colour = GAP if ours else ACCENT if family else MUTED
                    how = {"color": colour, "linestyle": dash, "marker": "o", "markersize": 2.5}
                    axes.plot(x, lines[key, kind, name], **how, label=LABELS[name])
            axes.set(title=title, xlabel="−log β", yscale="log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        panels[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
        save(fig, out / "figure4.png")
