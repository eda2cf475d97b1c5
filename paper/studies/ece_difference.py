"""How often the interval of a difference of two ECEs holds the truth, and how often it tells two methods apart.

    python -m paper.studies.ece_difference [--simulations 300] [--seed 0] [--out FILE.md]

Two views of the same samples: each says a confidence, with the same predictions or with every tenth one drawn again. Beside
the paired difference: whether the two views' own 95 % intervals overlap.
Results: paper/results/studies/ece-difference.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit, logit

from fedcal.base.seeds import numpy_rng
from fedcal.base.store import write_bytes
from fedcal.measure.paired import Paired
from fedcal.measure.reliability import Reliability, find_bins
from paper.results import STUDIES, commit
from paper.studies.ece_interval import EDGES, confidences

SAMPLES = (200, 1_000, 5_000, 20_000)
VIEWS = {
    "calibrated": lambda p: p,
    "T = 0.9": lambda p: expit(logit(p) / 0.9),
    "T = 0.67": lambda p: expit(logit(p) / 0.67),
    "T = 0.33": lambda p: expit(logit(p) / 0.33),
    "T = 1.25": lambda p: expit(logit(p) / 1.25),
    "+ 3 points": lambda p: np.clip(p + 0.03, 0.01, 0.99999),
    "− 5 points": lambda p: np.clip(p - 0.05, 0.01, 0.99999),
    "± 3 points": lambda p: np.clip(p + 0.03 * np.sin(40 * p), 0.01, 0.99999),
    "± 10 points": lambda p: np.clip(p + 0.1 * np.sin(40 * p), 0.01, 0.99999),
}
PAIRS = (
    ("calibrated", "T = 0.9"), ("calibrated", "T = 0.67"), ("T = 0.9", "T = 0.67"), ("calibrated", "+ 3 points"),
    ("calibrated", "± 3 points"), ("+ 3 points", "− 5 points"), ("T = 0.9", "T = 1.25"), ("T = 0.67", "T = 0.33"),
    ("± 3 points", "± 10 points"), ("calibrated", "± 10 points"), ("T = 1.25", "T = 1.25"),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    kind: str
    pair: tuple[str, str]
    redrawn: float  # share of the second view's predictions that are right or wrong independently
    n: int
    truth: float
    coverage: float
    told: float  # how often the paired interval leaves 0 out
    apart: float  # how often the two separate intervals do not overlap


def ece(confidence: np.ndarray, p: np.ndarray) -> float:
    return float(np.abs(np.bincount(find_bins(confidence, EDGES), confidence - p, 15)).sum() / len(p))


def measure(kind: str, pair: tuple[str, str], redrawn: float, n: int, times: int, seed: int) -> Cell:
    p = confidences()[kind]
    first, second = (VIEWS[name](p) for name in pair)
    truth = ece(first, p) - ece(second, p)
    rng = numpy_rng(seed, "ece difference", f"{kind} {pair} {redrawn} {n}")
    covered = told = apart = 0
    for _ in range(times):
        i = rng.integers(0, len(p), n)
        hits = rng.random(n) < p[i]
        others = np.where(rng.random(n) < redrawn, rng.random(n) < p[i], hits)
        _, low, high = Paired.of({"a": (first[i], hits), "b": (second[i], others)}).difference("a", "b")
        a, b = (Reliability.of_top(*view, EDGES).interval() for view in ((first[i], hits), (second[i], others)))
        covered += low <= truth <= high
        told += not low <= 0 <= high
        apart += a[1] < b[0] or b[1] < a[0]
    return Cell(kind, pair, redrawn, n, truth, covered / times, told / times, apart / times)


def table(cells: list[Cell], simulations: int, seed: int, commit: str) -> str:
    worst, real = min(cells, key=lambda c: c.coverage), [c for c in cells if abs(c.truth) > 1e-4]
    told, apart = (np.mean([getattr(c, name) for c in real]) for name in ("told", "apart"))
    wrong = [c.told for c in cells if abs(c.truth) <= 1e-4]
    lines = [
        "# Coverage and power of the paired difference of two ECEs",
        "",
        f"`python -m paper.studies.ece_difference`: {simulations} simulations per cell, seed {seed}, after commit {commit}. "
        f"{len(cells)} cells.",
        "",
        f"- Lowest coverage of the nominal 95 % interval: {worst.coverage:.1%} ({worst.kind}, {worst.pair[0]} and "
        f"{worst.pair[1]}, n = {worst.n}).",
        f"- Where the ECEs differ, the paired interval tells them apart in {told:.1%} of all simulations, two separate "
        f"intervals that do not overlap in {apart:.1%}. Where they do not differ, in {max(wrong, default=0):.1%} at most.",
        "",
        "| confidences | views | redrawn | n | true difference, points | coverage % | told apart % | no overlap % |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for c in cells:
        numbers = (100 * c.truth, 100 * c.coverage, 100 * c.told, 100 * c.apart)
        shown = " | ".join(f"{x:.{d}f}" for x, d in zip(numbers, (2, 1, 0, 0), strict=True))
        lines.append(f"| {c.kind} | {c.pair[0]}, {c.pair[1]} | {c.redrawn:.0%} | {c.n} | {shown} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=STUDIES / "ece-difference.md")
    asked = parser.parse_args()
    cells = []
    for kind in ("flat", "peaked", "mixed", "extreme"):
        for pair in PAIRS:
            for redrawn in (0.0, 0.1):
                for n in SAMPLES:
                    cells.append(measure(kind, pair, redrawn, n, asked.simulations, asked.seed))
                    print(cells[-1], flush=True)
    write_bytes(asked.out, table(cells, asked.simulations, asked.seed, commit()).encode())
    print(asked.out)


if __name__ == "__main__":
    main()
