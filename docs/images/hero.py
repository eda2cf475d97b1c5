"""Draw docs/images/hero.svg: python docs/images/hero.py federated-logits/cifar10-0.1.npz

CIFAR-10 over 20 clients at β = 0.1 (ResNet-14, FedAvg, 100 rounds, seed 0), 10 000 test images, calibrated by fedcal-plus on
4 992 held-out ones: accuracy 30.1 % before, 61.2 % with one scaler for all clients, 85.5 % with each client's personal one;
ECE 31.8, 1.5 and 1.1 % (a perfectly calibrated model would measure 1.2, 1.2 and 0.8 %). On a CPU, in two seconds. The archive
holds cal_ and test_logits, _labels and _client.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

import fedcal
from fedcal.measure.views import measure, unchanged
from fedcal.report import figures, prepare
from fedcal.report.svg import inline

HERE = Path(__file__)
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif'
TITLES = {
    "before": ("Before", "the model as trained"),
    "global": ("After", "one scaler for all clients"),
    "own": ("After, at each client", "its personal scaler"),
}


def clients(archive: np.lib.npyio.NpzFile, split: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Each client's logits and labels in one of the splits."""
    logits, labels = (torch.from_numpy(archive[f"{split}_{part}"]) for part in ("logits", "labels"))
    owner = archive[f"{split}_client"]
    return {str(c): (logits[owner == c].float(), labels[owner == c].long()) for c in np.unique(owner)}


with np.load(sys.argv[1]) as data:
    calibration, test = clients(data, "cal"), clients(data, "test")
scaler = fedcal.calibrate(calibration, "fedcal-plus")
found = measure(
    test,
    {
        "before": unchanged,
        "global": lambda _, logits: scaler.apply(logits, probs=False),
        "own": lambda client, logits: scaler.apply(logits, client, probs=False),
    },
)

with mpl.rc_context(figures.STYLE):
    fig = Figure(figsize=(8, 3.72))
    fig.text(
        0.028, 0.935, "Calibrated where the clients' data differ most", fontsize=14, fontweight="bold", va="center"
    )
    about = "CIFAR-10 over 20 clients with skewed labels (β = 0.1), 10 000 test images, fedcal-plus"
    fig.text(0.028, 0.868, about, fontsize=8.8, color=figures.MUTED, va="center")
    for panel, (view, (title, under)) in enumerate(TITLES.items()):
        ax = fig.add_axes((0.055 + 0.325 * panel, 0.115, 0.275, 0.275 * 8 / 3.72))
        scores = found.pooled(view).summary()
        print(view, {name: round(scores[name], 4) for name in ("accuracy", "ece", "ece_floor", "nll")})
        figures.draw_reliability(ax, prepare.curve_of(found.pooled(view).reliability, ""))
        for side in ("left", "right"):
            ax.set_title("", loc=side)
        ax.text(0, 1.115, title, fontsize=10.5, fontweight="bold")
        ax.text(0, 1.04, under, fontsize=8.5, color=figures.MUTED)
        at = {"ha": "left", "va": "baseline"}
        ax.text(0.035, 0.845, f"{100 * scores['accuracy']:.1f} %", fontsize=19, fontweight="bold", **at)
        ax.text(0.04, 0.77, "accuracy", fontsize=8.5, color=figures.MUTED, **at)
        far = scores["ece"] > 2 * scores["ece_floor"]
        colour = figures.GAP if far else figures.ACCENT
        ax.text(0.04, 0.635, f"ECE {100 * scores['ece']:.1f} %", fontsize=10.5, fontweight="bold", color=colour, **at)
        ax.text(0.04, 0.565, f"(perfect: {100 * scores['ece_floor']:.1f} %)", fontsize=8, color=figures.MUTED, **at)
        ax.set_xticks((0, 0.5, 1), ("0", "stated confidence", "1"))
        ax.set_yticks((0, 0.5, 1), ("0", "share that is right", "1") if panel == 0 else ("", "", ""))
        ax.tick_params(axis="y", rotation=90)
        for label, place in zip(ax.get_yticklabels(), ("bottom", "center", "top"), strict=True):
            label.set_va(place)

all_scores = [found.pooled(view).summary() for view in TITLES]
accuracy, ece = (" to ".join(f"{100 * of[name]:.1f}" for of in all_scores) for name in ("accuracy", "ece"))
label = f"Reliability diagrams before and after calibration: accuracy {accuracy} %, ECE {ece} %"
svg = inline(fig, "hero", label)
colours = (Path(figures.__file__).parent / "page.css").read_text(encoding="utf-8").split("* {")[0]
width, height = 72 * fig.get_size_inches()
style = f"<style>{' '.join(colours.split())} text {{ font-family: {FONT} }}</style>"
size = f'x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="10"'
card = f'<rect {size} style="fill: var(--paper); stroke: var(--line)"/>'
head, rest = svg.split(">", 1)
HERE.with_suffix(".svg").write_text(f'{head} xmlns="http://www.w3.org/2000/svg">{style}{card}{rest}', encoding="utf-8")
