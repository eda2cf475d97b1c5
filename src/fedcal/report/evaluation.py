"""The page of `fedcal evaluate`: one self-contained file. The same evaluation gives the same bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from fedcal.assess.evaluation import Evaluation
from fedcal.assess.verdict import Status, change, rejected, status, wrong_classes
from fedcal.base.store import write_bytes
from fedcal.report.evaluation_figures import plot_calibration, plot_decisions, plot_forest
from fedcal.report.evaluation_tables import NAMES, digits_of, tables
from fedcal.report.numbers import UNDEFINED, percent
from fedcal.report.page import fill_template
from fedcal.report.svg import inline

MOST = 24  # sites that get a plot of their own
# (measure, value of a calibrated model, logarithmic scale)
Forests = tuple[tuple[str, float | None, bool], ...]
FORESTS: Forests = (
    ("ici", 0.0, False),
    ("oe_ratio", 1.0, True),
    ("calibration_slope", 1.0, False),
    ("auroc", None, False),
)
# Means of O/E and slope over classes say little where a site lacks some.
FORESTS_OF_CLASSES: Forests = (
    ("ici", 0.0, False),
    ("ece", None, False),
    ("accuracy", None, False),
    ("auroc", None, False),
)
TILES = {
    "ici": "Average error of a probability (ICI)",
    "oe_ratio": "Events for each one predicted (O/E)",
    "calibration_slope": "Calibration slope",
    "ece": "Calibration error (ECE)",
    "accuracy": "Accuracy",
    "auroc": "Telling cases apart (AUROC)",
}
RIGHT = {
    "ici": "0 is right",
    "oe_ratio": "1 is right",
    "calibration_slope": "1 is right",
    "accuracy": "higher is better",
    "auroc": "1 is perfect, 0.5 is chance",
}
IN_PERCENT = ("ici", "ece", "accuracy")
MEANINGS = {
    "ici": "How far a probability is from what is observed there, on average (integrated calibration index).",
    "oe_ratio": "Observed over expected events. Above 1 probabilities are too low, below 1 too high.",
    "calibration_slope": "Below 1 probabilities are too extreme, above 1 too close to the average.",
    "auroc": "The chance that a sample with the outcome gets a higher probability than one without.",
    "accuracy": "The share of the samples whose most probable class is the right one.",
    "auprc": "Average precision: the area under the curve of precision and recall.",
    "calibration_intercept": "The shift of the log-odds that makes the mean right: 0 is right.",
    "e50": "The median and (E90) the 90 % quantile of the error whose mean is the ICI.",
    "ece": "Expected calibration error: the gap between confidence and accuracy, averaged over bins. A finite sample of a "
    "perfectly calibrated model also shows one: its noise floor.",
    "smooth_ece": "The same from a smooth curve, without bins.",
    "brier": "The mean squared error of a probability: its calibration part, less discrimination, plus the uncertainty "
    "of the data.",
    "nll": "Log loss: the mean of minus the logarithm of the probability that the true class was given.",
    "net_benefit": "True positives per sample, less false ones weighed by the odds of the threshold.",
}

Json = Mapping[str, Any]
Steps = Sequence[tuple[str, str]]


def write_page(
    path: Path, result: Evaluation, title: str, before: Evaluation | None = None, steps: Steps = (), data: str = ""
) -> None:
    """Write the page.

    Args:
        path: the HTML file.
        result: the evaluation.
        title: what was evaluated.
        before: the evaluation of the same samples before calibration.
        steps: what to do next, each a sentence and a command; if none are given, those that suit the result.
        data: what is special about the samples, after "920 samples".
    """
    write_bytes(path, render(result, title, before, steps, data).encode())


def render(result: Evaluation, title: str, before: Evaluation | None = None, steps: Steps = (), data: str = "") -> str:
    """The page as HTML."""
    top, pooled = len(result.classes) > 2, result.pooled
    earlier = before.pooled if before else None
    found = status(pooled, result.sites, result.groups)
    forests = FORESTS_OF_CLASSES if top else FORESTS
    figures = {
        "calibration": inline(
            plot_calibration(pooled, "All sites", earlier, top),
            "calibration",
            "Calibration plot of all sites: " + result.verdict[0],
        ),
        "decisions": inline(plot_decisions(pooled), "decisions", "Decision curve of all sites")
        if pooled.get("decision_curve")
        else None,
        "forests": [{"svg": _forest(result, *one), "meaning": MEANINGS[one[0]]} for one in forests],
        "sites": _sites(result, before, top),
    }
    return fill_template(
        "evaluation.html.j2",
        title=title,
        result=result,
        status=found,
        headline=result.verdict[0],
        rest=in_words(before, result)[1:],
        tiles=[_tile(pooled, key, earlier) for key, _, _ in forests],
        figures=figures,
        tables=tables(result),
        before=before is not None,
        classes=top,
        tests=pooled.get("tests") or {},
        steps=steps or next_steps(found, bool(rejected(result.sites)), before is not None, bool(wrong_classes(pooled))),
        data=data,
        new_site=any(one["sites"] > 2 for one in result.spread.values()),
        meanings=[(NAMES[key], meaning) for key, meaning in MEANINGS.items() if key in pooled],
    )


def in_words(before: Evaluation | None, result: Evaluation) -> list[str]:
    """The verdict, and what calibration changed where there is a before."""
    return [*result.verdict, *(change(before.pooled, result.pooled) if before else [])]


def next_steps(found: Status, sites_differ: bool, calibrated: bool, by_class: bool) -> list[tuple[str, str]]:
    """What to do with an evaluation: a sentence and the command that does it (or nothing).

    Args:
        found: what the evaluation says.
        sites_differ: whether some sites are not calibrated.
        calibrated: whether a scaler was applied.
        by_class: whether the probabilities of several classes are wrong, beyond that of the predicted one.
    """
    again = ("Evaluate again on new samples: calibration breaks when patients, devices or habits change.", "")
    if found == "calibrated":
        return [("Use the probabilities as they are.", ""), again]
    if found == "unknown":
        return [("Collect more labelled samples, with at least 30 of each class, then evaluate again.", "")]
    fit = ("Calibrate, on samples that the model was not trained on.", "fedcal calibrate FILE... --out calibrated")
    check = (
        "Evaluate on other samples, each site by its personal scaler.",
        "fedcal evaluate FILE... --scaler calibrated/scaler.safetensors --own --report after.html",
    )
    if calibrated:
        site = " and give each site its personal scaler (--own)" if sites_differ else ""
        return [(f"Calibrate again on recent samples{site}.", fit[1]), again]
    which = (
        "the probability of a class, if it says 80 %," if found == "in part" and by_class else "a probability of 80 %"
    )
    return [fit, check, (f"Until then, do not read {which} as 80 %.", "")]


def _tile(measures: Json, key: str, before: Json | None) -> dict[str, str]:
    def text(value: float | None) -> str:
        if value is None:
            return UNDEFINED
        return percent(value, 1, sign=True) if key in IN_PERCENT else f"{value:.{digits_of(key)}f}"

    one = measures[key]
    interval = "" if one["low"] is None else f"{text(one['low'])} to {text(one['high'])}; "
    earlier = text(before[key]["value"]) if before else ""
    right = RIGHT.get(key) or f"a perfect model would show {text(measures['ece_floor'])}"
    return {"name": TILES[key], "value": text(one["value"]), "under": interval + right, "before": earlier}


def _forest(result: Evaluation, key: str, reference: float | None, log: bool) -> Markup:
    """One measure of all samples, of every site with the summary over sites, and of every group."""

    def shown(some: Iterable[tuple[str, Json]]) -> list[tuple[str, Json]]:
        return [(name, {**one[key], "hidden": bool(one.get("hidden"))}) for name, one in some]

    rows = shown([("All sites", result.pooled)])
    rows += shown(list(result.sites.items())[:MOST]) if len(result.sites) > 1 else []
    if key in result.spread and result.spread[key]["sites"] > 2:  # two sites tell next to nothing about a third
        rows.append(("a new site (95 %)", result.spread[key]["prediction"]))
    rows += shown(result.groups.items())
    label = f"{NAMES[key]} of all sites, of each site and of each group, with 95 % intervals"
    return inline(plot_forest(rows, NAMES[key], reference, log), f"forest-{key}", label)


def _sites(result: Evaluation, before: Evaluation | None, top: bool) -> list[Markup]:
    """Calibration plots of the first sites and groups."""
    pairs = [(result.sites, before.sites if before else {})] if len(result.sites) > 1 else []
    pairs.append((result.groups, before.groups if before else {}))
    every = [(name, one, earlier.get(name)) for some, earlier in pairs for name, one in some.items()]
    drawn = [row for row in every if not row[1].get("hidden") and row[1]["n"]]
    return [
        inline(plot_calibration(one, name, earlier, top), f"site-{i}", f"Calibration plot of {name}")
        for i, (name, one, earlier) in enumerate(drawn[:MOST])
    ]
