"""Theorem 4.4: after R rounds FedAvg's calibration error is at least of the order of √(G/2) / (µ R²).

The theorem says that *there is* a µ-convex function of this kind; it says nothing of a given task. Here is one to which its
assumptions apply: `synthetic`, whose true posterior is a softmax of a linear function, logistic regression with ridge µ,
full-batch local steps (no gradient noise), all clients in every round, labels skewed and P(x | y) the same everywhere.
Client c draws a share `shift` of its labels from two classes of its own and the rest from all: so G is the same at every
client, known exactly, and the pooled label distribution is uniform whatever the shift.

Measured against f*, the minimiser of the pooled objective F: the distance of the proof, √E[(f* − f^R)²], of the top class;
F's excess, which is what the theorem that the proof borrows (Karimireddy et al. 2020, Theorem II) is about; the paper's CE
(Definition 3.1) and ECE. Two step sizes: one that stays, and, for each R, the best of several, since a lower bound
should hold for the best too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from fedcal.base.seeds import numpy_rng
from fedcal.base.store import write_bytes
from fedcal.data import synthetic
from fedcal.learn.local import SGD, Job, State, average, copy_state, train_in_turn
from fedcal.learn.models import logistic
from fedcal.measure.tally import Tally
from paper.by_seed import by_seed, origin
from paper.present import spread

CLIENTS = 5  # each with two classes of its own: together they have all ten
OWN = synthetic.N_CLASSES // CLIENTS
MU = 0.001  # small: the theorem takes f* to be calibrated, and a ridge of 0.01 alone costs f* 10 % ECE (seed 0)
STEPS = 5  # local steps per round
SHIFTS = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)  # without any, what is left is slowness, not skew
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)  # step sizes; beyond 1.6 the first rounds diverge
RATE, SHIFT = 0.4, 0.7  # held while the other thing grows
ROUNDS = (1, 2, 4, 8, 16, 32, 64, 128)
MEASURES = {"distance": "√E(f* − f^R)²", "excess": "F(θ^R) − F*", "ce": "CE", "ece": "ECE"}


def bound(G: float, mu: float, rounds: int) -> float:
    """√(G/2) / (µ R²): Theorem 4.4 without its constant."""
    return math.sqrt(G / 2) / (mu * rounds**2)


def run(out: Path, seeds: Sequence[int], quick: bool, say: Callable[[str], None]) -> None:
    """Measure every seed, and write OUT/theory.json, .md and .png."""
    config = {
        "clients": CLIENTS, "mu": MU, "steps": STEPS, "rate": RATE, "shift": SHIFT,
        "samples": 200 if quick else 500, "test": 2000 if quick else 50_000,
        "rounds": list(ROUNDS[:4] if quick else ROUNDS), "shifts": list(SHIFTS[::2] if quick else SHIFTS),
        "rates": list(RATES[-2:] if quick else RATES),
    }  # fmt: skip
    path = out / "theory.json"
    found = by_seed(path, config, seeds, lambda seed: measure(seed, config), say)
    write_bytes(out / "theory.md", markdown(found, config, origin(path)).encode())
    plot(found, config, out / "theory.png")


# --- measuring -----------------------------------------------------------------------------------------------------


def measure(seed: int, config: dict[str, Any]) -> dict[str, Any]:
    """One seed: every step size at one G, and every G at one step size, after each number of rounds."""
    test = synthetic.sample(config["test"], seed, "test")
    by_rate = {str(rate): train(seed, config, test, SHIFT, rate) for rate in config["rates"]}
    others = [shift for shift in config["shifts"] if shift != SHIFT]
    by_shift = {str(shift): train(seed, config, test, shift, RATE) for shift in others}
    by_shift[str(SHIFT)] = by_rate[str(RATE)]
    return {"by_rate": by_rate, "by_shift": by_shift}


def train(seed: int, config: dict[str, Any], test: tuple[Tensor, Tensor], shift: float, rate: float) -> dict[str, Any]:
    """Train with FedAvg (the reference loop), and measure after some of its rounds."""
    x, y, clients = deal(config["samples"], shift, seed)
    model = logistic((synthetic.N_FEATURES,), synthetic.N_CLASSES).double()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    best = minimiser(x, y, MU)
    exact = objective(best, x, y, MU)
    how = SGD(lr=rate, batch_size=len(y), epochs=STEPS, weight_decay=MU)
    points: dict[str, list[float]] = {name: [] for name in (*MEASURES, "floor")}
    state, done = copy_state(model), 0
    parts = [(x[rows], y[rows]) for rows in clients]
    for r in config["rounds"]:
        while done < r:
            jobs = [Job(state, *part, numpy_rng(seed, "theory", done)) for part in parts]
            state = average([t.state for t in train_in_turn(model, jobs, how)], by=[len(rows) for rows in clients])
            done += 1
        points["excess"].append(float(objective(state, x, y, MU) - exact))
        for name, value in compare(state, best, *test).items():
            points[name].append(value)
    shares = np.stack([np.bincount(y[rows], minlength=synthetic.N_CLASSES) / len(rows) for rows in clients])
    G = float((shares * np.log(np.where(shares > 0, shares, 1) * synthetic.N_CLASSES)).sum(1).max())
    star = compare(best, best, *test)
    return {"G": G, **points, "star": {"ce": star["ce"], "ece": star["ece"]}}


def deal(samples: int, shift: float, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Inputs, labels, and each client's rows. Label counts are exact: so is G, and the pooled labels are uniform."""
    classes = synthetic.N_CLASSES
    common = round((1 - shift) * samples / classes)  # of each class, at every client
    extra = samples // OWN - common * classes // OWN  # more of a client's own classes
    counts = np.full((CLIENTS, classes), common)
    for c in range(CLIENTS):
        counts[c, OWN * c : OWN * (c + 1)] += extra
    x, y = synthetic.sample(4 * counts.sum(), seed)
    place = {k: iter((y == k).nonzero()[:, 0].tolist()) for k in range(classes)}
    rows = [[next(place[k]) for k in range(classes) for _ in range(counts[c, k])] for c in range(CLIENTS)]
    taken = torch.tensor([row for mine in rows for row in mine])
    return x[taken].double(), y[taken], list(torch.arange(len(taken)).split([len(mine) for mine in rows]))


def objective(state: State, x: Tensor, y: Tensor, mu: float) -> Tensor:
    """F: the mean NLL and (µ/2)‖θ‖²."""
    ridge = sum(value.square().sum() for value in state.values())
    return nn.functional.cross_entropy(logits(state, x), y) + mu / 2 * ridge


def logits(state: State, x: Tensor) -> Tensor:
    return x.double() @ state["1.weight"].T + state["1.bias"]


def minimiser(x: Tensor, y: Tensor, mu: float) -> State:
    """f*: the pooled objective's minimum, to rounding."""
    shapes = {"1.weight": (synthetic.N_CLASSES, x.shape[1]), "1.bias": (synthetic.N_CLASSES,)}
    sizes = [math.prod(shape) for shape in shapes.values()]

    def state_of(flat: Tensor) -> State:
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), flat.split(sizes), strict=True)}

    def value_and_slope(values: np.ndarray) -> tuple[float, np.ndarray]:
        flat = torch.from_numpy(values).requires_grad_()
        value = objective(state_of(flat), x, y, mu)
        return float(value.detach()), torch.autograd.grad(value, flat)[0].numpy()

    options = {"maxiter": 5000, "ftol": 1e-16, "gtol": 1e-10}
    found = minimize(value_and_slope, np.zeros(sum(sizes)), jac=True, method="L-BFGS-B", options=options)
    return state_of(torch.from_numpy(found.x))


def compare(state: State, best: State, x: Tensor, y: Tensor) -> dict[str, float]:
    """A model's distance from f* in the probability of its top class, and its calibration on the test samples."""
    mine = logits(state, x).log_softmax(dim=1)
    confidence, top = mine.exp().max(dim=1)
    theirs = logits(best, x).softmax(dim=1).gather(1, top[:, None])[:, 0]
    seen = Tally.of(mine, y).summary()
    distance = float((confidence - theirs).square().mean().sqrt())
    return {"distance": distance, "ce": seen["debiased_l2"], "ece": seen["ece"], "floor": seen["ece_floor"]}


# --- presenting ----------------------------------------------------------------------------------------------------


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The power with which y grows with x: the slope of the least-squares line through (log x, log y)."""
    kept = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    return float(np.polyfit(*np.array(kept).T, deg=1)[0]) if len(kept) > 1 else math.nan


def envelope(one: dict[str, Any], name: str) -> list[float]:
    """After each number of rounds, the measure of the step size that comes nearest to f*."""
    runs = list(one["by_rate"].values())
    nearest = [min(runs, key=lambda run: run["distance"][i]) for i in range(len(runs[0]["distance"]))]
    return [run[name][i] for i, run in enumerate(nearest)]


def markdown(found: list[dict[str, Any]], config: dict[str, Any], origin: str) -> str:
    """Measured against bound, the fitted powers, and what they say."""
    rounds, rate = config["rounds"], str(RATE)
    G = np.mean([one["by_rate"][rate]["G"] for one in found])
    lines = [
        "# Theorem 4.4: the calibration error of FedAvg against √(G/2) / (µ R²)",
        "",
        f"`synthetic`, logistic regression, ridge µ = {MU:g}, {CLIENTS} clients in every round, {STEPS} full-batch local "
        f"steps; {origin} Mean ± standard deviation over seeds. CE is Definition 3.1, debiased (0: nothing but noise).",
        "",
        f"Growing R, at G = {G:.2f}, step size {RATE:g}; in brackets the best step size for that R, of "
        f"{', '.join(f'{r:g}' for r in config['rates'])}:",
        "",
        "| R | √(G/2)/(µR²) | " + " | ".join(MEASURES.values()) + " | ECE's floor |",
        "|---:|" + "---:|" * (len(MEASURES) + 2),
    ]
    for i, r in enumerate(rounds):
        cells = []
        for name in MEASURES:
            fixed = np.array([one["by_rate"][rate][name][i] for one in found])
            tuned = np.array([envelope(one, name)[i] for one in found])
            cells.append(f"{fixed.mean():.2g} ± {_deviation(fixed):.1g} ({tuned.mean():.2g})")
        floor = np.mean([one["by_rate"][rate]["floor"][i] for one in found])
        lines.append(f"| {r} | {bound(float(G), MU, r):.2g} | {' | '.join(cells)} | {floor:.2g} |")
    star = np.array([one["by_rate"][rate]["star"]["ece"] for one in found])
    lines += ["", f"f* itself: ECE {spread(star, 4)}.", ""]
    lines += [f"Growing G, after R = {rounds[-1]} rounds, step size {RATE:g}:", ""]
    lines += ["| share of own classes | G | √(G/2)/(µR²) | " + " | ".join(MEASURES.values()) + " |"]
    lines += ["|---:|" + "---:|" * (len(MEASURES) + 2)]
    for shift in config["shifts"]:
        runs = [one["by_shift"][str(shift)] for one in found]
        cells = [np.array([run[name][-1] for run in runs]) for name in MEASURES]
        words = [f"{values.mean():.2g} ± {_deviation(values):.1g}" for values in cells]
        G = float(np.mean([run["G"] for run in runs]))
        lines.append(f"| {shift:g} | {G:.3g} | {bound(G, MU, rounds[-1]):.2g} | {' | '.join(words)} |")
    lines += [
        "",
        "Fitted powers (slopes in log-log), mean ± standard deviation over seeds:",
        "",
        *powers(found, config),
    ]
    lines += ["", *verdict(found, config)]
    return "\n".join([*lines, "", "![Measured error against R and G](theory.png)", ""])


def powers(found: list[dict[str, Any]], config: dict[str, Any]) -> list[str]:
    """The table of slopes: in R with a step size that stays and with the best, over all rounds and the later half; in G."""
    rounds, rate, late = config["rounds"], str(RATE), len(config["rounds"]) // 2
    lines = [
        "| | R, step size kept | the later half | R, best step size | the later half | G | G, less the error at G = 0 |",
        "|---|" + "---:|" * 6,
        "| the bound | −2 | −2 | −2 | −2 | 0.5 | 0.5 |",
    ]
    for name, label in MEASURES.items():
        fits: list[list[float]] = [[] for _ in range(6)]
        for one in found:
            fixed, tuned = one["by_rate"][rate][name], envelope(one, name)
            fits[0].append(slope(rounds, fixed))
            fits[1].append(slope(rounds[late:], fixed[late:]))
            fits[2].append(slope(rounds, tuned))
            fits[3].append(slope(rounds[late:], tuned[late:]))
            fits[4].append(slope_in_G(one, config, name))
            fits[5].append(slope_in_G(one, config, name, less_slowness=True))
        cells = [spread(values).replace("-", "−") for values in fits]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return lines


def slope_in_G(one: dict[str, Any], config: dict[str, Any], name: str, less_slowness: bool = False) -> float:
    """The power of G after the last round; `less_slowness` first subtracts the error that is left without any skew."""
    runs = [one["by_shift"][str(shift)] for shift in config["shifts"]]
    rest = runs[0][name][-1] if less_slowness else 0.0
    return slope([run["G"] for run in runs[1:]], [run[name][-1] - rest for run in runs[1:]])


def verdict(found: list[dict[str, Any]], config: dict[str, Any]) -> list[str]:
    """Does the error fall as 1/R² and grow as √G? Measured by the slopes of the distance that the proof bounds."""
    rounds, tuned = config["rounds"], [envelope(one, "distance") for one in found]
    in_R = [slope(rounds, one) for one in tuned]
    in_G, pure = ([slope_in_G(one, config, "distance", less) for one in found] for less in (False, True))
    G = float(np.mean([one["by_rate"][str(RATE)]["G"] for one in found]))
    ratio = [float(np.mean([one[i] for one in tuned])) / bound(G, MU, rounds[i]) for i in (0, -1)]
    return [
        f"- Does the error fall as 1/R²? {_answer(in_R, -2)}, at the best step size.",
        f"- Does it grow as √G? {_answer(in_G, 0.5)}, at one step size. Part of the error is there without skew too, since "
        f"FedAvg has not arrived after {rounds[-1]} rounds. Does the rest? {_answer(pure, 0.5)}. (To first order drift is a "
        "product of two differences between clients, in gradient and in curvature, that each grow as √G.)",
        f"- Measured error by bound: {ratio[0]:.2g} at R = {rounds[0]}, {ratio[1]:.2g} at R = {rounds[-1]}. An Ω hides a "
        "constant, and the theorem claims only that some function behaves so: no figure here can contradict it, and it "
        "predicts none.",
        "- The theorem that the proof borrows bounds the excess of the objective; the paper reads it as a difference of "
        "probabilities. And f* is calibrated only without ridge and with enough data: see its ECE above.",
    ]


def _answer(slopes: list[float], wanted: float) -> str:
    """Yes where the mean slope lies within a quarter of what is wanted (or two standard errors, if that is more)."""
    error = 2 * _deviation(np.array(slopes)) / math.sqrt(len(slopes))
    near = abs(float(np.mean(slopes)) - wanted) <= max(error, abs(wanted) / 4)
    return f"{'Yes' if near else 'No'}: power {spread(slopes)} where the bound has {wanted:g}"


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


def plot(found: list[dict[str, Any]], config: dict[str, Any], path: Path) -> None:
    """Log-log: distance from f* and CE against R for every step size, and against G; the bound beside them."""
    from matplotlib.figure import Figure

    from fedcal.report.figures import ACCENT, GAP, INK, MUTED, save, styled

    rounds, seeds = config["rounds"], range(len(found))

    def mean(kind: str, key: float, name: str) -> np.ndarray:
        return np.mean([found[s][kind][str(key)][name] for s in seeds], axis=0)

    @styled
    def draw() -> Figure:
        fig = Figure(figsize=(7, 2.9), layout="constrained")
        left, middle, right = fig.subplots(1, 3)
        for ax, name, title in ((left, "distance", "Distance from f*"), (middle, "ece", "ECE")):
            for i, rate in enumerate(config["rates"]):
                strength = (i + 1.5) / (len(config["rates"]) + 1)
                ax.plot(rounds, mean("by_rate", rate, name), color=ACCENT, alpha=strength, label=f"step size {rate:g}")
            best = np.mean([envelope(one, name) for one in found], axis=0)
            ax.plot(rounds, best, color=INK, linewidth=0, marker="o", markersize=3, label="best of them")
            anchor = best[0] * (rounds[0] / np.array(rounds)) ** 2.0
            ax.plot(rounds, anchor, color=GAP, linestyle=(0, (4, 3)), label="1/R², from its first point")
            ax.set(xscale="log", yscale="log", xlabel="R", ylim=(max(1e-5, anchor[-1]), None))
            ax.set_title(title, fontweight="bold")
        middle.plot(rounds, mean("by_rate", RATE, "floor"), color=MUTED, linestyle=":", label="noise floor")
        G = [float(np.mean([one["by_shift"][str(s)]["G"] for one in found])) for s in config["shifts"]]
        far = np.array([mean("by_shift", s, "distance")[-1] for s in config["shifts"]])
        right.axhline(far[0], color=MUTED, linewidth=0.8, linestyle=":")
        right.annotate("without skew", (G[1], far[0]), color=MUTED, xytext=(0, -10), textcoords="offset points")
        G, far = G[1:], far[1:]
        right.plot(G, far, color=ACCENT, marker="o")
        right.plot(G, far[-1] * np.sqrt(np.array(G) / G[-1]), color=GAP, linestyle=(0, (4, 3)))
        right.annotate(
            "√G", (G[0], far[-1] * math.sqrt(G[0] / G[-1])), color=GAP, xytext=(0, 4), textcoords="offset points"
        )
        right.set(xscale="log", yscale="log", xlabel="G")
        right.set_title(f"Distance from f*, R = {rounds[-1]}", fontweight="bold")
        handles, labels = middle.get_legend_handles_labels()
        fig.legend(handles, labels, loc="outside lower center", ncols=4)
        return fig

    save(draw(), path)
