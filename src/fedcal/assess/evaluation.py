"""`fedcal.evaluate`: the measures of all sites together, of each site, of each group, and their spread over sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.assess.disclose import Cell, Counts, Family, hidden_cells
from fedcal.assess.groups import Groups, check_groups, join_names, names_of, rows_of
from fedcal.assess.hide import Numbers, hide
from fedcal.assess.measures import measure
from fedcal.assess.spread import spread
from fedcal.assess.sums import ScoreSums, all_thresholds
from fedcal.assess.verdict import verdict
from fedcal.base.arrays import Array
from fedcal.base.checks import check_kind, check_whole, look_like_probs, warn_of_probs
from fedcal.base.store import write_json
from fedcal.data.samples import check_clients, name_clients
from fedcal.errors import FedCalError, error_context
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
        counts: dict[Cell, Counts] = {Cell(group=name): (len(rows),) for name, rows in chosen.items()}
        counts[Cell()] = (len(labels),)
        variables = names_of(groups).values()
        hidden = hidden_cells(counts, [Family(Cell(), [Cell(group=g) for g in some]) for some in variables], min_count)
        at, first = all_thresholds(thresholds), float(thresholds[0])
        return cls(
            ScoreSums.of(logits, labels, at, first),
            {
                name: ScoreSums.of(logits[rows], labels[rows], at, first)
                for name, rows in chosen.items()
                if Cell(group=name) not in hidden
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
            seen these samples. (N,) scores are of two classes. With a scaler that takes features (`fed-head`), features.
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
    if not (scaler is None or isinstance(scaler, Scaler)):
        raise FedCalError(
            f"scaler must be a fedcal.Scaler, not {type(scaler).__name__}; sites are {{name: (logits, labels)}}"
        )
    kind = check_kind(probs if probs is not None or scaler is None else scaler.probs)
    known = classes if classes is not None or scaler is None else scaler.classes or None
    if personal and scaler is None:
        raise FedCalError("personal=True needs a scaler: it uses the personal scalers in it")
    by_name, kind_of, fitted = sites, kind, scaler
    if scaler is not None and scaler.method.takes == "features":
        by_name, kind_of, fitted = _logits_of(sites, scaler, personal, probs), False, None
    samples, found = check_clients(by_name, kind_of, known)
    filled = [logits for logits, _ in samples.values() if len(logits)]
    if kind_of is None and filled and all(look_like_probs(logits) for logits in filled):
        warn_of_probs()
    by_site = check_groups(groups, {name: len(labels) for name, (_, labels) in samples.items()}, sites)

    def calibrated(name: str, logits: Array) -> Array:
        return logits if fitted is None else fitted.apply(logits, name if personal else None, probs=False)

    return evaluate_samples(samples, calibrated, by_site, name_classes(found), thresholds, min_count)


def _logits_of(sites: Any, scaler: Scaler, personal: bool, probs: bool | None) -> dict[str, tuple[Array, Any]]:
    """Each site's calibrated logits and labels, by a scaler that takes features."""
    found = {}
    for name, (features, labels) in name_clients(sites).items():
        client = name if personal else None
        with error_context(f"client {name}"):
            found[name] = np.asarray(scaler.apply(features, client, probs=probs)), labels
    return found


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
    thresholds = np.atleast_1d(np.asarray(thresholds, np.float64)).tolist()
    sums = (
        (name, SiteSums.of(view(name, logits), labels, groups[name], thresholds))
        for name, (logits, labels) in samples.items()
    )
    variables = join_names(map(names_of, groups.values()))
    return summarise(sums, classes or [str(k) for k in range(width)], thresholds, variables, min_count)


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
    numbers = Numbers(classes if len(classes) > 2 else ())
    found: dict[tuple[str, str], Json] = {}
    order: list[str] = []

    def look(cell: Cell, sums: ScoreSums) -> None:
        detail = cell == Cell() or len(classes) <= MANY
        numbers.add(cell, sums, detail)
        found[cell.site, cell.group] = measure(sums, classes, thresholds, min_count, detail)

    for site, sums in sites:
        if not site:
            raise FedCalError("a site has no name: give each one a name")
        order.append(site)
        for group, part in (("", sums.total), *sums.groups.items()):
            whole = Cell(group=group)
            totals[whole] = totals[whole] + part if whole in totals else part
            look(Cell(site, group), part)
    for cell, sums in totals.items():
        look(cell, sums)
    if ("", "") not in found or not found["", ""]["n"]:
        raise FedCalError("no samples: every site is empty; at least one needs some")
    groups = [group for some in variables.values() for group in some if ("", group) in found]
    hide(found, numbers, order, variables, thresholds, min_count)
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
