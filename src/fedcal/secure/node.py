"""A node's side of secure aggregation: it replies to the stages of one or several aggregations at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedcal.errors import FedCalError
from fedcal.secure.fixed import Words
from fedcal.secure.identity import Identity
from fedcal.secure.member import Member
from fedcal.secure.messages import VERSION, Part

KEPT = 3  # aggregations at most that a node holds secrets of: the one that is on, the next one, and one that came to nothing

Encode = Callable[[int], Words]  # given the words of a number, the node's vector


class SecureNode:
    """A node, and the aggregations that it is a member of.

    Args:
        identity: who it is, and with whom it takes part; None: with whomever the server names.
        fewest: nodes in a total at least: so many shares of noise, say, must be in it.
    """

    def __init__(self, identity: Identity | None = None, fewest: int = 0) -> None:
        self.identity, self.fewest = identity, fewest
        self.members: dict[str, Member] = {}

    def reply(self, parts: Any, encode: Encode) -> tuple[list[Part], bytes]:
        """Reply to what the server asks.

        Args:
            parts: the stages.
            encode: makes the node's vector; called where one is asked for.

        Returns:
            A reply to each part, and the masked vector if one was asked for.

        Raises:
            FedCalError: where an honest server would not ask that.
        """
        if not isinstance(parts, list) or sum(isinstance(p, dict) and p.get("stage") == "mask" for p in parts) > 1:
            raise FedCalError("the server's stages of secure aggregation cannot be read")
        replies, vector = list[Part](), b""
        for part in parts:
            reply, words = self._reply(part, encode)
            replies.append({"session": part["session"], **reply})
            vector = words or vector
        return replies, vector

    def _reply(self, part: Any, encode: Encode) -> tuple[Part, bytes]:
        session, stage = (part.get(key) for key in ("session", "stage")) if isinstance(part, dict) else (None, None)
        if not isinstance(session, str):
            raise FedCalError("the server's stages of secure aggregation cannot be read")
        if stage == "keys" and part.get("version") != VERSION:
            raise FedCalError("the server aggregates as another version of fedcal does: use one version everywhere")
        if stage == "keys" and session not in self.members:
            self.members[session] = Member(session)
            for oldest in list(self.members)[:-KEPT]:
                del self.members[oldest]
        if (member := self.members.get(session)) is None:
            raise FedCalError(
                "this node lost its part of a secure aggregation: the aggregation starts again without it"
            )
        if stage == "keys":
            return member.keys(self.identity), b""
        if stage == "shares":
            return member.shares(part.get("directory"), self.identity), b""
        if stage == "mask":
            words = _words(part.get("words"))
            return {}, member.mask(part.get("sealed"), lambda: encode(words), self.fewest).astype("<u8").tobytes()
        if stage == "agree":
            return member.agree(part.get("left"), self.fewest), b""
        if stage == "unmask":
            del self.members[session]  # nothing more is asked of it
            return member.unmask(part.get("agreed")), b""
        raise FedCalError(f"secure aggregation has no stage {stage!r}: use one version of fedcal")

    def to_json(self) -> list[dict[str, Any]]:
        """Return all that it holds, secrets included: for the node's own memory only."""
        return [member.to_json() for member in self.members.values()]

    @classmethod
    def from_json(cls, values: list[dict[str, Any]], identity: Identity | None = None, fewest: int = 0) -> SecureNode:
        """Take up what `to_json` gave; what another version of fedcal kept is of no use any more."""
        node = cls(identity, fewest)
        mine = [Member(**member) for member in values if member.get("version") == VERSION]
        node.members = {member.session: member for member in mine}
        return node


def _words(value: Any) -> int:
    if type(value) is not int:
        raise FedCalError("the server does not say how many words a number has: use one version of fedcal")
    return value
