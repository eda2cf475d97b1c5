"""A site's sums as bytes, the same for every transport, and what a server makes of many sites' bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from fedcal.assess.evaluation import MIN_COUNT, Evaluation, SiteSums, summarise
from fedcal.assess.groups import MOST, Groups, join_names, name_of, names_of
from fedcal.assess.joint import has_joint
from fedcal.assess.sums import ScoreSums, all_thresholds, parts_of
from fedcal.base.schema import Exactly, ListOf, MapOf, Number, Record, Text, check
from fedcal.base.store import nest, unnest
from fedcal.errors import FedCalError
from fedcal.protocol.checks import check_client_name
from fedcal.protocol.wire import pack, unpack

KIND = "evaluation"
SCHEMAS = (1, 2)  # the second has the matrix of how classes go together
MOST_BYTES = 1 << 29  # of a message, and of its sums in memory
MOST_VARIABLES = 20
_NAMES = ListOf(Text(200))
_ABOUT = Record(
    {
        "kind": Exactly((KIND,)),
        "schema": Exactly(SCHEMAS),
        "site": Text(200),
        "classes": _NAMES,
        "thresholds": ListOf(Number(0, 1)),
        "variables": MapOf(_NAMES),
        "groups": _NAMES,
    }
)


@dataclass(frozen=True)
class Asked:
    """What sites must agree on for their sums to add: the classes and the thresholds."""

    classes: tuple[str, ...]
    thresholds: tuple[float, ...]


@dataclass(frozen=True)
class SiteMessage:
    """A site's sums, with what they are sums of."""

    site: str
    asked: Asked
    variables: dict[str, list[str]]  # the groups that were sent, by variable
    sums: SiteSums

    @classmethod
    def of(cls, site: str, asked: Asked, sums: SiteSums, groups: Groups) -> SiteMessage:
        """The message of a site's sums."""
        sent = {variable: [n for n in names if n in sums.groups] for variable, names in names_of(groups).items()}
        return cls(check_client_name(site), asked, sent, sums)

    def pack(self) -> bytes:
        """The message as bytes.

        Raises:
            FedCalError: a name is too long, or cannot be shown.
        """
        tensors = nest("total", self.sums.total.to_arrays())
        for i, part in enumerate(self.sums.groups.values()):
            tensors |= nest(f"group-{i}", part.to_arrays())
        about = {
            "kind": KIND,
            "schema": schema_of(len(self.asked.classes)),
            "site": self.site,
            "classes": list(self.asked.classes),
            "thresholds": list(self.asked.thresholds),
            "variables": self.variables,
            "groups": list(self.sums.groups),
        }
        check(about, _ABOUT, self.site)
        return pack(tensors, about)

    @classmethod
    def unpack(cls, data: bytes) -> SiteMessage:
        """Read a message; it may come from a stranger.

        Raises:
            FedCalError: the bytes are no such message, or hold sums that no samples give.
        """
        if len(data) > MOST_BYTES:
            raise FedCalError(f"{len(data)} bytes, where an evaluation has at most {MOST_BYTES}: give fewer groups")
        tensors, about = unpack(data)
        if about.get("kind") != KIND or about.get("schema") not in SCHEMAS:
            raise FedCalError("not the sums of an evaluation: write them with `fedcal client evaluate`")
        check(about, _ABOUT, "not the sums of an evaluation")
        site, groups, variables = check_client_name(about["site"]), about["groups"], about["variables"]
        asked = Asked(tuple(about["classes"]), tuple(map(float, about["thresholds"])))
        if len({*asked.classes, ""}) <= len(asked.classes):
            raise FedCalError(f"{site}: two classes have the same name, or one has none: rename it")
        _check_groups(variables, groups)
        at, k = all_thresholds(asked.thresholds), len(asked.classes)
        if about["schema"] != schema_of(k):
            raise FedCalError(
                f"{site}: sums of {k} classes from another version: write them again with `fedcal client evaluate`"
            )
        if k < 2 or (1 + len(groups)) * ScoreSums.n_bytes(k, len(at)) > MOST_BYTES:
            raise FedCalError(
                f"{site}: {len(groups)} groups of {k} classes: give two classes or more, and fewer groups"
            )
        if len(tensors) != (1 + len(groups)) * len(parts_of(k)):
            raise FedCalError("not the sums of an evaluation: some are missing, or have no place")
        first = asked.thresholds[0]
        total = ScoreSums.from_arrays(unnest("total", tensors), k, at, first)
        parts = {
            group: ScoreSums.from_arrays(unnest(f"group-{i}", tensors), k, at, first) for i, group in enumerate(groups)
        }
        for some in variables.values():
            if some and not reduce(add, (parts[group] for group in some)).within(total):
                raise FedCalError(f"{site}: its groups hold more samples than the site")
        return cls(site, asked, variables, SiteSums(total, parts))


def schema_of(n_classes: int) -> int:
    """The format of messages of that many classes. Two classes have no matrix, and the format that they always had."""
    return SCHEMAS[has_joint(n_classes)]


def _check_groups(variables: Mapping[str, Sequence[str]], groups: Sequence[str]) -> None:
    """Refuse groups that are not exactly those of the variables, or that could be taken for another set of samples."""
    listed = [group for some in variables.values() for group in some]
    many = len(variables) > MOST_VARIABLES or any(len(some) > MOST for some in variables.values())
    if many or len(set(groups)) < len(groups) or sorted(listed) != sorted(groups):
        raise FedCalError("not the sums of an evaluation: its groups are doubled, missing or too many")
    for variable, some in variables.items():
        if not all(group and (not variable or group.startswith(name_of(variable, ""))) for group in some):
            raise FedCalError("not the sums of an evaluation: a group is not named by its variable")


def evaluate_messages(messages: Sequence[SiteMessage], min_count: int = MIN_COUNT) -> Evaluation:
    """What `fedcal.evaluate` gives for the same samples.

    Raises:
        FedCalError: two sites have one name, or other classes or thresholds.
    """
    if not messages:
        raise FedCalError("no sums: give those of at least one site")
    sites: dict[str, SiteSums] = {}
    first, by_name = messages[0], sorted(messages, key=lambda one: one.site)
    for message in by_name:
        if message.site in sites:
            raise FedCalError(f"two sites have the name {message.site!r}: rename one")
        if message.asked != first.asked:
            raise FedCalError(
                f"{message.site} and {first.site} differ in classes or thresholds: use the same at every site"
            )
        sites[message.site] = message.sums
    variables = join_names(message.variables for message in by_name)
    return summarise(sites.items(), first.asked.classes, first.asked.thresholds, variables, min_count)
