"""The server's side of one aggregation: it hands keys and sealed shares on, adds masked vectors up and takes the masks off.

Nodes may fall away between any two stages, as long as `threshold` of them are left at the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

import numpy as np

from fedcal.errors import FedCalError
from fedcal.secure import crypto, shamir
from fedcal.secure.fixed import MOST_NODES, Words, add, negate
from fedcal.secure.member import AGREED, SEALED, STAGES, nodes_with_same_keys, pairwise
from fedcal.secure.messages import VERSION, Directory, DoesNotAddUp, Part, Stage, digest, entry_of, table_of, text_of
from fedcal.secure.vector import Layout


class Aggregation:
    """One aggregation over a group.

    Args:
        nodes: the group's.

    Raises:
        FedCalError: where they are too few or too many.
    """

    def __init__(self, nodes: list[str]) -> None:
        check_size(len(nodes))
        self.session, self.done = secrets.token_hex(16), 0
        self.left = sorted(nodes)  # those that have replied to every stage so far
        self.failed = False  # so many fell away that it cannot be finished
        self.layout = Layout({})  # of the vectors, once it is known
        self._directory: Directory = {}
        self._sealed: dict[str, dict[str, str]] = {}  # by sender, then by receiver
        self._commitments: dict[str, str] = {}
        self._vectors: dict[str, Words] = {}
        self._agreed: dict[str, dict[str, str]] = {}  # by sender, then by receiver
        self._revealed: dict[str, Part] = {}

    @property
    def stage(self) -> Stage | None:
        """What is asked next; None when all is done."""
        return STAGES[self.done] if self.done < len(STAGES) else None

    @property
    def masked(self) -> list[str]:
        """The nodes whose vectors are in the total."""
        return sorted(self._vectors)

    def ask(self) -> dict[str, Part]:
        """Return what each node is asked at this stage."""
        more: Callable[[str], Part] = {
            "keys": lambda name: {"version": VERSION},
            "shares": lambda name: {"directory": self._directory},
            "mask": lambda name: {
                "sealed": {sender: sealed[name] for sender, sealed in self._sealed.items() if sender != name},
                "words": self.layout.words,
            },
            "agree": lambda name: {"left": self.masked},
            "unmask": lambda name: {
                "agreed": {sender: told[name] for sender, told in self._agreed.items() if sender != name}
            },
        }[self.stage or "unmask"]
        return {name: {"session": self.session, "stage": self.stage, **more(name)} for name in self.left}

    def receive(self, replies: Mapping[str, tuple[Part, bytes]]) -> dict[str, str]:
        """Take the replies of a stage, and go on to the next one.

        Returns:
            By node, why its reply is refused. Where too few are left, `failed` says so.
        """
        read = {
            "keys": self._keys, "shares": self._shares, "mask": self._mask, "agree": self._agree, "unmask": self._unmask
        }  # fmt: skip
        refused, good = dict[str, str](), []
        for name in [name for name in self.left if name in replies]:
            try:
                read[self.stage or "unmask"](name, *replies[name])
                good.append(name)
            except FedCalError as error:
                refused[name] = str(error)
        if self.stage == "keys":
            refused |= self._refuse_same_keys()
        self.left, self.done = [name for name in good if name not in refused], self.done + 1
        least = shamir.threshold(len(self._directory)) if self.done > 1 else shamir.FEWEST_NODES
        self.failed = len(self.left) < max(least, shamir.FEWEST_NODES)
        return refused

    def total(self) -> Words:
        """Return the sum of the vectors, its masks taken off.

        Raises:
            DoesNotAddUp: where the revealed shares do not fit together.
        """
        shape, about = (self.layout.words, self.layout.length), digest(self.session, self._directory)
        total = np.zeros(shape, np.uint64)
        for vector in self._vectors.values():
            total = add(total, vector)
        for name in self.masked:
            seed = self._combine("seeds", name)
            if crypto.commitment(seed) != self._commitments[name]:
                raise DoesNotAddUp(f"the shares of the seed of node {name} are not right")
            total = add(total, negate(crypto.mask(seed, *shape)))
        for gone in sorted(set(self._sealed) - set(self._vectors)):
            secret = self._combine("keys", gone)
            if crypto.public_key(secret).hex() != self._directory[gone][1]:
                raise DoesNotAddUp(f"the shares of the key of node {gone} are not right")
            key = crypto.private_key(secret)
            for name in self.masked:  # what `name` added for `gone` is minus what `gone` would have added
                public = bytes.fromhex(self._directory[name][1])
                total = add(total, pairwise(about, key, public, shape, gone, name))
        return total

    # --- each stage's replies --------------------------------------------------------------------------------------------

    def _keys(self, name: str, part: Part, _: bytes) -> None:
        keys = entry_of(name, part.get("keys"))
        if part.get("version") != VERSION:
            raise FedCalError(f"node {name} aggregates as another version of fedcal does: use one version everywhere")
        self._directory[name] = keys

    def _refuse_same_keys(self) -> dict[str, str]:
        """Take nodes with the same keys out of the directory: every honest node would refuse to go on with them.

        All of them go, since nothing shows whose key it was first. No node can do this to an honest one: new keys are
        sent to nobody but the server before all of them are there.
        """
        same = nodes_with_same_keys(self._directory)
        for name in same:
            del self._directory[name]
        return dict.fromkeys(same, f"nodes {', '.join(same)} have the same keys")

    def _shares(self, name: str, part: Part, _: bytes) -> None:
        sealed = table_of(part.get("sealed"), SEALED, "sealed shares")
        if set(sealed) != set(self._directory) - {name}:
            raise FedCalError(f"node {name} does not seal a share for every other node")
        self._commitments[name] = text_of(part.get("commitment"), 32, f"the commitment of node {name}")
        self._sealed[name] = sealed

    def _mask(self, name: str, part: Part, vector: bytes) -> None:
        if len(vector) != self.layout.n_bytes:
            raise FedCalError(f"node {name} sends a vector of {len(vector)} bytes, not {self.layout.n_bytes}")
        self._vectors[name] = np.frombuffer(vector, "<u8").reshape(self.layout.words, self.layout.length)

    def _agree(self, name: str, part: Part, _: bytes) -> None:
        told = table_of(part.get("agreed"), AGREED, "agreements")
        if set(told) != set(self._vectors) - {name}:
            raise FedCalError(f"node {name} does not agree with every other node on who is left")
        self._agreed[name] = told

    def _unmask(self, name: str, part: Part, _: bytes) -> None:
        seeds, keys = (table_of(part.get(kind), shamir.SHARE, "shares") for kind in ("seeds", "keys"))
        if set(seeds) != set(self._vectors) or set(keys) != set(self._sealed) - set(self._vectors):
            raise FedCalError(f"node {name} reveals other shares than requested")
        self._revealed[name] = {"seeds": seeds, "keys": keys}

    def _combine(self, kind: str, name: str) -> bytes:
        places = {member: place for place, member in enumerate(sorted(self._directory), start=1)}
        senders = sorted(self._revealed)[: shamir.threshold(len(self._directory))]
        return shamir.combine({places[s]: bytes.fromhex(self._revealed[s][kind][name]) for s in senders})


def check_size(nodes: int) -> None:
    """Refuse a group that is too small or too large.

    Raises:
        FedCalError: which says what a group may be.
    """
    if not shamir.FEWEST_NODES <= nodes <= MOST_NODES:
        raise FedCalError(
            f"secure aggregation needs {shamir.FEWEST_NODES} to {MOST_NODES} nodes in a group, not {nodes}"
        )
