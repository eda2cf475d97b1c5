"""The results in sentences that claim no more than the differences between methods show."""

from __future__ import annotations

from typing import Any, Literal

from fedcal.assess.intervals import wilson
from fedcal.measure.paired import Difference
from fedcal.report.numbers import percent
from fedcal.report.results import BASELINE, POOLED, Results, base_name, compare
from fedcal.report.tables import digits, lowest

Status = Literal["calibrated", "better", "worse", "unknown"]


def main_method(results: Results) -> str | None:
    """The method in the headline: fedcal-plus or fedcal if it was run, else the one with the lowest global ECE."""
    for wanted in ("fedcal-plus", "fedcal"):
        for name, method in results["methods"].items():
            if base_name(name) == wanted and method["global"]["ece"] is not None:
                return name
    return lowest(results)


def status(results: Results) -> Status:
    """What the main method's global ECE shows: calibrated, better than before, worse, or nothing."""
    name = main_method(results)
    if name is None:
        return "unknown"
    change = compare(results, name, BASELINE) if _scores(results, BASELINE) and name != BASELINE else "unclear"
    if change == "higher":
        return "worse"
    if calibrated(results["methods"][name]["global"]):
        return "calibrated"
    return "better" if change == "lower" else "unknown"


def calibrated(scores: dict[str, Any]) -> bool:
    """Whether the samples show no sign of miscalibration: the 95 % interval of the ECE reaches down to 0."""
    return scores["ece_low"] is not None and scores["ece_low"] <= 0


def headline(results: Results) -> list[str]:
    """Return what a run shows: a verdict for people in a hurry, then sentences about ECE, accuracy and the clients.

    Args:
        results: of a run, as `load` gives them.
    """
    name = main_method(results)
    if name is None:
        return ["No method has an ECE: the test set is empty or no confidence was defined."]
    sentences = [_verdict(results, name), _change(results, name), _accuracy(results, name), _clients(results, name)]
    return [s for s in sentences if s]


def other_methods(results: Results) -> list[str]:
    """Sentences about the other methods: which is lower still, what pooled data would give, which do harm."""
    name = main_method(results)
    return [s for s in (_rivals(results, name), _worse(results)) if s] if name else []


def _scores(results: Results, method: str) -> dict[str, Any] | None:
    entry = results["methods"].get(method)
    return entry["global"] if entry and entry["global"]["ece"] is not None else None


def _verdict(results: Results, name: str) -> str:
    n = results["methods"][name]["global"]["n"]
    found, before = status(results), _scores(results, BASELINE)
    if name == BASELINE:
        fine = f"These {n} test samples show no sign of miscalibration."
        return fine if found == "calibrated" else "The model is not calibrated, and no federated method lowers its ECE."
    match found:
        case "calibrated" if before and calibrated(before) and compare(results, name, BASELINE) == "unclear":
            return f"These {n} test samples show no sign of miscalibration, before or after {name}."
        case "calibrated":
            return f"Calibrated: after {name}, these {n} test samples show no sign of miscalibration."
        case "better":
            return f"Better, but not calibrated yet: {name} removes a part of the error."
        case "worse":
            return f"Do not use it: {name} makes the probabilities worse than no calibration."
    return f"These {n} test samples do not show that {name} helps." if before else f"{name} is not calibrated."


def _change(results: Results, name: str) -> str:
    """ECE is explained here, where it first appears."""
    d, before, after = digits(results), _scores(results, BASELINE), results["methods"][name]["global"]
    value = percent(after["ece"], d, sign=True)
    doubt, what = "", "The calibration error (ECE: how far stated confidence and actual accuracy are apart, on average)"
    if before is None or name == BASELINE:
        text = f"{what} is {value}"
    else:
        span = f"from {percent(before['ece'], d, sign=True)} to {value}"
        match compare(results, name, BASELINE):
            case "lower":
                text = f"{what} falls {span}"
            case "higher":
                text = f"{what} rises {span}"
            case _:
                text, doubt = f"{what} goes {span}", " The samples are too few to prove that the error changed."
    floor = percent(after["ece_floor"], d, sign=True)
    return f"{text}; a perfectly calibrated model would show {floor} here.{doubt}"


def _accuracy(results: Results, name: str) -> str:
    """A change is claimed where the two 95 % intervals are apart, and only stated elsewhere."""
    d, before, after = digits(results), _scores(results, BASELINE), results["methods"][name]["global"]
    if before is None or name == BASELINE:
        return ""
    old, new = (percent(scores["accuracy"], d, sign=True) for scores in (before, after))
    if old == new:
        return f"Accuracy stays at {new}."
    was, now = (wilson(scores["accuracy"] * scores["n"], scores["n"]) for scores in (before, after))
    if now.low > was.high or now.high < was.low:
        return f"Accuracy {'rises' if now.low > was.high else 'falls'} from {old} to {new}."
    return f"Accuracy: {old} before, {new} after."


def _rivals(results: Results, name: str) -> str:
    d, best = digits(results), lowest(results)
    parts = []
    if best is not None and best != name:
        score = results["methods"][best]["global"]
        tail = "" if compare(results, best, name) == "lower" else ", though these samples do not tell the two apart"
        parts.append(f"{best} has a lower global ECE than {name}, {percent(score['ece'], d, sign=True)}{tail}")
    pooled = _scores(results, POOLED)
    if pooled is not None and name != POOLED:
        parts.append(
            f"{POOLED}, which looks at the pooled calibration data, has an ECE of {percent(pooled['ece'], d, sign=True)}"
        )
    return "; ".join(parts) + "." if parts else ""


def _worse(results: Results) -> str:
    if _scores(results, BASELINE) is None:
        return ""
    others = [name for name in results["methods"] if name != BASELINE]
    worse = [name for name in others if compare(results, name, BASELINE) == "higher"]
    return f"Worse than no calibration: {', '.join(worse)}." if worse else ""


def _clients(results: Results, name: str) -> str:
    """All test samples, each under its client's personal scaler; of no calibration the mean over clients."""
    d, own = digits(results), results["methods"][name]["pooled_own"]
    if name != BASELINE:
        return (
            f"With each client's personal scaler, accuracy is {percent(own['accuracy'], d, sign=True)} and the ECE "
            f"{percent(own['ece'], d, sign=True)} (a perfect model: {percent(own['ece_floor'], d, sign=True)})."
        )
    value, floor = (percent(results["methods"][name]["own"][key], d, sign=True) for key in ("ece", "ece_floor"))
    return f"At the clients, the mean ECE is {value} (a perfect model: {floor})."


REMARKS = {  # what methods note about their fits, in words
    "degenerate": "{percent} of the clients' fits fell back: too few samples",
    "steps": "{value:.0f} training steps at a client, on average",
    "permuted_share": "weight matching moved {percent} of the hidden units",
}


def remarks(notes: dict[str, float]) -> str:
    """A method's notes as a sentence; nothing to say about what is 0."""
    said = []
    for key, value in notes.items():
        text = REMARKS.get(key, key.replace("_", " ") + ": {value:.3g}")
        if value:
            said.append(text.format(value=value, percent=percent(value, 0, sign=True)))
    return "; ".join(said)


def difference(change: Difference) -> str:
    """Say what a difference of two ECEs on the same samples, with its interval, shows."""
    value, low, high = change
    if low == high == 0:
        return "the same ECE: nothing changed on these samples"
    size = f"{abs(100 * value):.2f} points {'lower' if value < 0 else 'higher'}"
    verdict = "no clear difference" if low <= 0 <= high else "a clear difference"
    return f"ECE {size} (95 % interval of the change {100 * low:+.2f} to {100 * high:+.2f}): {verdict} on these samples"
