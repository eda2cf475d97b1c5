"""Subgroups: each sample's value of one or more variables, such as sex and age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedcal.base.labels import as_labels, rows_of_each
from fedcal.errors import FedCalError, unknown

MOST = 50  # groups of a variable

Groups = dict[str, np.ndarray]  # by variable, each sample's group as text; the variable of a single one may be ""


def check_groups(groups: Any, sizes: Mapping[str, int], sites: Any = None) -> dict[str, Groups]:
    """Every site's groups, as many as it has samples.

    Args:
        groups: what the user gave; None for none.
        sizes: each site's number of samples.
        sites: the user's own, whose order a list of groups follows.

    Raises:
        FedCalError: where a site's groups are missing, too few or too many.
    """
    if groups is None:
        return {site: {} for site in sizes}
    if not isinstance(groups, Mapping):
        if not isinstance(groups, Sequence) or isinstance(sites, Mapping):
            raise FedCalError(
                "groups must be a mapping from the sites' names, or a list in the order of a list of sites"
            )
        if len(groups) != len(sizes):
            raise FedCalError(
                f"groups must be a list with one entry for each of the sites ({len(sizes)}), not {len(groups)}: "
                "an entry holds the group of each of the site's samples"
            )
        groups = dict(enumerate(groups))
    given = {str(site): values for site, values in groups.items()}
    for site in given:
        if site not in sizes:
            raise FedCalError(f"groups: {unknown('site', site, sizes)}")
    found = {}
    for site, n in sizes.items():
        if site not in given:
            raise FedCalError(f"groups: site {site} has none: give the group of each of its {n} samples")
        values = given[site] if isinstance(given[site], Mapping) else {"": given[site]}
        found[site] = {str(name): as_groups(one, n, f"site {site}", str(name)) for name, one in values.items()}
    check_number(found.values())
    check_names(found.values())
    return found


def as_groups(values: Any, n: int, where: str, variable: str = "") -> np.ndarray:
    """A variable's groups as text, one for each sample."""
    what = f"groups {variable!r}" if variable else "groups"
    try:
        column = as_labels(values, what)
    except FedCalError as error:
        raise FedCalError(f"{where}: {error} (call a missing group, say, unknown; turn ranges into text)") from None
    if len(column) != n:
        raise FedCalError(f"{where}: {len(column)} {what} for {n} samples: give one for each sample")
    if column.dtype.kind == "f" and (column % 1 == 0).all():
        column = column.astype(np.int64)
    found = column.astype(np.str_)
    if not variable and (found == "").any():
        raise FedCalError(f"{where}: a group has no name: call it, say, unknown")
    return found


def check_number(sites: Iterable[Groups]) -> None:
    """Refuse variables of too many groups: a number that was meant to be cut into ranges."""
    seen: dict[str, set[str]] = {}
    for groups in sites:
        for variable, values in groups.items():
            seen.setdefault(variable, set()).update(np.unique(values).tolist())
            if len(seen[variable]) > MOST:
                what = f"groups {variable!r}" if variable else "groups"
                raise FedCalError(f"{what} have more than {MOST} values: cut numbers into a few ranges first")


def check_names(sites: Any) -> None:
    """Refuse two variables with groups of one name: a=b with the value c, and a with the value b=c."""
    owner: dict[str, str] = {}
    for groups in sites:
        for variable, names in names_of(groups).items():
            for name in names:
                if owner.setdefault(name, variable) != variable:
                    raise FedCalError(f"groups {variable!r} and {owner[name]!r} both have {name!r}: rename a variable")


def name_of(variable: str, value: str) -> str:
    """A group's name: "sex=female"; of a variable without a name, its value."""
    return f"{variable}={value}" if variable else value


def names_of(groups: Groups) -> dict[str, list[str]]:
    """The groups' names, by variable."""
    return {variable: [name_of(variable, v) for v in np.unique(values).tolist()] for variable, values in groups.items()}


def join_names(sites: Iterable[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """The groups' names of all sites, sorted, by variable."""
    found: dict[str, set[str]] = {}
    for names in sites:
        for variable, some in names.items():
            found.setdefault(variable, set()).update(some)
    return {variable: sorted(some) for variable, some in found.items()}


def rows_of(groups: Groups) -> dict[str, np.ndarray]:
    """The rows of each group, by its name."""
    return {
        name_of(variable, value): rows
        for variable, values in groups.items()
        for value, rows in rows_of_each(values).items()
    }
