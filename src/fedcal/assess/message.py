"""A site's sums as bytes, the same for every transport, and what a server makes of many sites' bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedcal.assess.evaluation import MIN_COUNT, Evaluation, SiteSums, summarise
from fedcal.assess.groups import MOST, Groups, names_of
from fedcal.assess.sums import ScoreSums, all_thresholds
from fedcal.base.checks import check_whole
from fedcal.base.store import nest, unnest
from fedcal.errors import FedCalError
from fedcal.protocol.checks import check_client_name
from fedcal.protocol.wire import pack, unpack

KIND = "evaluation"
SCHEMA = 1
LONGEST = 200  # characters of a name


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
        """The message as bytes."""
        tensors = nest("total", self.sums.total.to_tensors())
        for i, part in enumerate(self.sums.groups.values()):
            tensors |= nest(f"group-{i}", part.to_tensors())
        about = {
            "kind": KIND,
            "schema": SCHEMA,
            "site": self.site,
            "classes": list(self.asked.classes),
            "thresholds": list(self.asked.thresholds),
            "variables": self.variables,
            "groups": list(self.sums.groups),
        }
        return pack(tensors, about)

    @classmethod
    def unpack(cls, data: bytes) -> SiteMessage:
        """Read a message; it may come from a stranger.

        Raises:
            FedCalError: the bytes are no such message, or hold sums that no samples give.
        """
        tensors, about = unpack(data)
        if about.get("kind") != KIND or about.get("schema") != SCHEMA:
            raise FedCalError("not the sums of an evaluation: write them with `fedcal client evaluate`")
        try:
            asked = Asked(tuple(map(_text, about["classes"])), tuple(map(float, about["thresholds"])))
            variables = {_text(name): [*map(_text, groups)] for name, groups in about["variables"].items()}
            groups, site = [*map(_text, about["groups"])], check_client_name(about["site"])
        except (KeyError, TypeError, ValueError, AttributeError):
            raise FedCalError("not the sums of an evaluation: its header is damaged") from None
        listed = sorted(group for some in variables.values() for group in some)
        if listed != sorted(groups) or any(len(some) > MOST for some in variables.values()):
            raise FedCalError("not the sums of an evaluation: its groups are doubled, missing or too many")
        at, k = all_thresholds(asked.thresholds), check_whole(len(asked.classes), "the number of classes", low=2)
        total = ScoreSums.from_tensors(unnest("total", tensors), k, at)
        parts = {group: ScoreSums.from_tensors(unnest(f"group-{i}", tensors), k, at) for i, group in enumerate(groups)}
        for some in variables.values():
            if sum(parts[group].n for group in some) > total.n:
                raise FedCalError(f"{site}: its groups hold more samples than the site")
        return cls(site, asked, variables, SiteSums(total, parts))


def _text(value: object) -> str:
    if not isinstance(value, str) or not len(value) <= LONGEST:
        raise ValueError
    return value


def evaluate_messages(messages: Sequence[SiteMessage], min_count: int = MIN_COUNT) -> Evaluation:
    """What `fedcal.evaluate` gives for the same samples.

    Raises:
        FedCalError: two sites have one name, or other classes or thresholds.
    """
    if not messages:
        raise FedCalError("no sums: give those of at least one site")
    sites: dict[str, SiteSums] = {}
    variables: dict[str, set[str]] = {}
    first = messages[0]
    for message in sorted(messages, key=lambda one: one.site):
        if message.site in sites:
            raise FedCalError(f"two sites have the name {message.site!r}: name them apart")
        if message.asked != first.asked:
            raise FedCalError(f"{message.site} and {first.site} differ in classes or thresholds: evaluate all alike")
        sites[message.site] = message.sums
        for variable, groups in message.variables.items():
            variables.setdefault(variable, set()).update(groups)
    ordered: Mapping[str, list[str]] = {variable: sorted(groups) for variable, groups in variables.items()}
    return summarise(sites.items(), first.asked.classes, first.asked.thresholds, ordered, min_count)
