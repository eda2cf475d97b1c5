"""The files of a finished run, checked once here so that the rest of the report can rely on them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedcal.base.codec import parse_json, unseal
from fedcal.base.run_log import read_rounds
from fedcal.base.schema import COUNT, NUMBER, Anything, ListOf, MapOf, Maybe, Record, Text, Truth, check
from fedcal.base.store import RESULTS_SCHEMA, read_bytes
from fedcal.errors import FedCalError
from fedcal.methods import METHODS, method_from_json
from fedcal.methods.spec import short_label

BASELINE = "uncal"
POOLED = "val-ts"  # the one method that looks at the clients' pooled calibration data

Results = dict[str, Any]

_METRIC = Maybe(NUMBER)
_METRICS = dict.fromkeys(("accuracy", "top3", "ece", "ece_floor", "nll", "brier", "classwise_ece"), _METRIC)
_OVER_CLIENTS = Record({"worst_ece": _METRIC, **_METRICS}, open=True)
_BINS, _DIFFERENCE = ListOf(_METRIC), ListOf(_METRIC, length=3)
_BY_CLIENT = Record(dict.fromkeys(("accuracy", "ece", "ece_floor", "nll"), ListOf(_METRIC)) | {"n": ListOf(COUNT)})
_RELIABILITY = Record(dict.fromkeys(("edges", "count", "confidence", "accuracy", "low", "high"), _BINS))
_METHOD = Record(
    {
        "global": Record(
            _METRICS
            | dict.fromkeys(("ece_low", "ece_high"), _METRIC)
            | {"n": COUNT, "ece_against": MapOf(_DIFFERENCE)},
            open=True,
        ),
        "local": _OVER_CLIENTS,
        "own": _OVER_CLIENTS,
        "clients": Record({"local": _BY_CLIENT, "own": _BY_CLIENT}),
        "reliability": _RELIABILITY,
        "groups": _RELIABILITY,
        "pooled_own": Record({"n": COUNT, "reliability": _RELIABILITY, "groups": _RELIABILITY, **_METRICS}, open=True),
        "cost": Record(
            dict.fromkeys(("bytes_up", "bytes_down", "bytes_up_total", "bytes_down_total", "rounds"), COUNT)
            | {"leaves": Text(), "pooled_data": Truth(), "additive": Truth()}
        ),
        "summary": Text(),
        "notes": MapOf(NUMBER),
    },
    open=True,
)
COUNTS = ("train_counts", "cal_counts", "test_counts")
_RESULTS = Record(
    {
        "config": MapOf(Anything()),
        "data": Record(
            {"name": Text(), "classes": ListOf(Text()), "clients": ListOf(Text()), "G": _METRIC, "kl": ListOf(_METRIC),
             "parameters": COUNT, **dict.fromkeys(COUNTS, ListOf(ListOf(COUNT)))},
        ),
        "methods": MapOf(_METHOD),
        **dict.fromkeys(("device", "torch", "fedcal"), Text()),
    },
    open=True,
)  # fmt: skip

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
    return Run(_load_results(_found(run_dir / "results.json")), read_rounds(_found(run_dir / "rounds.jsonl")))


def _found(path: Path) -> Path:
    if not path.exists():
        raise FedCalError(f"{path}: no such file: has the run in {path.parent} finished?")
    return path


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
    _, low, high = mine["ece_against"].get(other, (None, None, None))
    if low is not None:
        return low, high
    my_low, my_high, your_low, your_high = (s[end] for s in (mine, yours) for end in ("ece_low", "ece_high"))
    if my_low is None or my_high is None or your_low is None or your_high is None:
        return None, None
    return my_low - your_high, my_high - your_low


def _load_results(path: Path) -> Results:
    try:
        results = parse_json(read_bytes(path), str(path))
    except FedCalError as error:
        raise FedCalError(f"{error}, perhaps cut short: repeat the run") from None
    if not isinstance(results, dict) or "schema" not in results:
        raise FedCalError(f"{path}: no 'schema' in it, so not a FedCal result: point to a folder of `fedcal run`")
    if results["schema"] != RESULTS_SCHEMA:
        raise FedCalError(
            f"{path}: schema {results['schema']}, this fedcal reads {RESULTS_SCHEMA}: "
            "use the fedcal version that wrote it, or repeat the run"
        )
    try:
        results = unseal(results, str(path))
        check_results(results, str(path))
    except FedCalError as error:
        raise FedCalError(f"{error}: repeat the run") from None
    return results | {"methods": _labelled(results["methods"])}


def check_results(results: Results, what: str) -> None:
    """Refuse results that a report cannot show.

    Raises:
        FedCalError: which says where they are wrong.
    """
    check(results, _RESULTS, what)
    if not results["methods"] or not results["config"]:
        raise FedCalError(f"{what}: 'methods' or 'config' is empty")
    clients, classes = len(results["data"]["clients"]), len(results["data"]["classes"])
    for name in COUNTS:
        check(results["data"][name], ListOf(ListOf(COUNT, classes)), f"{what}: data.{name}")
    check(results["data"]["train_counts"], ListOf(Anything(), clients), f"{what}: data.train_counts")
    for name, method in results["methods"].items():
        for within, about in (("", method), ("pooled_own.", method["pooled_own"])):
            for part in ("reliability", "groups"):
                for key, values in about[part].items():
                    many = len(about[part]["count"]) + (key == "edges")
                    check(values, ListOf(Anything(), many), f"{what}: methods.{name}.{within}{part}.{key}")
        for view, columns in method["clients"].items():
            check(columns, MapOf(ListOf(Anything(), clients)), f"{what}: methods.{name}.clients.{view}")


def _labelled(methods: dict[str, Any]) -> dict[str, Any]:
    """The methods by short labels, "fedcal-plus (keep)" for "fedcal-plus:accuracy=keep".

    The keys of the file are sorted by name; readers expect the order of the paper, baselines first.
    """
    place = {name: i for i, name in enumerate(METHODS)}
    names = sorted(methods, key=lambda spec: (place.get(spec.partition(":")[0], len(place)), spec))
    labels = {spec: _label(spec, methods[spec]) for spec in names}
    found = {}
    for spec, label in labels.items():
        whole = methods[spec]["global"]
        against = {labels.get(other, other): d for other, d in whole["ece_against"].items()}
        found[label] = methods[spec] | {"spec": spec, "global": whole | {"ece_against": against}}
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
