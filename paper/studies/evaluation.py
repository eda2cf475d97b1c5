"""How often the intervals of `fedcal.evaluate` contain the truth, by simulation.

    python -m paper.studies.evaluation --draws 1000 --out paper/results/studies/evaluation.json

Log-odds x are normal, outcomes follow the log-odds a + b x: a calibrated model (0, 1), one that is too confident, one that is
too low, one of a rare outcome, and one that is far too confident. The truth is the population's value, from sums over a fine
grid of x. One row per measure; columns are numbers of samples. `docs/evaluate.md` shows the results.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from fedcal.assess.calibration import CELLS, smooth_width
from fedcal.assess.measures import measure
from fedcal.assess.regression import quantiles
from fedcal.assess.sums import ScoreSums
from fedcal.measure.reliability import equal_width, find_bins
from paper.results import machine, write

THRESHOLD = 0.3
MACRO = ("auroc", "auprc", "calibration_intercept", "calibration_slope", "oe_ratio", "ici", "e50", "e90", "sensitivity",
         "specificity", "ppv", "npv", "net_benefit", "ece", "smooth_ece", "brier", "nll", "accuracy")  # fmt: skip


@dataclass(frozen=True)
class World:
    """A population: x ~ N(mean, spread), and P(class 1 | x) = σ(a + b x)."""

    name: str
    mean: float
    spread: float
    a: float
    b: float

    def draw(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        x = self.mean + self.spread * rng.standard_normal(n)
        return x, (rng.random(n) < expit(self.a + self.b * x)).astype(np.int64)

    def truth(self, places: int = 200_001) -> dict[str, float]:
        """The population's value of every measure."""
        u = np.linspace(-8, 8, places)
        w = norm.pdf(u)
        w /= w.sum()
        x = self.mean + self.spread * u
        p, q = expit(x), expit(self.a + self.b * x)
        rate, gap = w @ q, np.abs(p - q)
        yes, no = w * q / rate, w * (1 - q) / (1 - rate)
        below, hit = np.cumsum(no) - no / 2, np.cumsum((w * q)[::-1])[::-1]
        chosen, t = p >= THRESHOLD, THRESHOLD
        true, false = w[chosen] @ q[chosen], w[chosen] @ (1 - q[chosen])
        lo, hi = -20.0, 20.0
        for _ in range(100):
            middle = (lo + hi) / 2
            lo, hi = (middle, hi) if w @ expit(x + middle) < rate else (lo, middle)
        top, right = np.maximum(p, 1 - p), np.where(p > 0.5, q, 1 - q)
        bins = find_bins(top, equal_width(15))
        cells = np.bincount(np.minimum((p * CELLS).astype(int), CELLS - 1), w * (q - p), CELLS)
        return {
            "auroc": yes @ below,
            "auprc": yes @ (hit / np.cumsum(w[::-1])[::-1]),
            "prevalence": rate,
            "accuracy": w @ right,
            "calibration_intercept": lo,
            "calibration_slope": self.b,
            "oe_ratio": rate / (w @ p),
            "ici": w @ gap,
            "e50": quantiles(gap, w, np.array([0.5]))[0],
            "e90": quantiles(gap, w, np.array([0.9]))[0],
            "ece": np.abs(np.bincount(bins, w * (top - right))).sum(),
            "smooth_ece": float(smooth_width(cells)),
            "brier": w @ (q * (1 - p) ** 2 + (1 - q) * p**2),
            "brier_calibration": w @ gap**2,
            "brier_discrimination": w @ (q - rate) ** 2,
            "brier_uncertainty": rate * (1 - rate),
            "nll": w @ (q * np.logaddexp(0, -x) + (1 - q) * np.logaddexp(0, x)),
            "sensitivity": true / rate,
            "specificity": 1 - false / (1 - rate),
            "ppv": true / (true + false),
            "npv": (1 - rate - false) / (1 - true - false),
            "net_benefit": true - false * t / (1 - t),
        }


WORLDS = (
    World("calibrated", -0.5, 1.5, 0.0, 1.0),
    World("too confident", -0.5, 1.5, 0.0, 0.7),
    World("too low", -0.5, 1.2, 0.4, 1.0),
    World("rare", -2.5, 1.2, 0.3, 0.8),
    World("far too confident", -0.5, 2.0, 0.0, 0.4),
)


def coverage(world: World, n: int, draws: int, seed: int = 0) -> dict[str, Any]:
    """For each measure the share of draws whose interval is below, around and above the truth; and the tests' sizes."""
    truth, rng = world.truth(), np.random.default_rng(seed)
    misses = {name: np.zeros(3) for name in truth}
    rejected = dict.fromkeys(("score", "spiegelhalter"), 0.0)
    for _ in range(draws):
        x, y = world.draw(n, rng)
        logits = np.stack([np.zeros(n), x], axis=1)
        found = measure(ScoreSums.of(logits, y), ("0", "1"), (THRESHOLD,))
        for name, value in truth.items():
            low, high = found[name]["low"], found[name]["high"]
            if low is not None and high is not None:
                misses[name] += [high < value - 1e-12, low - 1e-12 <= value <= high + 1e-12, low > value + 1e-12]
        for name in rejected:
            rejected[name] += found["tests"][name]["p"] < 0.05
    shares = {name: (counts / max(counts.sum(), 1)).tolist() for name, counts in misses.items()}
    return {"coverage": shares, "rejected": {name: value / draws for name, value in rejected.items()}}


def macro_coverage(n: int, draws: int, k: int = 4, scale: float = 1.3, seed: int = 0) -> dict[str, list[float]]:
    """The same for the means over k classes (one against the rest); the truth is that of two million samples."""
    rng = np.random.default_rng(seed)

    def draw(n: int) -> Any:
        z = rng.normal(size=(n, k)) + np.linspace(0, 1, k)
        labels = (z + rng.gumbel(size=z.shape)).argmax(1)
        sums = ScoreSums.of(scale * z, labels)
        return measure(sums, [str(i) for i in range(k)], (THRESHOLD,), detail=True)

    truth, counts = draw(2_000_000), {}
    for _ in range(draws):
        found = draw(n)
        for name in MACRO:
            value, low, high = truth[name]["value"], found[name]["low"], found[name]["high"]
            counts[name] = counts.get(name, np.zeros(3)) + np.array([high < value, low <= value <= high, low > value])
    return {name: (count / draws).tolist() for name, count in counts.items()}


def show(name: str, sizes: dict[str, dict[str, Any]]) -> None:
    """Print one population's table."""
    print(f"\n{name}: coverage in % (interval too low / too high)", *sizes)
    for measure_name in next(iter(sizes.values()))["coverage"]:
        shares = [one["coverage"][measure_name] for one in sizes.values()]
        cells = (f"{100 * inside:5.1f} ({100 * below:.1f}/{100 * above:.1f})" for below, inside, above in shares)
        print(f"{measure_name:22}", *(f"{cell:>18}" for cell in cells))
    print("tests reject", {n: one.get("rejected") for n, one in sizes.items()}, flush=True)


def extremes(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """A Markdown table: the lowest and the highest coverage over populations, by measure and number of samples."""
    sizes, names = list(next(iter(found.values()))), list(next(iter(next(iter(found.values())).values()))["coverage"])
    lines = [f"| measure | {' | '.join(f'n = {int(n):,}' for n in sizes)} |", f"|---|{'---:|' * len(sizes)}"]
    for name in names:
        shares = [[100 * by_size[n]["coverage"][name][1] for by_size in found.values()] for n in sizes]
        cells = (f"{min(one):.1f} – {max(one):.1f}" if len(one) > 1 else f"{one[0]:.1f}" for one in shares)
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print; one table for each population, or the means over classes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 1000, 5000, 20000])
    parser.add_argument("--classes", action="store_true", help="means over four classes instead")
    parser.add_argument("--out", type=Path, help="a JSON file; the table of extremes is written beside it")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    if options.classes:
        for name, scale in (("four classes, too confident", 1.3), ("four classes, calibrated", 1.0)):
            found[name] = {str(n): {"coverage": macro_coverage(n, options.draws, scale=scale)} for n in options.sizes}
            show(name, found[name])
    else:
        for world in WORLDS:
            found[world.name] = {str(n): coverage(world, n, options.draws) for n in options.sizes}
            show(world.name, found[world.name])
    if options.out:
        write(options.out, {"draws": options.draws, **machine(), **found})
        options.out.with_suffix(".md").write_text(extremes(found) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
