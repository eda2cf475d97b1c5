"""`fedcal.evaluate`: the measures of all sites together, of each site, of each group, and their spread over sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedcal.assess.disclose import Cell, blank, families, hidden_cells
from fedcal.assess.groups import Groups, check_groups, names_of, rows_of
from fedcal.assess.measures import measure
from fedcal.assess.spread import spread
from fedcal.assess.sums import ScoreSums, all_thresholds
from fedcal.assess.verdict import verdict
from fedcal.base.arrays import Array
from fedcal.base.checks import check_kind, check_whole, look_like_probs, warn_of_probs
from fedcal.base.store import write_json
from fedcal.data.samples import check_clients
from fedcal.errors import FedCalError
from fedcal.measure.views import View
from fedcal.protocol import Scaler

MIN_COUNT = 5  # samples, below which a result is hidden
MANY = 30  # classes, beyond which those of sites and groups are not listed

Json = dict[str, Any]


@dataclass(frozen=True)
class SiteSums:
    """What a site sends: the sums of all its samples, and those of each group."""

    total: ScoreSums
    groups: dict[str, ScoreSums]

    @classmethod
    def of(
        cls, logits: Array, labels: Array, groups: Groups, thresholds: Sequence[float], min_count: int = 0
    ) -> SiteSums:
        """The sums of a site's samples.

        Args:
            logits: (N, K) calibrated logits.
            labels: (N,) column numbers.
            groups: by variable, each sample's group.
            thresholds: those that the user asked for.
            min_count: groups of fewer samples are not sent, nor a group that would follow from those that are.
        """
        chosen = rows_of(groups)
        counts = {("", name): len(rows) for name, rows in chosen.items()}
        small = [cell for cell, count in counts.items() if count < min_count]
        hidden = hidden_cells(counts, small, [[("", name) for name in some] for some in names_of(groups).values()])
        at, first = all_thresholds(thresholds), float(thresholds[0])
        return cls(
            ScoreSums.of(logits, labels, at, first),
            {
                name: ScoreSums.of(logits[rows], labels[rows], at, first)
                for name, rows in chosen.items()
                if ("", name) not in hidden
            },
        )


@dataclass(frozen=True)
class Evaluation:
    """The results, as JSON has them. A measure is {"value", "low", "high"}, None where it is not defined or hidden.

    >>> result.pooled["auroc"]["value"]
    >>> result.sites["hospital A"]["calibration_slope"]
    """

    classes: list[str]
    thresholds: list[float]  # the first is that of net benefit, sensitivity and so on
    min_count: int
    pooled: Json
    sites: dict[str, Json]
    groups: dict[str, Json]
    site_groups: dict[str, dict[str, Json]]
    spread: Json
    verdict: list[str]

    def __getitem__(self, name: str) -> Any:
        return self.to_json()[name]

    def to_json(self) -> Json:
        """All of it as JSON values."""
        return asdict(self)

    def save(self, path: str | Path) -> None:
        """Write it as JSON."""
        write_json(Path(path), self.to_json())


def evaluate(
    sites: Mapping[str, tuple[Any, Any]] | Sequence[tuple[Any, Any]],
    scaler: Scaler | None = None,
    groups: Any = None,
    *,
    thresholds: Sequence[float] = (0.5,),
    personal: bool = False,
    min_count: int = MIN_COUNT,
    probs: bool | None = None,
    classes: Any = None,
) -> Evaluation:
    """Evaluate probabilities at every site, from sums that add over sites: discrimination, calibration and decisions.

    Args:
        sites: each site's (N, K) logits and (N,) labels; a mapping names them. The model, and the scaler, should not have
            seen these samples. (N,) scores are of two classes.
        scaler: calibrate with this scaler first.
        groups: subgroups: for each site (by name, or in the same order) each sample's group, or a mapping of such from the
            names of variables: {"a": {"sex": […], "age": […]}, …}.
        thresholds: decision thresholds; `net_benefit`, `sensitivity` and so on use the first.
        personal: calibrate each site with its personal scaler.
        min_count: hide results from fewer samples, and those that would reveal them by subtraction; 0 hides nothing.
        probs: True if the sites give probabilities instead of logits.
        classes: the labels of the columns, in their order, where they are not the columns' numbers.

    Returns:
        The results: `pooled`, `sites`, `groups`, `site_groups` and `spread`.

    Raises:
        FedCalError: an argument or a site's samples are invalid.

    Examples:
        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> score = rng.normal(size=(2, 400))  # of two sites and two classes
        >>> ill = rng.random(score.shape) < 1 / (1 + np.exp(-score))
        >>> result = fedcal.evaluate({"north": (score[0], ill[0].astype(int)), "south": (score[1], ill[1].astype(int))})
        >>> {name: round(value, 2) for name, value in result.pooled["auroc"].items()}
        {'value': 0.72, 'low': 0.68, 'high': 0.75}
        >>> list(result.sites)
        ['north', 'south']
    """
    kind = check_kind(probs if probs is not None or scaler is None else scaler.probs)
    known = classes if classes is not None or scaler is None else scaler.classes or None
    samples, found = check_clients(sites, kind, known)
    filled = [logits for logits, _ in samples.values() if len(logits)]
    if kind is None and filled and all(look_like_probs(logits) for logits in filled):
        warn_of_probs()
    if personal and scaler is None:
        raise FedCalError("personal needs a scaler, whose personal parts are meant")
    by_site = check_groups(groups, {name: len(labels) for name, (_, labels) in samples.items()}, sites)

    def calibrated(name: str, logits: Array) -> Array:
        return logits if scaler is None else scaler.apply(logits, name if personal else None, probs=False)

    return evaluate_samples(samples, calibrated, by_site, name_classes(found), thresholds, min_count)


def evaluate_samples(
    samples: Mapping[str, tuple[Array, Array]],
    view: View,
    groups: Mapping[str, Groups],
    classes: Sequence[str] = (),
    thresholds: Sequence[float] = (0.5,),
    min_count: int = MIN_COUNT,
) -> Evaluation:
    """The same of checked samples.

    Args:
        samples: each site's logits and labels.
        view: what calibrates them.
        groups: each site's groups, checked.
        classes: the names of the classes; their numbers if empty.
        thresholds: see `evaluate`.
        min_count: see `evaluate`.
    """
    width = next(iter(samples.values()))[0].shape[1]
    all_thresholds(thresholds)
    variables: dict[str, set[str]] = {}
    for some in groups.values():
        for variable, found in names_of(some).items():
            variables.setdefault(variable, set()).update(found)
    sums = (
        (name, SiteSums.of(view(name, logits), labels, groups[name], thresholds))
        for name, (logits, labels) in samples.items()
    )
    ordered = {variable: sorted(names) for variable, names in variables.items()}
    return summarise(sums, classes or [str(k) for k in range(width)], thresholds, ordered, min_count)


def name_classes(classes: Any) -> list[str]:
    """The classes as text; empty where they are the columns' numbers."""
    return [] if classes is None else [str(name) for name in classes]


def summarise(
    sites: Iterable[tuple[str, SiteSums]],
    classes: Sequence[str],
    thresholds: Sequence[float],
    variables: Mapping[str, Sequence[str]],
    min_count: int = MIN_COUNT,
) -> Evaluation:
    """Measure what the sites sent. They are taken one by one: their sums need not be held together.

    Args:
        sites: each site's name and sums.
        classes: the classes' names.
        thresholds: those that the user asked for.
        variables: the groups of each variable.
        min_count: see `evaluate`.
    """
    min_count = check_whole(min_count, "min_count", low=0)
    totals: dict[Cell, ScoreSums] = {}
    counts: dict[Cell, int] = {}
    small: set[Cell] = set()
    found: dict[Cell, Json] = {}
    order: list[str] = []

    def look(cell: Cell, sums: ScoreSums) -> None:
        counts[cell] = sums.n
        if is_small(sums, min_count):
            small.add(cell)
        detail = cell == ("", "") or len(classes) <= MANY
        found[cell] = measure(sums, classes, thresholds, min_count, detail)

    for site, sums in sites:
        order.append(site)
        for group, part in (("", sums.total), *sums.groups.items()):
            totals["", group] = totals["", group] + part if ("", group) in totals else part
            look((site, group), part)
    for cell, sums in totals.items():
        look(cell, sums)
    if not counts.get(("", "")):
        raise FedCalError("no samples: every site is empty; at least one needs some")
    groups = [group for some in variables.values() for group in some if ("", group) in found]
    related = [[cell for cell in family if cell in counts] for family in families(order, variables)]
    for cell in hidden_cells(counts, small, related):
        found[cell] = blank(found[cell])
    by_site = {site: found[site, ""] for site in order}
    by_group = {group: found["", group] for group in groups}
    return Evaluation(
        list(classes),
        [float(t) for t in thresholds],
        min_count,
        found["", ""],
        by_site,
        by_group,
        {site: {g: found[site, g] for g in groups if (site, g) in found} for site in order} if groups else {},
        spread(by_site),
        verdict(found["", ""], by_site, by_group),
    )


def is_small(sums: ScoreSums, min_count: int) -> bool:
    """Whether there are too few samples to show: in all, or (of two classes) of one of them."""
    few = [sums.n, *(sums.counts(0) if sums.n_classes == 2 else ())]
    return any(0 < count < min_count for count in few)
