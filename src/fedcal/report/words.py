"""The results in sentences that claim no more than the differences between methods show."""

from __future__ import annotations

from typing import Any

from fedcal.measure.paired import Difference
from fedcal.report.numbers import percent
from fedcal.report.results import BASELINE, POOLED, Results, base_name, compare
from fedcal.report.tables import digits, lowest


def main_method(results: Results) -> str | None:
    """The method in the headline: fedcal-plus or fedcal if it was run, else the one with the lowest global ECE."""
    for wanted in ("fedcal-plus", "fedcal"):
        for name, method in results["methods"].items():
            if base_name(name) == wanted and method["global"]["ece"] is not None:
                return name
    return lowest(results)


def headline(results: Results) -> list[str]:
    """Sentences about the main method: first the result, then the noise floor, other methods and the clients."""
    name = main_method(results)
    if name is None:
        return ["No method has a global ECE: the test set is empty or no confidence was defined."]
    sentences = [_change(results, name), _floor(results, name), _rivals(results, name)]
    return [s for s in [*sentences, _worse(results), _clients(results, name)] if s]


def _scores(results: Results, method: str) -> dict[str, Any] | None:
    entry = results["methods"].get(method)
    return entry["global"] if entry and entry["global"]["ece"] is not None else None


def _change(results: Results, name: str) -> str:
    d = digits(results)
    before, after = _scores(results, BASELINE), results["methods"][name]["global"]
    value = percent(after["ece"], d, sign=True)
    if before is None:
        return f"{name} has a global ECE of {value}."
    if name == BASELINE:
        return f"No federated method lowers the global ECE: without calibration it is {value}."
    span = f"from {percent(before['ece'], d, sign=True)} to {value}"
    match compare(results, name, BASELINE):
        case "lower":
            return f"{name} lowers the global ECE {span}."
        case "higher":
            return f"{name} raises the global ECE {span}: worse than no calibration."
    return f"{name} moves the global ECE {span}: these samples do not tell the two apart."


def _floor(results: Results, name: str) -> str:
    score, d = results["methods"][name]["global"], digits(results)
    floor = score.get("ece_floor")
    if floor is None:
        return ""
    text = f"{percent(floor, d, sign=True)} on these {score['n']} test samples"
    if score["ece"] <= floor:
        return f"That is no more than a perfectly calibrated model would show: {text}."
    return f"A perfectly calibrated model would show {text}."


def _rivals(results: Results, name: str) -> str:
    d, best = digits(results), lowest(results)
    parts = []
    if best is not None and best != name:
        score = results["methods"][best]["global"]
        tail = "" if compare(results, best, name) == "lower" else ", though these samples do not tell the two apart"
        parts.append(f"{best} is lower still, {percent(score['ece'], d, sign=True)}{tail}")
    pooled = _scores(results, POOLED)
    if pooled is not None and name != POOLED:
        parts.append(
            f"{POOLED}, which looks at the pooled calibration data, has {percent(pooled['ece'], d, sign=True)}"
        )
    return "; ".join(parts) + "." if parts else ""


def _worse(results: Results) -> str:
    if _scores(results, BASELINE) is None:
        return ""
    others = [name for name in results["methods"] if name != BASELINE]
    worse = [name for name in others if compare(results, name, BASELINE) == "higher"]
    return f"Worse than no calibration: {', '.join(worse)}." if worse else ""


def _clients(results: Results, name: str) -> str:
    """Means over clients have no interval, so that this sentence only states them."""
    d, method = digits(results), results["methods"][name]
    local, own = method["local"], method["own"]
    if local.get("ece") is None or own.get("ece") is None:
        return ""
    uncal = results["methods"].get(BASELINE, {}).get("local", {}).get("ece")
    start = f"{percent(uncal, d, sign=True)} uncalibrated, " if uncal is not None and name != BASELINE else ""
    floor = percent(own.get("ece_floor"), d, sign=True)
    return (
        f"On the clients' own test sets the mean ECE is {start}{percent(local['ece'], d, sign=True)} with the global "
        f"scaler and {percent(own['ece'], d, sign=True)} with each client's own (the last one's noise floor: {floor})."
    )


def difference(change: Difference) -> str:
    """Say what a difference of two ECEs on the same samples, with its interval, shows."""
    value, low, high = change
    if low == high == 0:
        return "the same ECE: nothing changed on these samples"
    size = f"{abs(100 * value):.2f} points {'lower' if value < 0 else 'higher'}"
    verdict = "not told apart" if low <= 0 <= high else "a clear difference"
    return f"ECE {size} (95 % interval of the change {100 * low:+.2f} to {100 * high:+.2f}): {verdict} on these samples"
