"""Conformal sets on real federations: coverage, size, and the share of sites under target, by kind of coverage.

    python -m paper.studies.conformal FILE.npz … [--alpha 0.1] [--score lac] [--method fedcal-plus] [--out STEM]

Files as for federated_logits.py: a federation each, also recordings of Table 1's. Calibration splits fit the scaler
and set the thresholds (a fifth of each is held out for them); the test samples are used once, to measure. Every
site's samples are scored by its personal scaler, except in the row `global`.

    global     one threshold, the global scaler: what a site gets that has no scaler of its own
    marginal   one threshold for all samples
    class      one per class
    local      one per site, from the site's own held-out samples alone: what shrinking is measured against
    site       one per site, shrunk towards the federation's

A site is *under target* if the share of its test labels that are in their sets is below 1 − α. Chance alone does that
to half of the sites whose sets cover exactly 1 − α. So it is also counted which sites are under target *beyond
noise*: at most so many labels would be covered with probability below 5 % (binomial) if the site's coverage were 1 −
α.

STEM.json gets each federation's figures, STEM.md the table.
"""

from __future__ import annotations

import argparse
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binom

import fedcal
from fedcal.base.arrays import as_array
from fedcal.base.conformal import count_scores, level_of, sets_of, threshold_curve
from fedcal.base.folds import held_out
from fedcal.methods.sets import WithSets
from fedcal.protocol import Scaler
from paper.logits import Split, read
from paper.results import machine, write

KINDS = ("global", "marginal", "class", "local", "site")
NOISE = 0.05


def local_sets(scaler: Scaler, name: str, cal: Split, logits: torch.Tensor, alpha: float) -> np.ndarray:
    """Sets by a site's own held-out samples alone."""
    method, (z, y) = scaler.method, map(as_array, cal[name])
    assert isinstance(method, WithSets)
    personal, held = scaler.personal_of(name), held_out(z, y)
    edges = method.sets.edges(z.shape[1])
    own = method.scores(scaler.params, personal, z[held])[np.arange(int(held.sum())), y[held]]
    threshold = threshold_curve(count_scores(own, edges), edges)[level_of(alpha)]
    return sets_of(method.scores(scaler.params, personal, as_array(logits)), threshold)


def measure(path: Path, method: str, alpha: float, score: str) -> dict[str, Any]:
    """Of each kind: for every site its test samples, how many are covered, and the sum of the sets' sizes."""
    cal, test = read(path)
    fitted = {
        c: fedcal.calibrate(cal, method, alpha=alpha, coverage=c, score=score) for c in ("marginal", "class", "site")
    }
    found: dict[str, list[list[int]]] = {kind: [] for kind in KINDS}
    for name, (x, y) in test.items():
        for kind in KINDS if len(y) else ():
            scaler = fitted.get(kind, fitted["marginal"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", fedcal.FedCalWarning)  # of classes with too few samples
                if kind == "local":
                    sets = local_sets(scaler, name, cal, x, alpha)
                else:
                    sets = scaler.predict_set(x.numpy(), alpha, None if kind == "global" else name)
            found[kind].append([len(y), int(sets[np.arange(len(y)), y.numpy()].sum()), int(sets.sum())])
    site = fitted["site"]
    return {
        "calibration": {name: len(y) for name, (_, y) in cal.items()},
        "held_out": int(site.params["set_counts"].sum()),
        "bytes_up": {c: scaler.ledger.total_up for c, scaler in fitted.items()},
        "sites": found,
    }


def summarise(sites: list[list[int]], alpha: float) -> dict[str, float]:
    """Coverage and size over all samples, and the sites under target."""
    n, hit, size = np.array(sites).T
    return {
        "coverage": hit.sum() / n.sum(),
        "size": size.sum() / n.sum(),
        "lowest_site": float((hit / n).min()),
        "sites": len(n),
        "under": float((hit < (1 - alpha) * n).mean()),
        "beyond_noise": float((binom.cdf(hit, n, 1 - alpha) < NOISE).mean()),
    }


def table(found: dict[str, Any], alpha: float) -> str:
    """The means over federations, and each federation's site-conditional row, as Markdown."""
    rows = {kind: [summarise(of["sites"][kind], alpha) for of in found.values()] for kind in KINDS}
    plain = [row["size"] for row in rows["marginal"]]
    lines = [
        f"{len(found)} federations, α = {alpha:g}; means over federations. Size: classes in a set.",
        "",
        "| coverage | covered % | size | times marginal | sites under target % | beyond noise % | lowest site % |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]

    def line(name: str, some: list[dict[str, float]], sizes: list[float]) -> str:
        mean = {key: float(np.mean([row[key] for row in some])) for key in some[0]}
        ratio = float(np.mean([row["size"] / size for row, size in zip(some, sizes, strict=True)]))
        shares = " | ".join(f"{100 * mean[key]:.1f}" for key in ("under", "beyond_noise", "lowest_site"))
        return f"| {name} | {100 * mean['coverage']:.2f} | {mean['size']:.3f} | {ratio:.3f} | {shares} |"

    lines += [line(f"`{kind}`", rows[kind], plain) for kind in KINDS]
    lines += ["", "Each federation:", "", *lines[2:4]]
    for number, name in enumerate(found):
        for kind in ("marginal", "site"):
            lines.append(line(f"{name}, `{kind}`", [rows[kind][number]], [plain[number]]))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--alpha", type=float, default=0.1)
    parser.add_argument("--score", choices=["lac", "aps", "raps"], default="lac")
    parser.add_argument("--method", default="fedcal-plus")
    parser.add_argument("--out", type=Path, help="where to write, without an ending")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    with ProcessPoolExecutor(args.jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {path: pool.submit(measure, path, args.method, args.alpha, args.score) for path in args.files}
        found = {path.name if path.is_dir() else path.stem: future.result() for path, future in futures.items()}
    text = table(found, args.alpha)
    print(text)
    if args.out:
        asked = {"machine": machine(), "alpha": args.alpha, "score": args.score, "method": args.method}
        write(args.out.with_suffix(".json"), {**asked, "federations": found}, depth=2)
        args.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
