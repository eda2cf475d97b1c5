"""The result in plain words: is the model calibrated, and where not?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

LEVEL = 0.05
Status = Literal["calibrated", "in part", "not calibrated", "unknown"]

Json = dict[str, Any]


def verdict(pooled: Json, sites: Mapping[str, Json], groups: Mapping[str, Json]) -> list[str]:
    """A headline, and sentences about what is wrong: overall, for a class, at sites, in groups.

    Sites and groups are tested at 5 % over all of them together (Holm), so that a calibrated model is blamed at some site in
    one evaluation of twenty at most.
    """
    if pooled.get("hidden"):
        return ["Too few samples to say anything."]
    bad_sites, bad_groups = rejected(sites), rejected(groups)
    found = status(pooled, sites, groups)
    said = [headline(pooled, found), *size(pooled)]
    if bad_classes := wrong_classes(pooled):
        said += worst_class([(name, pooled["classes"][name]) for name in bad_classes])
    if (p := p_value(pooled)) is not None and p <= LEVEL:
        said += direction(pooled)
    for kind, bad, of in (("sites", bad_sites, sites if len(sites) > 1 else {}), ("groups", bad_groups, groups)):
        tested = [name for name in of if p_value(of[name]) is not None]
        if bad and of:
            places = ", ".join(place(name, of[name], "classes" in pooled) for name in bad)
            said.append(f"Not calibrated in {len(bad)} of {len(tested)} {kind}: {places}.")
        elif len(tested) > 1:
            said.append(f"None of the {len(tested)} {kind} stands out.")
        hidden = sum(bool(one.get("hidden")) for one in of.values())
        if hidden:
            said.append(
                f"{hidden} of {len(of)} {kind} {'is' if hidden == 1 else 'are'} hidden: "
                "too few samples, or they would give others away."
            )
    return said + gain(pooled, sites, found)


def p_value(measures: Json) -> float | None:
    """That of the score test; None where there is none."""
    test = (measures.get("tests") or {}).get("score")
    return test["p"] if test else None


def rejected(cells: Mapping[str, Json]) -> list[str]:
    """The cells whose probabilities are wrong, by Holm's procedure."""
    known = sorted((p, name) for name, one in cells.items() if (p := p_value(one)) is not None)
    found: list[str] = []
    for i, (p, name) in enumerate(known):
        if p > LEVEL / (len(known) - i):
            break
        found.append(name)
    return [name for name in cells if name in found]


def wrong_classes(pooled: Json) -> list[str]:
    """Of several classes, those whose probabilities are wrong. The score test of all samples sees only the predicted class.

    The interval of the classes' mean error must not begin at 0, and the class must fail its own score test. Calibrated models
    would fail the first alone too often if probabilities are exactly 0, and the second alone if they are sharp. If the mean
    has no interval, which outcomes at a probability of 0 cause, the class's own interval must not begin at 0.
    """
    classes = pooled.get("classes") or {}
    mean = pooled["ici"]["low"]
    return [name for name in rejected(classes) if ((classes[name]["ici"]["low"] if mean is None else mean) or 0) > 0]


def worst_class(classes: Sequence[tuple[str, Json]]) -> list[str]:
    """The class whose probability is furthest off."""
    known = [(value, name) for name, one in classes if (value := one["ici"]["value"]) is not None]
    return [f"Furthest off is the probability of class {max(known)[1]}: {percent(max(known)[0])}."] if known else []


def status(pooled: Json, sites: Mapping[str, Json], groups: Mapping[str, Json]) -> Status:
    """Whether the probabilities are right: everywhere and for every class, overall only, not, or too few samples to say."""
    p = p_value(pooled)
    if pooled.get("hidden") or p is None:
        return "unknown"
    if p <= LEVEL:  # also where scores separate the classes, and there is no curve
        return "not calibrated"
    if pooled["ici"]["value"] is None:
        return "unknown"
    return "in part" if wrong_classes(pooled) or rejected(sites) or rejected(groups) else "calibrated"


def headline(pooled: Json, found: Status) -> str:
    """Whether the model is calibrated, in a sentence."""
    return {
        "unknown": "The calibration cannot be judged: too few samples of a class, or scores that separate the classes.",
        "not calibrated": "The model is not calibrated.",
        "in part": "The confidence is right overall, but the probabilities of the classes are not."
        if wrong_classes(pooled)
        else "The model is calibrated overall, but not everywhere.",
        "calibrated": f"These {pooled['n']} samples show no sign of miscalibration.",
    }[found]


def gain(pooled: Json, sites: Mapping[str, Json], found: Status) -> list[str]:
    """What calibration could gain at most: the part of the Brier score that is due to wrong probabilities."""
    whole = pooled["brier"]["value"]
    if found == "not calibrated":
        where, part = "", pooled["brier_calibration"]["value"]
    elif found == "in part" and rejected(sites):
        known = [(one["n"], one["brier_calibration"]["value"]) for one in sites.values() if not one.get("hidden")]
        known = [(n, value) for n, value in known if n and value is not None]
        where, part = " at each site", sum(n * value for n, value in known) / max(sum(n for n, _ in known), 1)
    else:
        return []
    if "classes" in pooled or not whole or not part or part <= 0:  # of more classes, the part is a mean over classes
        return []
    share = 100 * min(part / whole, 1)
    small = "But the error is small: calibration" if share < 1 else "Calibration"  # many samples show any error
    much = "less than 1 %" if share < 1 else f"up to {share:.0f} %"
    return [f"{small}{where} could remove {much} of the Brier score (the mean squared error of a probability)."]


def change(before: Json, after: Json) -> list[str]:
    """What calibration changed on the same samples."""
    values = [percent(one["ici"]["value"]) for one in (before, after)]
    return [f"Before calibration a probability was {values[0]} off on average, now {values[1]}."] if all(values) else []


def size(pooled: Json) -> list[str]:
    """How far off the probabilities are."""
    value, low, high = (percent(pooled["ici"][end]) for end in ("value", "low", "high"))
    return [f"On average a probability is {value} off (95 % interval {low} to {high})."] if value and low else []


def percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.1f} %"


def direction(measures: Json) -> list[str]:
    """What is wrong: the level, the slope, or both; only what the intervals show."""
    said = []
    ratio, slope = measures["oe_ratio"], measures["calibration_slope"]
    if measures["calibration_intercept"]["low"] is not None and "classes" not in measures:
        if measures["calibration_intercept"]["low"] > 0:
            said.append(
                f"Probabilities are too low: {ratio['value']:.2f} events for each one predicted{between(ratio)}."
            )
        elif measures["calibration_intercept"]["high"] < 0:
            said.append(
                f"Probabilities are too high: {ratio['value']:.2f} events for each one predicted{between(ratio)}."
            )
    if slope["low"] is not None:
        if slope["high"] < 1:
            said.append(
                f"{'They' if said else 'Probabilities'} are too extreme: slope {slope['value']:.2f}{between(slope)}."
            )
        elif slope["low"] > 1:
            said.append(
                f"{'They' if said else 'Probabilities'} are too timid: slope {slope['value']:.2f}{between(slope)}."
            )
    return said


def between(measure: Json) -> str:
    return f" (95 % interval {measure['low']:.2f} to {measure['high']:.2f})"


def place(name: str, measures: Json, several: bool) -> str:
    """A site or group with what is wrong there.

    Of several classes there is no level to be wrong: over all of them, as many events are observed as are predicted.
    """
    ratio, slope = measures["oe_ratio"], measures["calibration_slope"]
    parts = []
    if not several and ratio["low"] is not None and not ratio["low"] <= 1 <= ratio["high"]:
        level = "low" if ratio["value"] > 1 else "high"
        parts.append(f"too {level}, {ratio['value']:.2f} events for each one predicted")
    if slope["low"] is not None and not slope["low"] <= 1 <= slope["high"]:
        parts.append(f"too {'extreme' if slope['value'] < 1 else 'timid'}, slope {slope['value']:.2f}")
    return f"{name} ({'; '.join(parts)})" if parts else name
