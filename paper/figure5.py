"""Figure 5 (Section 6.4): local and global ECE of λ·π₁ + (1 − λ)·π₂, two clients' scalers, against λ.

`synthetic` is dealt to two clients with high label skew; FedAvg's model is then frozen, and each client fits an
order-preserving net to its own calibration samples. The two nets have 8 or 64 hidden units, begin at one start or at two
independent ones, and π₂'s units are put in the order of π₁'s by weight matching, or are not. At λ = 0 and 1 matching changes
nothing: it is the same function. In between it may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcal.base.seeds import torch_rng
from fedcal.base.store import write_bytes
from fedcal.data import load
from fedcal.learn.local import predict
from fedcal.measure.tally import Tally
from fedcal.nets.matching import match, permute, permuted_share
from fedcal.nets.mlp import Net, init_mlp, order_preserving
from fedcal.nets.train import train_scaler
from fedcal.nets.training import Training
from fedcal.simulate.assemble import assemble
from fedcal.simulate.config import Config
from paper.by_seed import by_seed, origin
from paper.present import spread
from paper.together import run_rounds

HIDDEN = (8, 64)
STARTS = ("shared", "independent")
MATCHED = ("not matched", "matched")
VIEWS = ("client 1", "client 2", "global")
METRICS = ("ece", "ece_floor", "nll")
TRAIN = 4000  # samples: few, so that the model is over-confident and needs calibration
HOW = Training(lr=3e-3, steps=1000, patience=100)  # until its own stopping split says so: local scalers at their best
FEDERATION = Config(
    data="synthetic", model="mlp", clients=2, beta=0.1, cal_fraction=0.3, rounds=20, batch_size=64, lr=0.05, momentum=0.9,
    method=("uncal",),
)  # fmt: skip
GRID = 10  # steps of λ

Scores = dict[str, dict[str, float]]  # by view and metric
Samples = list[tuple[Tensor, Tensor]]  # logits and labels of each client


def run(out: Path, seeds: Sequence[int], quick: bool, say: Callable[[str], None]) -> None:
    """Measure every seed, and write OUT/figure5.json, .md and .png."""
    grid, config, how = (4, replace(FEDERATION, rounds=3), replace(HOW, steps=20)) if quick else (GRID, FEDERATION, HOW)
    about = {
        "federation": config.to_dict(),
        "train": TRAIN,
        "scaler": asdict(how),
        "lambda": np.linspace(0, 1, grid + 1).tolist(),
    }
    path = out / "figure5.json"
    found = by_seed(path, about, seeds, lambda seed: measure(replace(config, seed=seed), about["lambda"], how), say)
    write_bytes(out / "figure5.md", markdown(found, about["lambda"], origin(path)).encode())
    plot(found, about["lambda"], out / "figure5.png")


# --- measuring -----------------------------------------------------------------------------------------------------


def measure(config: Config, weights: Sequence[float], how: Training) -> dict[str, Any]:
    """One seed: the frozen model without a scaler, and every curve."""
    cal, test = frozen(config)
    curves = []
    for hidden in HIDDEN:
        for start in STARTS:
            first, second = fit(cal, hidden, start, config.seed, how)
            perms = match(second, to=first)
            for matched, other in zip(MATCHED, (second, permute(second, perms)), strict=True):
                points = [score(test, mix(first, other, weight)) for weight in weights]
                curve = {view: {m: [p[view][m] for p in points] for m in METRICS} for view in VIEWS}
                name = {"hidden": hidden, "start": start, "matching": matched, "permuted_share": permuted_share(perms)}
                curves.append({**name, **curve})
    return {"uncal": score(test, None), "sizes": [len(y) for _, y in cal], "curves": curves}


def frozen(config: Config) -> tuple[Samples, Samples]:
    """FedAvg's final model on each client's calibration and test samples."""
    dataset = load(config.data, seed=config.seed)
    few = replace(dataset, train_x=dataset.train_x[:TRAIN], train_y=dataset.train_y[:TRAIN])
    state = assemble(config.resolve(), few)
    for _ in range(config.rounds):
        run_rounds([state])
    cal = [(predict(state.model, client.cal_x), client.cal_y) for client in state.clients]
    return cal, [(predict(state.model, client.test_x), client.test_y) for client in state.clients]


def fit(cal: Samples, hidden: int, start: str, seed: int, how: Training) -> list[Net]:
    """The clients' scalers, each at its own optimum (by its stopping split)."""
    scalers = []
    for c, (logits, labels) in enumerate(cal):
        rng = torch_rng(seed, "figure5", hidden, 0 if start == "shared" else c)
        scalers.append(train_scaler(init_mlp(logits.shape[1], hidden, rng), order_preserving, logits, labels, how)[0])
    return scalers


def mix(first: Net, second: Net, weight: float) -> Net:
    """λ·π₁ + (1 − λ)·π₂."""
    return {name: weight * first[name] + (1 - weight) * second[name] for name in first}


def score(test: Samples, scaler: Net | None) -> Scores:
    """Each client's and the global metrics under one scaler."""
    with torch.no_grad():
        tallies = [Tally.of(order_preserving(scaler, z) if scaler else z, y) for z, y in test]
    summaries = [tally.summary() for tally in (*tallies, tallies[0] + tallies[1])]
    return {view: {m: round(s[m], 5) for m in METRICS} for view, s in zip(VIEWS, summaries, strict=True)}


# --- presenting ----------------------------------------------------------------------------------------------------


def curves(found: list[dict[str, Any]], hidden: int, start: str, matching: str, view: str, metric: str) -> np.ndarray:
    """One metric of one curve, as an array of seeds × λ."""
    wanted = {"hidden": hidden, "start": start, "matching": matching}
    return np.array([c[view][metric] for one in found for c in one["curves"] if wanted.items() <= c.items()])


def shares(found: list[dict[str, Any]], hidden: int, start: str) -> np.ndarray:
    """The share of units that matching moved, for each seed."""
    wanted = {"hidden": hidden, "start": start, "matching": MATCHED[1]}
    return np.array([c["permuted_share"] for one in found for c in one["curves"] if wanted.items() <= c.items()])


def markdown(found: list[dict[str, Any]], weights: Sequence[float], origin: str) -> str:
    """The table at λ = 1/2 and at both ends, and whether the paper's statements hold."""
    half = len(weights) // 2
    rows, at_half = [], {}
    for hidden in HIDDEN:
        for start in STARTS:
            for matching in MATCHED:
                key = (hidden, start, matching)
                ece = {view: 100 * curves(found, *key, view, "ece") for view in VIEWS}
                nll = curves(found, *key, "global", "nll")
                one, two, whole = (ece[view] for view in VIEWS)
                own, others = (one[:, -1] + two[:, 0]) / 2, (one[:, 0] + two[:, -1]) / 2
                alone, local = (whole[:, 0] + whole[:, -1]) / 2, (one[:, half] + two[:, half]) / 2
                at_half[key] = {"global": whole[:, half], "local": local, "alone": alone, "nll": nll[:, half]}
                moved = spread(shares(found, hidden, start)) if matching == MATCHED[1] else "–"
                cells = [spread(values, 1) for values in (own, others, local, alone, whole[:, half])]
                rows.append([str(hidden), start, matching, moved, *cells, spread(nll[:, half], 3)])
    heads = [
        "hidden", "starts", "matching", "share of units moved", "local ECE, own scaler", "local ECE, the other's",
        "local ECE, λ = ½", "global ECE, one client's", "global ECE, λ = ½", "global NLL, λ = ½",
    ]  # fmt: skip
    uncal = {m: np.array([one["uncal"]["global"][m] for one in found]) for m in METRICS}
    lines = [
        "# Figure 5: two clients' scalers averaged, with and without weight matching",
        "",
        f"`synthetic`, two clients, β = {FEDERATION.beta:g}, a frozen MLP; ECE in %, mean ± standard deviation over seeds. "
        f"Without a scaler: global ECE {spread(100 * uncal['ece'], 1)} (noise floor {spread(100 * uncal['ece_floor'], 1)}), "
        f"NLL {spread(uncal['nll'], 3)}. {origin}",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * 3 + "---:|" * (len(heads) - 3),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        "What the paper says of it, seed by seed. A difference below zero is an improvement.",
        "",
        *claims(at_half),
        "",
        "![ECE against λ](figure5.png)",
        "",
    ]
    return "\n".join(lines)


def claims(at_half: dict[tuple[int, str, str], dict[str, np.ndarray]]) -> list[str]:
    """The paper's three sentences (Section 6.4), each as differences over seeds."""
    plain, matched = MATCHED
    lines = [
        "**Averaging two scalers calibrates better globally than either alone** (λ = ½ less one client's, global ECE):"
    ]
    for (hidden, start, matching), values in at_half.items():
        label = f"{hidden} units, {start} starts, {matching}"
        lines.append(difference(label, ECE=values["global"] - values["alone"]))
    lines += ["", "**A larger net generalises better** (64 less 8 units, λ = ½):", ""]
    for start in STARTS:
        large, small = at_half[64, start, matched], at_half[8, start, matched]
        changes = {"global ECE": large["global"] - small["global"], "NLL": large["nll"] - small["nll"]}
        lines.append(difference(f"{start} starts, matched", **changes))
    lines += ["", "**Without matching the average causes local errors** (matched less not matched, λ = ½):", ""]
    for start in STARTS:
        for hidden in HIDDEN:
            without, with_ = at_half[hidden, start, plain], at_half[hidden, start, matched]
            names = {"local ECE": "local", "global ECE": "global", "NLL": "nll"}
            changes = {name: with_[key] - without[key] for name, key in names.items()}
            lines.append(difference(f"{hidden} units, {start} starts", **changes))
    return [lines[0], "", *lines[1:]]


def difference(label: str, **changes: np.ndarray) -> str:
    """One line: each change with its spread, and in how many seeds it is an improvement."""
    words = [
        f"{name} {spread(values, 3 if name == 'NLL' else 1)} (better in {int((values < 0).sum())} of {len(values)})"
        for name, values in changes.items()
    ]
    return f"- {label}: {'; '.join(words)}"


def plot(found: list[dict[str, Any]], weights: Sequence[float], path: Path) -> None:
    """Draw one row per view, and one column per net size and start."""
    from matplotlib.figure import Figure

    from fedcal.report.figures import ACCENT, GAP, INK, MUTED, NOISE, save, styled

    @styled
    def draw() -> Figure:
        fig = Figure(figsize=(6.2, 4), layout="constrained")
        axes = fig.subplots(len(VIEWS), 4, sharex=True, sharey=True)
        for column, (start, hidden) in enumerate((s, h) for s in STARTS for h in HIDDEN):
            axes[0, column].set_title(
                f"{'one start' if start == 'shared' else 'two starts'}, {hidden} units", fontweight="bold"
            )
            for ax, view in zip(axes[:, column], VIEWS, strict=True):
                for kind, colour, dash in ((MATCHED[0], GAP, "-"), (MATCHED[1], ACCENT, (0, (4, 2)))):
                    ece = 100 * curves(found, hidden, start, kind, view, "ece")
                    mean, deviation = ece.mean(0), ece.std(0, ddof=min(1, len(found) - 1))
                    ax.fill_between(weights, mean - deviation, mean + deviation, color=colour, alpha=0.15, linewidth=0)
                    ax.plot(weights, mean, color=colour, linestyle=dash, label=kind)
                floor = 100 * curves(found, hidden, start, MATCHED[1], view, "ece_floor").mean(0)
                ax.plot(weights, floor, color=NOISE, label="noise floor")
                bare = 100 * np.mean([one["uncal"][view]["ece"] for one in found])
                ax.axhline(bare, color=MUTED, linewidth=0.8, linestyle=":", label="no scaler")
                ax.set_ylim(0, None)
                if column == 0:
                    ax.set_ylabel(f"{view}: ECE, %", color=INK)
            axes[-1, column].set_xlabel("λ, client 1's share")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=4)
        return fig

    save(draw(), path)
