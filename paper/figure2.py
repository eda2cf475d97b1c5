"""Figure 2: ECE of five clients and of the server, IID and not, and a client's reliability beside its class density."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedcal.measure.reliability import Reliability
from paper.plan import figure2 as cells
from paper.present import Result, Table, by, metric, over_seeds, write
from paper.recording import Recording

__all__ = ["cells", "present"]


def present(results: Sequence[Result], out: Path, runs: Path) -> None:
    """figure2.{md,tex,png}; the reliability diagrams are of the first seed, of the client of highest ECE."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from fedcal.report.figures import ACCENT, GAP, MUTED, STYLE, save

    groups = by(results, "partition")
    rows, bars = [], {}
    for (partition,), some in groups.items():
        errors = np.array([result["methods"]["uncal"]["local"]["ece_by_client"] for result in some], float)
        server = over_seeds(some, metric("uncal"))
        floors = over_seeds(some, metric("uncal", "local", "ece_floor"))
        means = 100 * np.nanmean(errors, axis=0)
        kind = "IID" if partition == "iid" else "not IID (β = 0.1)"
        rows.append([kind, *(f"{mean:.2f}" for mean in means), floors, server])
        bars[kind] = (means, 100 * np.nanstd(errors, axis=0), server)
    head = ["", *(f"client {c + 1}" for c in range(5)), "their mean floor", "server"]
    write(out, "figure2", results, [Table("MNIST, MLP, 5 clients: ECE in %, mean over seeds", head, rows)])

    with rc_context(STYLE):
        fig = Figure(figsize=(6, 5.2), layout="constrained")
        grid = fig.add_gridspec(2, 2)
        axes = fig.add_subplot(grid[0, :])
        for i, (kind, (means, stds, server)) in enumerate(bars.items()):
            at, colour = np.arange(6) + (i - 0.5) * 0.4, (ACCENT, GAP)[i]
            axes.bar(at, [*means, server.mean], 0.38, yerr=[*stds, server.std], color=colour, label=kind)
        axes.set(ylabel="ECE, %", xticks=range(6), xticklabels=[*(f"client {c + 1}" for c in range(5)), "server"])
        axes.legend()
        for where, some, kind in zip((grid[1, 0], grid[1, 1]), groups.values(), bars, strict=True):
            axes = fig.add_subplot(where)
            record = Recording(runs / some[0]["name"])
            errors = some[0]["methods"]["uncal"]["local"]["ece_by_client"]
            worst = int(np.nanargmax(np.array(errors, float)))
            logits, labels = record.samples("test")[record.names[worst]]
            bins = Reliability.of(logits.softmax(dim=1), labels)
            confidence, accuracy = bins.curve()
            axes.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=0.8)
            axes.plot(confidence, accuracy, color=ACCENT, marker="o", label="reliability")
            counts = record.train_counts[worst].double()
            density = (counts / counts.max()).numpy()
            axes.plot(
                np.linspace(0, 1, len(density)), density, color=GAP, linestyle="--", label="class density, by label"
            )
            axes.set(title=f"{kind}: client {worst + 1}", xlabel="confidence")
        fig.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        save(fig, out / "figure2.png")
