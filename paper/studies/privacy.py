"""What differential privacy costs: the share of `fedcal-plus`'s NLL gain that a private fit keeps, against ε.

    python -m paper.studies.privacy FILE.npz … [--where central …] [--out FILE.json] [--figure FILE.png]

Each file holds a federation (paper/logits.py). Per file, a private fit is drawn ten times for every ε and for noise
that is central, distributed and local; sample level, δ = 1e-5. The gain is the NLL of the test set before calibration minus
that after, under the global scaler; shares are of the gain of `fedcal-plus` without privacy, summed over the files. Noise
comes from the operating system, so that figures differ a little from run to run.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

import fedcal
from fedcal.report.figures import STYLE
from paper.logits import Split, read
from paper.results import write

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
WHERE: tuple[Literal["central", "distributed", "local"], ...] = ("central", "distributed", "local")
DRAWS, DELTA = 10, 1e-5
LOOKS: dict[str, dict[str, Any]] = {
    "central": {"color": "#2f6fde", "marker": "o"},
    "distributed": {"color": "#d9822b", "marker": "s", "linestyle": "--"},
    "local": {"color": "#3a9a5b", "marker": "^"},
}


def nll(scaler: fedcal.Scaler | None, test: Split, personal: bool = False) -> float:
    """The NLL of all test samples: by the global scaler, by the clients' personal ones, or without any."""
    total = 0.0
    for client, (logits, labels) in test.items():
        found = scaler.apply(logits, client if personal and client in scaler.personal else None) if scaler else logits
        total += float(torch.nn.functional.cross_entropy(found, labels, reduction="sum"))
    return total / sum(len(labels) for _, labels in test.values())


def study(paths: list[Path], draws: int, wheres: list[Any]) -> dict[str, Any]:
    """All gains: for every kind of noise and every ε, a list of draws by file."""
    files = {path.stem: read(path) for path in paths}
    before = {name: nll(None, test) for name, (_, test) in files.items()}
    plain = {name: fedcal.calibrate(cal) for name, (cal, _) in files.items()}
    gains: dict[str, Any] = {
        "uncal": before,
        "plain": {name: before[name] - nll(plain[name], test) for name, (_, test) in files.items()},
        "plain_own": {name: before[name] - nll(plain[name], test, True) for name, (_, test) in files.items()},
    }
    for where in wheres:
        for epsilon in EPSILONS:
            found, own = {}, {}
            for name, (cal, test) in files.items():
                privacy = fedcal.Privacy(epsilon, DELTA, where=where)
                fits = [fedcal.calibrate(cal, privacy=privacy) for _ in range(draws)]
                found[name] = [before[name] - nll(fit, test) for fit in fits]
                own[name] = [before[name] - nll(fit, test, True) for fit in fits]
            gains[f"{where} {epsilon:g}"] = summary(found, gains["plain"]) | {"own": summary(own, gains["plain_own"])}
            one = gains[f"{where} {epsilon:g}"]
            print(f"{where:12s} ε = {epsilon:5g}  kept {one['share']:.1%} ± {one['deviation']:.1%}", end="")
            print(f"  (own {one['own']['share']:.1%})  worst {one['worst']:+.4f}", flush=True)
    return gains


def summary(found: dict[str, list[float]], plain: dict[str, float]) -> dict[str, Any]:
    """The share of the summed gain over draws, and the worst change of any draw in any file."""
    shares = np.sum([found[name] for name in found], axis=0) / sum(plain.values())
    return {
        "share": float(shares.mean()),
        "deviation": float(shares.std()),
        "worst": -min(min(draws) for draws in found.values()),
        "by_file": {name: float(np.mean(found[name])) / plain[name] for name in found},
    }


def draw(gains: dict[str, Any], path: Path) -> None:
    """The curve."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        axes = figure.add_subplot()
        for where in [where for where in WHERE if f"{where} 4" in gains]:
            done = [epsilon for epsilon in EPSILONS if f"{where} {epsilon:g}" in gains]
            rows = [gains[f"{where} {epsilon:g}"] for epsilon in done]
            shares, deviations = ([100 * row[key] for row in rows] for key in ("share", "deviation"))
            axes.errorbar(done, shares, deviations, capsize=3, label=where, **LOOKS[where])
        axes.axhline(100, color="0.6", linewidth=1, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.set(xlabel="ε  (one sample, δ = 1e-5)", ylabel="NLL gain kept, %", ylim=(0, 105))
        axes.legend(title="who adds the noise", loc="lower right")
        figure.savefig(path, dpi=160, facecolor="white")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--where", nargs="+", default=list(WHERE), choices=WHERE)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--figure", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", fedcal.FedCalWarning)  # falling back is among the figures
    gains = study(args.files, args.draws, args.where)
    if args.out:
        write(args.out, gains)
    if args.figure:
        draw(gains, args.figure)


if __name__ == "__main__":
    main()
