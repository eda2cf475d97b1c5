"""What `fedcal calibrate` does: fit a scaler on files, and estimate how good it is on samples that it has not seen."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from fedcal.assess.evaluation import Evaluation, evaluate_samples, name_classes
from fedcal.base.arrays import Array
from fedcal.base.seeds import numpy_rng
from fedcal.base.store import write_json
from fedcal.cli.progress import Parts, fitting
from fedcal.data import logit_files
from fedcal.data.samples import name_columns
from fedcal.errors import FedCalError, FedCalWarning, counted
from fedcal.measure.conformal import SetTally
from fedcal.measure.views import Measured, View, measure, unchanged
from fedcal.methods import Method, method_to_json
from fedcal.methods.sets import WithSets
from fedcal.protocol import Scaler, Server
from fedcal.report.evaluation import write_page
from fedcal.report.sites import metrics_json
from fedcal.transport.memory import Exchange

Sites = Mapping[str, tuple[Array, Array]]
HELD_OUT = 5  # one sample of so many is held out for the estimate
SCALER, SUMMARY, PAGE, FIGURES = WRITTEN = "scaler.safetensors", "summary.json", "report.html", "report.json"


@dataclass(frozen=True)
class Outcome:
    """A scaler that was fitted on all samples, and how good one of four fifths of them was on the others."""

    final: Scaler
    summary: dict[str, Any]  # what summary.json holds
    estimated: Measured | None  # None where no samples could be held out
    evaluated: tuple[Evaluation, Evaluation] | None  # before and after; None also where no report was asked for

    @property
    def is_personal(self) -> bool:
        """Whether the verdict is on the sites' personal scalers; else it is on the global one."""
        return any(self.final.personal.values())

    def write(self, folder: Path) -> None:
        """Write the scaler, the summary and the report; a report of an earlier scaler is deleted."""
        self.final.save(folder / SCALER)
        write_json(folder / SUMMARY, self.summary)
        for old in (PAGE, FIGURES):
            (folder / old).unlink(missing_ok=True)
        if self.evaluated:
            before, after = self.evaluated
            write_json(folder / FIGURES, after.to_json() | {"before": before.to_json()})
            title = f"{counted(len(self.summary['clients']), 'site')} after {self.final.method.name}"
            held_out = " that the scaler was not fitted on (a fifth of each site's)"
            held_out += ", calibrated by their site's personal scaler," if self.is_personal else ""
            steps = next_steps(shlex.quote(str(folder / SCALER)), shlex.quote(next(iter(self.summary["clients"]))))
            write_page(folder / PAGE, after, title, before, steps, held_out)


def calibrate(read: logit_files.Sites, method: Method, seed: int, report: bool, parts: Parts) -> Outcome:
    """Fit on four fifths of the samples and measure that on the others; then fit on all.

    Args:
        read: the sites.
        method: the method.
        seed: the same seed gives the same scaler.
        report: whether to evaluate the held-out samples too.
        parts: shows the progress.
    """
    estimated = sets = evaluated = None
    expected = None if method.additive else method.rounds
    kept, held = hold_out(read.samples, seed)
    if any(len(labels) for _, labels in held.values()):
        with fitting(parts, "four fifths of the samples", expected) as on_round:
            first = fit(kept, method, seed, on_round)
        expected = first.ledger.rounds  # the same fit on a quarter more samples
        estimated = estimate(first, parts.over("measuring sample", held, lambda pair: len(pair[1])))
        sets = estimate_sets(first, held)
        evaluated = evaluations(first, held, name_classes(read.classes)) if report else None
    with fitting(parts, "all samples", expected) as on_round:
        final = fit(read.samples, method, seed, on_round)
    final.classes, final.probs = name_columns(read.classes), read.probs or None
    return Outcome(final, summary(final, read.samples, seed, estimated, sets), estimated, evaluated)


def fit(sites: Sites, method: Method, seed: int, on_round: Callable[[Server], None]) -> Scaler:
    """Fit like `fedcal.calibrate`, with the sites sorted by name, so that an exchange of files gives the same bytes.

    Args:
        sites: each site's logits and labels.
        method: the method.
        seed: the same seed gives the same scaler.
        on_round: called after every round.

    Raises:
        FedCalError: the method needs a model in training.
    """
    samples = dict(sorted(sites.items()))
    if not method.rounds and method.name != "uncal":
        raise FedCalError(
            f"{method.name} is fitted while a model is trained: choose another, or --method {method.name}:rounds=30"
        )
    n_classes = next(iter(samples.values()))[0].shape[1]
    return Exchange(Server(method, n_classes, seed, history=False)).run(samples, on_round)


def hold_out(sites: Sites, seed: int) -> tuple[dict[str, tuple[Array, Array]], dict[str, tuple[Array, Array]]]:
    """Split every site's samples at random.

    Returns:
        The samples to fit on, and a fifth to measure on (nothing of a site with fewer than five samples).
    """
    kept, held = {}, {}
    for name, (logits, labels) in sites.items():
        order = numpy_rng(seed, "held-out", name).permutation(len(labels))
        cut = len(labels) // HELD_OUT
        held[name] = logits[order[:cut]], labels[order[:cut]]
        kept[name] = logits[order[cut:]], labels[order[cut:]]
    return kept, held


def _filled(sites: Sites) -> Sites:
    """The sites that have samples."""
    return {site: samples for site, samples in sites.items() if len(samples[1])}


def estimate(fitted: Scaler, held: Sites) -> Measured:
    """Measure the sites with held-out samples: `before`, by the `global` scaler, and by each site's personal one (`own`)."""
    views: dict[str, View] = {
        "before": unchanged,
        "global": lambda _, logits: fitted.apply(logits, probs=False),
        "own": lambda site, logits: fitted.apply(logits, site, probs=False),
    }
    return measure(_filled(held), views)


def estimate_sets(fitted: Scaler, held: Sites) -> dict[str, dict[str, float]] | None:
    """Coverage and mean size of the sets on held-out samples, by the `global` scaler and by personal ones (`own`)."""
    if not isinstance(fitted.method, WithSets):
        return None
    found, filled = {}, _filled(held)
    for view in ("global", "own"):
        tallies = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedCalWarning)  # of too few samples: `too_few` says so
            for site, (logits, labels) in filled.items():
                sets = fitted.predict_set(logits, None, site if view == "own" else None, probs=False)
                tallies.append(SetTally.of(sets, labels))
        whole = reduce(add, tallies)
        found[view] = {"coverage": whole.coverage, "target": 1 - fitted.method.sets.alpha, "size": whole.mean_size}
    return found


def too_few(scaler: Scaler, alpha: float | None = None) -> str:
    """One line, where the scaler's sets hold every class because there were too few samples; else nothing."""
    if not isinstance(scaler.method, WithSets):
        return ""
    line = scaler.method.too_few(scaler.params, scaler.method.sets.alpha if alpha is None else alpha)
    return f"Sets: {line}." if line else ""


def evaluations(fitted: Scaler, held: Sites, classes: Sequence[str]) -> tuple[Evaluation, Evaluation]:
    """Evaluate the held-out samples: before calibration, and after it by each site's personal scaler.

    Args:
        fitted: a scaler that has not seen them.
        held: each site's samples; sites without any are left out.
        classes: the names of the classes; their numbers if empty.
    """
    shown = _filled(held)
    groups: dict[str, dict[str, Any]] = {site: {} for site in shown}
    views: tuple[View, View] = (unchanged, lambda site, logits: fitted.apply(logits, site, probs=False))
    before, after = (evaluate_samples(shown, view, groups, classes) for view in views)
    return before, after


def next_steps(scaler: str, site: str) -> list[tuple[str, str]]:
    """What to do with a scaler: sentences, each with its command.

    Args:
        scaler: its file, as a shell reads it.
        site: one that took part, likewise.
    """
    return [
        (
            "Calibrate new predictions of a site. For a file of several sites, with a column `site`, pass --own instead.",
            f"fedcal apply {scaler} new.csv --client {site} --out calibrated.csv",
        ),
        (
            "Look again when you have new labelled samples, in files named by their sites or with a column `site`: "
            "calibration breaks when the data change.",
            f"fedcal evaluate FILE... --scaler {scaler} --own --report check.html",
        ),
    ]


def summary(
    final: Scaler, sites: Sites, seed: int, estimated: Measured | None, sets: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The content of summary.json: what was fitted, what it cost, who took part, and the estimate.

    Args:
        final: the scaler, fitted on all samples.
        sites: those samples.
        seed: of the fit.
        estimated: what `estimate` gave; None where no samples could be held out.
        sets: what `estimate_sets` gave; None where the scaler has no sets.
    """
    n = {site: len(labels) for site, (_, labels) in sites.items()}
    return {
        "schema": 2,
        **method_to_json(final.method),
        "seed": seed,
        "classes": final.n_classes,
        "n": sum(n.values()),
        "clients": n,
        "scaler": {
            "data": "fitted on all samples of all clients",
            "parts": sorted(final.params),
            "rounds": final.ledger.rounds,
            "bytes_up_per_client": final.ledger.total_up,
            "bytes_down_per_client": final.ledger.total_down,
        },
        "estimate": {
            "data": "fitted on four fifths of each client's samples, measured on the other fifth, which it has not seen",
            **{view: metrics_json(estimated.rows(view)) for view in estimated.tallies},
            "ece_change": {
                view: list(estimated.difference(view, "before")) for view in estimated.tallies if view != "before"
            },
            **({"sets": sets} if sets else {}),
        }
        if estimated
        else None,
    }
