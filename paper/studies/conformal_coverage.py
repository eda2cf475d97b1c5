"""Whether conformal sets cover what they promise, by simulation: n = 3 to 10,000 held-out samples, and sites that
differ.

    python -m paper.studies.conformal_coverage [--draws 2000] [--out STEM]

Samples: three classes, logits normal around the label's, 20 sites or one. The scaler is fitted once, on samples of
its own. In every draw, n held-out samples set the threshold (from histograms, as in `methods/sets.py`), and 50 fresh
samples are measured. Without the rule that a set is never empty, coverage would lie between 1 − α and 1 − α + 1/(n +
1), plus a bin: the column `score` shows that share, of labels whose score is within the threshold; `set` shows that
of labels in their sets.

Sites: a site's scores are normal with a mean of its own, which has the standard deviation `spread` over sites. Its
true coverage at a threshold is known. The table shows which share of sites is truly under target with one threshold
for all (`pooled`) and with site thresholds at a confidence of 90 %, which promise 10 % (`site`), and both mean
coverages.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import norm

import fedcal
from fedcal.base.conformal import LEVELS, count_scores, edges_of, level_of, rank_of, scores_of, sets_of, threshold_curve
from fedcal.base.site_sets import site_curve, spread_likelihood, weigh
from paper.results import machine, write

SIZES = (3, 5, 9, 10, 19, 30, 100, 300, 1000, 10_000)
ALPHAS = (0.05, 0.1, 0.3)
ALPHA = 0.1  # of sites
FRESH = 50
SITES = ((20, 50, 0.0), (20, 50, 0.2), (20, 50, 0.5), (20, 10, 0.5), (20, 200, 0.3), (5, 50, 0.3), (100, 20, 0.3))


def samples(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Logits of an over-confident model, and labels; class 2 is rare."""
    y = rng.choice(3, size=n, p=[0.6, 0.3, 0.1])
    return 2 * (rng.normal(size=(n, 3)) + np.eye(3)[y]), y


def marginal(draws: int, kind: Literal["lac", "aps"]) -> dict[str, Any]:
    """For every α and n: the share of covered labels, by score and by set, and its standard error."""
    rng = np.random.default_rng(0)
    scaler = fedcal.calibrate([samples(2000, rng)], "fed-ts")
    edges = edges_of(kind, 3, 8192)
    found: dict[str, Any] = {}
    for n in SIZES:
        by_score, by_set = np.zeros((2, len(ALPHAS), draws))
        for draw in range(draws):
            x, y = samples(n + FRESH, rng)
            scores = scores_of(kind, scaler.predict_proba(x))
            own = scores[np.arange(len(y)), y]
            curve = threshold_curve(count_scores(own[:n], edges), edges)
            for i, alpha in enumerate(ALPHAS):
                threshold = curve[level_of(alpha)]
                by_score[i, draw] = (own[n:] <= threshold).mean()
                by_set[i, draw] = sets_of(scores[n:], threshold)[np.arange(FRESH), y[n:]].mean()
        for i, alpha in enumerate(ALPHAS):
            found[f"{alpha:g} {n}"] = {
                "promised": 1 - alpha,
                "expected": min(float(rank_of(alpha, n)) / (n + 1), 1.0),
                "score": float(by_score[i].mean()),
                "set": float(by_set[i].mean()),
                "error": float(by_set[i].std() / np.sqrt(draws)),
            }
    return found


def of_sites(sites: int, n: int, spread: float, draws: int) -> dict[str, float]:
    """The share of sites truly under target, and mean coverage, pooled and by site."""
    rng, level = np.random.default_rng(0), level_of(ALPHA)
    pooled, own = [], []
    for _ in range(draws):
        means = spread * rng.normal(size=sites)
        scores = [np.sort(rng.normal(mean, 1, size=n)) for mean in means]
        ranked, total = np.sort(np.concatenate(scores)), sites * n
        rank = rank_of(LEVELS, total)
        curve = np.append(np.where(rank <= total, ranked[np.minimum(rank, total) - 1], np.inf), np.inf)
        below = [np.searchsorted(one, curve[:-1], side="right").astype(np.float64) for one in scores]
        weights = weigh(np.sum([spread_likelihood(one, n, total) for one in below], axis=0))
        for mean, one in zip(means, below, strict=True):
            pooled.append(norm.cdf(curve[level] - mean))
            own.append(norm.cdf(site_curve(one, n, total, weights, 0.9, curve)[level] - mean))
    return {
        "pooled_under": float(np.mean(np.array(pooled) < 1 - ALPHA)),
        "pooled_covered": float(np.mean(pooled)),
        "site_under": float(np.mean(np.array(own) < 1 - ALPHA)),
        "site_covered": float(np.mean(own)),
        "sites": len(own),
    }


def table(found: dict[str, Any]) -> str:
    """All figures as Markdown."""
    lines = []
    for kind in ("lac", "aps"):
        cells = found[kind]
        lines += [f"`{kind}`: covered labels in %, by score, and by set (no set is empty); ± is a standard error.", ""]
        lines += ["| n | " + " | ".join(f"α = {alpha:g}: rank / (n + 1) | score | set" for alpha in ALPHAS) + " |"]
        lines += ["|---:|" + "---:|---:|---:|" * len(ALPHAS)]
        for n in SIZES:
            row = [cells[f"{alpha:g} {n}"] for alpha in ALPHAS]
            words = (
                f"{100 * c['expected']:.2f} | {100 * c['score']:.2f} | {100 * c['set']:.2f} ± {100 * c['error']:.2f}"
                for c in row
            )
            lines += [f"| {n:,} | " + " | ".join(words) + " |"]
        lines += [""]
    lines += ["Sites truly under the target of 90 %, in %, and mean coverage:", ""]
    lines += ["| sites | held out at each | spread | pooled: under | covered | site: under | covered |"]
    lines += ["|---:|---:|---:|---:|---:|---:|---:|"]
    for name, cell in found["sites"].items():
        sites, n, spread = name.split()
        shown = (cell[key] for key in ("pooled_under", "pooled_covered", "site_under", "site_covered"))
        lines += [f"| {sites} | {n} | {spread} | " + " | ".join(f"{100 * value:.1f}" for value in shown) + " |"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--site-draws", type=int, default=2000, help="sites in all, for each row")
    parser.add_argument("--out", type=Path, help="where to write, without an ending")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"machine": machine(), "draws": args.draws}
    found |= {kind: marginal(args.draws, kind) for kind in ("lac", "aps")}
    found["sites"] = {
        f"{sites} {n} {spread:g}": of_sites(sites, n, spread, max(args.site_draws // sites, 1))
        for sites, n, spread in SITES
    }
    text = table(found)
    print(text)
    if args.out:
        write(args.out.with_suffix(".json"), found, depth=2)
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
