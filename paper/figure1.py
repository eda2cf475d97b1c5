"""Figure 1, right: accuracy and ECE against β under FedAvg with 10 clients, and of centralised learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paper.plan import figure1 as cells
from paper.present import Result, Table, by, metric, over_seeds, write

__all__ = ["cells", "present"]


def present(results: Sequence[Result], out: Path) -> None:
    """figure1.{md,tex,png}."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from fedcal.report.figures import ACCENT, GAP, MUTED, STYLE, save

    rows, drawn = [], {}
    for (data, model, algorithm, beta), some in by(results, "data", "model", "algorithm", "beta").items():
        found = [over_seeds(some, metric("uncal", key=key)) for key in ("accuracy", "ece", "ece_floor")]
        ours = over_seeds(some, metric("fedcal-plus"))
        rows.append([f"{data} {model}", "centralised" if algorithm == "centralised" else f"β={beta:g}", *found, ours])
        drawn[data, algorithm, beta] = (*found[:2], ours)
    head = ["", "", "accuracy, %", "ECE, %", "floor", "ECE with fedcal-plus"]
    write(out, "figure1", results, [Table("FedAvg, 10 clients, and centralised learning", head, rows)])

    with rc_context(STYLE):
        sets = list(dict.fromkeys(data for data, _, _ in drawn))
        fig = Figure(figsize=(2.9 * len(sets), 4.2), layout="constrained")
        for column, data in zip(fig.subplots(2, len(sets), squeeze=False, sharex=True).T, sets, strict=True):
            betas = sorted((beta for d, a, beta in drawn if (d, a) == (data, "fedavg")), reverse=True)
            for i, (axes, label) in enumerate(zip(column, ("accuracy, %", "ECE, %"), strict=True)):
                line = [drawn[data, "fedavg", beta][i] for beta in betas]
                means, errors = [s.mean for s in line], [s.std for s in line]
                axes.errorbar(range(len(betas)), means, errors, color=ACCENT, marker="o", label="FedAvg")
                if i:
                    ours = [drawn[data, "fedavg", beta][2].mean for beta in betas]
                    axes.plot(range(len(betas)), ours, color=GAP, marker="s", label="with fedcal-plus")
                for (d, algorithm, _), point in drawn.items():
                    if (d, algorithm) == (data, "centralised"):
                        axes.axhline(point[i].mean, color=MUTED, linestyle="--", label="centralised")
                axes.set(ylabel=label, xticks=range(len(betas)), xticklabels=[f"{b:g}" for b in betas])
            column[0].set_title(data)
            column[1].set_xlabel("β (less is more skew)")
            column[1].legend()
        save(fig, out / "figure1.png")
