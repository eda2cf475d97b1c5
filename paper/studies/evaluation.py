"""How often the intervals of `fedcal.evaluate` contain the truth, by simulation.

    python -m paper.studies.evaluation --draws 1000 --jobs 16 --out paper/results/studies/evaluation.json
    python -m paper.studies.evaluation --rare --sizes 150 400 1500 --draws 500 --out FILE.json
    python -m paper.studies.evaluation --classes 3 4 10 --draws 1000 --jobs 16 --out FILE.json

Log-odds x are normal, outcomes follow the log-odds a + b x: a calibrated model (0, 1), one that is too confident, one that is
too low, one of a rare outcome, and one that is far too confident. `--rare`: outcomes so rare that there are about 5 to 50
events, or as few samples without one; draws with fewer than 5 are not counted, as their results are hidden. The truth is the
population's value, from sums over a fine grid of x. One row per measure; columns are numbers of samples. `docs/evaluate.md`
shows the results.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import product
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import norm

from fedcal.assess.calibration import CELLS, ERRORS, error_values, smooth_width
from fedcal.assess.intervals import Estimate
from fedcal.assess.measures import class_measures, measure, over_classes
from fedcal.assess.regression import Curve, quantiles
from fedcal.assess.sums import Points, ScoreSums
from fedcal.measure.reliability import equal_width, find_bins
from paper.results import machine, write

THRESHOLD = 0.3
PART = 25  # draws of one task
SAMPLES = 2_000_000  # of which the truth of several classes is taken
Counts = dict[str, np.ndarray]  # by measure: draws whose interval is below, around and above the truth, or is not given


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

RARE = (
    World("calibrated", -4.2, 1.2, 0.0, 1.0),
    World("well told apart", -6.0, 3.0, 0.0, 1.0),
    World("hardly told apart", -3.5, 0.6, 0.0, 1.0),
    World("too confident", -5.0, 2.0, 0.5, 0.6),
    World("rarely no event", 4.2, 1.2, 0.0, 1.0),
)
LEAST = 5  # of each class, in draws of rare events


def count(counts: Counts, name: str, interval: tuple[float | None, float | None], value: float) -> None:
    """Add one draw: whether the interval lies below the truth, around it or above it, or there is none."""
    low, high = (math.nan if end is None else end for end in interval)
    if not math.isfinite(value):
        return
    given = math.isfinite(low) and math.isfinite(high)
    miss = [high < value - 1e-12, low - 1e-12 <= value <= high + 1e-12, low > value + 1e-12, not given]
    counts[name] = counts.get(name, np.zeros(4)) + miss


def draw_binary(world: World, n: int, draws: int, seed: Sequence[int], least: int = 0) -> Counts:
    """How the intervals of some draws lie; and how often the tests reject, as the second of four numbers."""
    truth, rng = world.truth(), np.random.default_rng(seed)
    counts: Counts = {}
    for _ in range(draws):
        x, y = world.draw(n, rng)
        while min(y.sum(), n - y.sum()) < least:
            x, y = world.draw(n, rng)
        logits = np.stack([np.zeros(n), x], axis=1)
        found = measure(ScoreSums.of(logits, y), ("0", "1"), (THRESHOLD,))
        for name, value in truth.items():
            count(counts, name, (found[name]["low"], found[name]["high"]), value)
        for name in ("score", "spiegelhalter"):
            rejected = np.array([0, found["tests"][name]["p"] < 0.05, 0, 0])
            counts[f"test {name}"] = counts.get(f"test {name}", np.zeros(4)) + rejected
    return counts


@dataclass(frozen=True)
class Classes:
    """A population of k classes: logits are normal, labels follow them, and the model says `scale` times them.

    With `pair`, only the split between the first two classes is too confident: the others are calibrated.
    """

    name: str
    scale: float = 1.0
    rare: bool = False  # every second class is
    pair: bool = False

    def sums(self, n: int, k: int, rng: np.random.Generator) -> ScoreSums:
        z = rng.normal(size=(n, k)) + (np.where(np.arange(k) % 2, -2.5, 0.0) if self.rare else np.linspace(0, 1, k))
        labels = (z + rng.gumbel(size=z.shape)).argmax(1)
        if self.pair:
            both, apart = np.logaddexp(z[:, 0], z[:, 1]), 2.5 * (z[:, 0] - z[:, 1])
            z[:, 0], z[:, 1] = both - np.logaddexp(0, -apart), both - np.logaddexp(0, apart)
        return ScoreSums.of(self.scale * z, labels, first=at_threshold(k))

    def truth(self, k: int, n: int, block: int = 100_000) -> list[dict[str, float]]:
        """Each class's measures, of n samples; the distances to the curve of a calibrated class are 0."""
        rng = np.random.default_rng(12345)
        found = reduce(add, (self.sums(block, k, rng) for _ in range(n // block)))
        exact = dict.fromkeys(ERRORS, 0.0) if self.name == "calibrated" else {}
        return [{name: v.value for name, v in one.items()} | exact for one in each_class(found)[0]]


POPULATIONS = (
    Classes("calibrated"),
    Classes("too confident", 1.3),
    Classes("rare classes", 1.3, rare=True),
    Classes("two classes off", pair=True),
)


def at_threshold(k: int) -> float:
    """A threshold that some samples of every class reach."""
    return THRESHOLD if k < 50 else 0.05


def each_class(sums: ScoreSums) -> tuple[list[dict[str, Estimate]], list[tuple[Points, Curve | None]]]:
    """Each class's measures, points and curve. The distances to the curve have no interval, which would take long."""
    found, fits = [], []
    for row in range(sums.n_classes):
        points = sums.points(row)
        curve = Curve.of(points)
        values = error_values(points, curve)[0] if curve else [math.nan] * len(ERRORS)
        errors = {name: Estimate(float(value)) for name, value in zip(ERRORS, values, strict=True)}
        found.append(class_measures(sums, row, sums.first, 0, points, curve, errors))
        fits.append((points, curve))
    return found, fits


def draw_classes(
    population: Classes, k: int, n: int, draws: int, seed: Sequence[int], truth: list[dict[str, float]]
) -> Counts:
    """How the intervals of the means over k classes lie, one class against the rest.

    The truth is the mean over the classes that have the measure in the draw (a class without cases has none).
    """
    rng = np.random.default_rng(seed)
    counts: Counts = {}
    for _ in range(draws):
        sums = population.sums(n, k, rng)
        found, fits = each_class(sums)
        for name, (_, low, high) in over_classes(sums, found, fits).items():
            known = [t[name] for t, one in zip(truth, found, strict=True) if math.isfinite(one[name].value)]
            count(counts, name, (low, high), float(np.mean(known)) if known else math.nan)
    return counts


def gather(parts: Iterable[Counts], draws: int) -> dict[str, Any]:
    """The shares of draws: of intervals that are below, around and above the truth among those that are given."""
    total: Counts = {}
    for one in parts:
        for name, counts in one.items():
            total[name] = total.get(name, np.zeros(4)) + counts
    shares = {name: (counts[:3] / max(counts[:3].sum(), 1)).tolist() for name, counts in total.items()}
    return {
        "draws": draws,
        "coverage": {name: one for name, one in shares.items() if not name.startswith("test ") and sum(one)},
        "without": {name: one[3] / one.sum() for name, one in total.items() if one[3]},
        "rejected": {n.removeprefix("test "): one[1] / draws for n, one in total.items() if n.startswith("test ")},
    }


def show(name: str, sizes: dict[str, dict[str, Any]]) -> None:
    """Print one population's table."""
    print(f"\n{name}: coverage in % (interval too low / too high)", *sizes)
    for measure_name in dict.fromkeys(name for one in sizes.values() for name in one["coverage"]):
        shares = [one["coverage"].get(measure_name, [math.nan] * 3) for one in sizes.values()]
        cells = (f"{100 * inside:5.1f} ({100 * below:.1f}/{100 * above:.1f})" for below, inside, above in shares)
        print(f"{measure_name:22}", *(f"{cell:>18}" for cell in cells))
    print("tests reject", {n: one["rejected"] for n, one in sizes.items()}, flush=True)


def save(path: Path | None, found: dict[str, Any]) -> None:
    """Write the study, and its table beside it."""
    if path:
        write(path, {**machine(), **found})
        kinds = list(dict.fromkeys(name.partition(":")[0] for name in found if ":" in name))
        parts = [
            f"{kind}\n\n{extremes({name: one for name, one in found.items() if name.startswith(f'{kind}:')})}\n"
            for kind in kinds
        ]
        path.with_suffix(".md").write_text("\n".join(parts) or f"{extremes(found)}\n", encoding="utf-8")


def _given(cell: dict[str, Any], name: str) -> bool:
    """Whether at least half of the draws have that interval."""
    return cell.get("without", {}).get(name, 0.0) <= 0.5


def extremes(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """A Markdown table: the lowest and the highest coverage over populations, by measure and number of samples.

    Populations in which most draws have no interval are left out.
    """
    sizes = sorted({n for by_size in found.values() for n in by_size}, key=int)
    names = dict.fromkeys(name for by_size in found.values() for one in by_size.values() for name in one["coverage"])
    lines = [f"| measure | {' | '.join(f'n = {int(n):,}' for n in sizes)} |", f"|---|{'---:|' * len(sizes)}"]
    for name in names:
        cells = [
            [one[n]["coverage"].get(name) for one in found.values() if n in one and _given(one[n], name)] for n in sizes
        ]
        shares = [[100 * cell[1] for cell in one if cell] for one in cells]
        said = (
            " – ".join(f"{end:.1f}" for end in dict.fromkeys((min(one), max(one)))) if one else "" for one in shares
        )
        lines.append(f"| `{name}` | {' | '.join(said)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print; one table for each population, or the means over classes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 1000, 5000, 20000])
    parser.add_argument("--rare", action="store_true", help="populations with few events instead")
    parser.add_argument("--classes", type=int, nargs="*", help="means over so many classes instead, such as 4 10")
    parser.add_argument("--populations", nargs="*", default=[one.name for one in POPULATIONS], help="with --classes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes; the results are the same for any number")
    parser.add_argument("--out", type=Path, help="a JSON file; the table of extremes is written beside it")
    options = parser.parse_args()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    if options.classes and options.out and options.out.exists():  # more of the same study
        before = json.loads(options.out.read_text(encoding="utf-8"))
        found = {name: one for name, one in before.items() if " classes: " in name}
    parts = [(i, min(PART, options.draws - PART * i)) for i in range(-(-options.draws // PART))]
    with ProcessPoolExecutor(options.jobs) as pool:
        pending: dict[tuple[str, int], list[Future[Counts]]] = {}
        if options.classes:
            populations = [one for one in POPULATIONS if one.name in options.populations]
            pairs = list(product(sorted(options.classes, reverse=True), populations))  # the longest first
            truths = {pair: pool.submit(pair[1].truth, pair[0], SAMPLES) for pair in pairs}
            for (k, one), truth in truths.items():
                for n in options.sizes:
                    pending[f"{k} classes: {one.name}", n] = [
                        pool.submit(draw_classes, one, k, n, draws, [options.seed, n, i], truth.result())
                        for i, draws in parts
                    ]
        else:
            worlds, least = (RARE, LEAST) if options.rare else (WORLDS, 0)
            for world, n in ((world, n) for world in worlds for n in options.sizes):
                pending[world.name, n] = [
                    pool.submit(draw_binary, world, n, draws, [options.seed, n, i], least) for i, draws in parts
                ]
        for (name, n), futures in pending.items():
            found.setdefault(name, {})[str(n)] = gather((future.result() for future in futures), options.draws)
            save(options.out, found)
            if n == options.sizes[-1]:
                show(name, found[name])


if __name__ == "__main__":
    main()
