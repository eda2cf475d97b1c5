"""How often does `fedcal monitor` find probabilities wrong without any drift, when the calibration set was small?

    python -m paper.studies.monitor_small --jobs 2 --out paper/results/studies/monitor-small.json

Three sites calibrate with `fedcal-plus` on n samples each, then send 200 batches of 20 samples of the same population. Class
y has the features 2 e_y + noise, and the model's logits are three times the features: a bias and a temperature make them
right, so that what the monitor finds is the noise of the calibration. A second part sorts the batches of one site.

Calibration is `fedcal.calibrate`. The sums and the evidence are those of `fedcal.Monitor`, for all batches at once
(tests/paper/test_monitor_small.py compares them).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

import fedcal
from fedcal.monitor.alternatives import calibration_ratios, share_bounds, share_ratios
from fedcal.monitor.batch import TOLERANCE, assumed_by
from fedcal.monitor.state import ALPHA, BOUNDS, share_of
from fedcal.monitor.stream import no_evidence
from fedcal.monitor.verdict import Null
from paper.results import machine, write

SITES = ("a", "b", "c")
SIZES = (30, 300, 3000)  # calibration samples per site
BATCHES, PER_BATCH = 200, 20
LARGER = 0.5  # the other tolerance
STREAMS = 200
PART = 10  # streams of one task
SORTED = 30  # batches that one site sorts
DISTANCE, SHARPNESS = 2.0, 3.0
Samples = tuple[np.ndarray, np.ndarray]  # logits and labels


@dataclass(frozen=True)
class Population:
    """How often each class occurs at each site."""

    name: str
    priors: np.ndarray  # (sites, K)

    def draw(self, site: int, n: int, rng: np.random.Generator) -> Samples:
        k = self.priors.shape[1]
        labels = rng.choice(k, n, p=self.priors[site])
        return SHARPNESS * (DISTANCE * np.eye(k)[labels] + rng.standard_normal((n, k))), labels


def _rolled(weights: np.ndarray, step: int) -> np.ndarray:
    """The same shares at every site, of other classes."""
    return np.stack([np.roll(weights / weights.sum(), step * site) for site in range(len(SITES))])


POPULATIONS = (
    Population("four classes", _rolled(np.array([4.0, 3.0, 2.0, 1.0]), 1)),
    Population("two classes, one rare", np.array([[0.97, 0.03], [0.95, 0.05], [0.92, 0.08]])),
    Population("twenty classes", _rolled(1 / np.arange(1.0, 21.0), 7)),
)


@dataclass(frozen=True)
class Federation:
    """A scaler, what it was fitted on, and what the sites see afterwards."""

    scaler: fedcal.Scaler
    calibration: dict[str, Samples]
    later: dict[str, Samples]

    @classmethod
    def draw(cls, population: Population, n: int, rng: np.random.Generator) -> Federation:
        calibration = {name: population.draw(site, n, rng) for site, name in enumerate(SITES)}
        later = {name: population.draw(site, BATCHES * PER_BATCH, rng) for site, name in enumerate(SITES)}
        return cls(fedcal.calibrate(calibration), calibration, later)

    def probabilities(self, tolerance: float) -> Tensor:
        """(sites, batches, A) log-likelihood ratios of the probabilities."""
        return torch.stack([_batches(self._ratios(name, tolerance)) for name in SITES])

    def label_counts(self, reference: bool) -> Tensor:
        """(sites, batches, A) the same of the label counts."""
        k = self.scaler.n_classes
        ratios = []
        for name in SITES:
            counts = _batches(one_hot(torch.from_numpy(self.later[name][1]), k).double())
            ratios.append(share_ratios(counts, PER_BATCH, *self._bounds(name, reference)))
        return torch.stack(ratios)

    def _ratios(self, name: str, tolerance: float) -> Tensor:
        logits, labels = self.later[name]
        calibrated = torch.as_tensor(self.scaler.apply(logits, name)).double()
        return calibration_ratios(calibrated, torch.from_numpy(labels), tolerance)

    def _bounds(self, name: str, reference: bool) -> tuple[Tensor, Tensor]:
        if reference:
            labels = self.calibration[name][1]
            share = torch.from_numpy(np.bincount(labels, minlength=self.scaler.n_classes) / len(labels))
            return share_bounds(share, TOLERANCE, len(labels), ALPHA * BOUNDS / (2 * len(SITES)))
        if (assumed := assumed_by(self.scaler, name)) is not None:
            return share_bounds(assumed, TOLERANCE)
        k = self.scaler.n_classes  # all samples were of one class: no prior shift, and the monitor has no such test
        return torch.zeros(k, dtype=torch.float64), torch.ones(k, dtype=torch.float64)


def _batches(values: Tensor) -> Tensor:
    """(samples, …) to sums over the samples of each batch."""
    return values.view(-1, PER_BATCH, values.shape[1]).sum(1)


def evidence(null: Null, ratios: Tensor, n_classes: int, n_sites: int) -> Tensor:
    """(…, batches, A) to (…, batches): the log of the evidence after each batch, its share of alpha included."""
    now, curve = no_evidence(null, n_classes, ratios.shape[:-2]), []
    for ratio in ratios.unbind(-2):
        now = now.add(ratio)
        curve.append(now.log_value)
    return torch.stack(curve, -1) + math.log(share_of("site", null, n_sites))


def alarms(curves: Tensor) -> Tensor:
    """(…, batches) to (…): whether the evidence ever reaches the line."""
    return curves.amax(-1) >= math.log(1 / ALPHA)


def part(population: Population, n: int, streams: Sequence[int], seed: Sequence[int]) -> dict[str, int]:
    """Number of streams with an alarm at some site, for each test."""
    made = [Federation.draw(population, n, np.random.default_rng([*seed, stream])) for stream in streams]
    tests = {
        f"probabilities, tolerance {TOLERANCE:g}": (Null.CALIBRATION, [one.probabilities(TOLERANCE) for one in made]),
        f"probabilities, tolerance {LARGER:g}": (Null.CALIBRATION, [one.probabilities(LARGER) for one in made]),
        "label counts, with a reference": (Null.LABELS, [one.label_counts(True) for one in made]),
        "label counts, without": (Null.LABELS, [one.label_counts(False) for one in made]),
    }
    k = population.priors.shape[1]
    return {
        name: int(alarms(evidence(null, torch.stack(ratios), k, len(SITES))).any(1).sum())
        for name, (null, ratios) in tests.items()
    }


def table(streams: int, seed: int, jobs: int) -> dict[str, dict[str, Any]]:
    """Streams with an alarm, in per cent, by population and calibration samples per site."""
    parts = [range(at, min(at + PART, streams)) for at in range(0, streams, PART)]
    found: dict[str, dict[str, Any]] = {}
    with ProcessPoolExecutor(jobs, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        pending = {
            (population.name, n): [pool.submit(part, population, n, which, (seed, number, n)) for which in parts]
            for number, population in enumerate(POPULATIONS)
            for n in SIZES
        }
        for (name, n), futures in pending.items():
            counts = [future.result() for future in futures]
            shares = {test: round(100 * sum(one[test] for one in counts) / streams, 1) for test in counts[0]}
            found.setdefault(name, {})[str(n)] = shares
            print(name, n, shares, flush=True)
    return found


def sorted_batches(streams: int, seed: int) -> dict[str, Any]:
    """One site, exact probabilities, tolerance 0: batches in the order in which they came, and sorted.

    A site that sorts first sends the batches with the highest likelihood ratio of one alternative. It may take the first
    alternative (class 0 occurs more often than predicted), or for each stream the one that gives the most evidence.
    """
    population, rng = POPULATIONS[0], np.random.default_rng([seed, len(POPULATIONS)])
    k, ratios = population.priors.shape[1], []
    for _ in range(streams):
        logits, labels = population.draw(0, SORTED * PER_BATCH, rng)
        true = torch.from_numpy(DISTANCE / SHARPNESS * logits + np.log(population.priors[0]))
        ratios.append(_batches(calibration_ratios(true, torch.from_numpy(labels), 0.0)))
    came = torch.stack(ratios)  # (streams, batches, A)
    order = came.argsort(1, descending=True).movedim(2, 1)  # (streams, A, batches): by each alternative
    ordered = came[torch.arange(streams)[:, None, None], order]  # (streams, A, batches, A)
    found = alarms(evidence(Null.CALIBRATION, ordered, k, 1))
    as_came = alarms(evidence(Null.CALIBRATION, came, k, 1))
    return {
        "streams": streams,
        "batches": SORTED,
        "in the order in which they came": percent(as_came),
        "sorted by the first alternative": percent(found[:, 0]),
        "sorted by the best alternative": percent(found.any(1)),
    }


def percent(which: Tensor) -> float:
    return round(100 * float(which.double().mean()), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=STREAMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes; the results are the same for any number")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {**machine(), "alpha": ALPHA, "streams": args.streams, "seed": args.seed}
    found["no drift"] = table(args.streams, args.seed, args.jobs)
    found["sorted"] = sorted_batches(args.streams, args.seed)
    print(found["sorted"], flush=True)
    if args.out:
        write(args.out, found, depth=3)


if __name__ == "__main__":
    main()
