"""The files of a finished run, checked once here so that the rest of the report can rely on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedcal.base.store import RESULTS_SCHEMA
from fedcal.errors import FedCalError
from fedcal.methods import METHODS, method_from_json
from fedcal.methods.spec import short_label

BASELINE = "uncal"
POOLED = "val-ts"  # the one method that looks at the clients' pooled calibration data

Results = dict[str, Any]

_METRICS = ("accuracy", "top3", "ece", "ece_floor", "nll", "brier", "classwise_ece")
_METHOD_KEYS = {
    "global": ("n", "ece_low", "ece_high", *_METRICS),
    "local": ("worst_ece", *_METRICS),
    "own": ("worst_ece", *_METRICS),
    "clients": ("local", "own"),
    "reliability": ("edges", "count", "confidence", "accuracy", "low", "high"),
    "cost": ("leaves", "bytes_up", "bytes_down", "rounds"),
}
_ROUND_KEYS = ("round", "loss", "accuracy", "ece")


Verdict = Literal["lower", "higher", "unclear"]


@dataclass(frozen=True)
class Run:
    """The content of results.json and rounds.jsonl."""

    results: Results
    rounds: list[dict[str, Any]]


def load(run_dir: str | Path) -> Run:
    """Read `results.json` and `rounds.jsonl` of a run folder.

    Args:
        run_dir: the folder of a finished run.

    Returns:
        The run; methods are in the order of `METHODS`, by short labels.

    Raises:
        FedCalError: a file is missing or damaged; the message names it.
    """
    run_dir = Path(run_dir)
    return Run(_load_results(run_dir / "results.json"), _load_rounds(run_dir / "rounds.jsonl"))


def compare(results: Results, name: str, other: str) -> Verdict:
    """Whether a method's global ECE is lower or higher than another's: the 95 % interval of the difference must not hold 0.

    The difference is of the same samples. Where it was not measured, the methods' two 95 % intervals must not overlap,
    which tells fewer methods apart.

    Args:
        results: the content of results.json.
        name: the method.
        other: the method to compare it with.
    """
    mine, yours = (results["methods"][method]["global"] for method in (name, other))
    low, high = _difference(mine, yours, other)
    if low is None or high is None:
        return "unclear"
    return "lower" if high < 0 else "higher" if low > 0 else "unclear"


def _difference(mine: dict[str, Any], yours: dict[str, Any], other: str) -> tuple[float | None, float | None]:
    _, low, high = mine.get("ece_against", {}).get(other, (None, None, None))
    if low is not None:
        return low, high
    my_low, my_high, your_low, your_high = (s.get(end) for s in (mine, yours) for end in ("ece_low", "ece_high"))
    if my_low is None or my_high is None or your_low is None or your_high is None:
        return None, None
    return my_low - your_high, my_high - your_low


def _load_results(path: Path) -> Results:
    results = _parse(_read(path), str(path))
    if not isinstance(results, dict) or "schema" not in results:
        raise FedCalError(f"{path}: no 'schema' in it, so not a FedCal result: point to a folder of `fedcal run`")
    if results["schema"] != RESULTS_SCHEMA:
        raise FedCalError(
            f"{path}: schema {results['schema']}, this fedcal reads {RESULTS_SCHEMA}: "
            "use the fedcal version that wrote it, or repeat the run"
        )
    for key in ("config", "data", "methods"):
        if not isinstance(results.get(key), dict) or not results[key]:
            raise FedCalError(f"{path}: {key!r} is missing or empty: repeat the run")
    for key in ("classes", "clients", "train_counts"):
        if not isinstance(results["data"].get(key), list):
            raise FedCalError(f"{path}: data.{key} is missing: repeat the run")
    for name, method in results["methods"].items():
        for key, inside in _METHOD_KEYS.items():
            part = method.get(key) if isinstance(method, dict) else None
            missing = [k for k in inside if not isinstance(part, dict) or k not in part]
            if missing:
                raise FedCalError(f"{path}: methods.{name}.{key} has no {', '.join(missing)}: repeat the run")
    return results | {"methods": _labelled(results["methods"])}


def _labelled(methods: dict[str, Any]) -> dict[str, Any]:
    """The methods by short labels, "fedcal-plus (keep)" for "fedcal-plus:accuracy=keep".

    The keys of the file are sorted by name; readers expect the order of the paper, baselines first.
    """
    place = {name: i for i, name in enumerate(METHODS)}
    names = sorted(methods, key=lambda spec: (place.get(spec.partition(":")[0], len(place)), spec))
    labels = {spec: _label(spec, methods[spec]) for spec in names}
    found = {}
    for spec, label in labels.items():
        whole = dict(methods[spec]["global"])
        if "ece_against" in whole:
            whole["ece_against"] = {labels.get(other, other): d for other, d in whole["ece_against"].items()}
        found[label] = methods[spec] | {"spec": spec, "global": whole}
    return found


def _label(spec: str, about: dict[str, Any]) -> str:
    try:
        return short_label(method_from_json(about))
    except FedCalError:  # a method of another version
        return spec


def base_name(label: str) -> str:
    """The method's name without its options."""
    return label.partition(" (")[0]


def in_two_lines(label: str) -> str:
    """A label with its options on a second line."""
    return label.replace(" (", "\n(")


def _load_rounds(path: Path) -> list[dict[str, Any]]:
    rounds = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        record = _parse(line, f"{path}, line {number}")
        if not isinstance(record, dict):
            raise FedCalError(f"{path}, line {number}: not a round but {line[:20]!r}: repeat the run")
        missing = [key for key in _ROUND_KEYS if key not in record]
        if missing:
            raise FedCalError(f"{path}, line {number}: no {', '.join(missing)}: repeat the run")
        rounds.append(record)
    return rounds


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FedCalError(f"{path}: no such file: has the run in {path.parent} finished?") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FedCalError(f"{path}: cannot be read ({error}): check the file or repeat the run") from None


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FedCalError(f"{where}: not valid JSON ({error.msg}), perhaps cut short: repeat the run") from None
