"""A node's side of one aggregation: five stages, each of them once.

What a node holds is enough to unmask others only together with `threshold` of them, and it reveals one kind of share about
every node: the seed's of a node whose vector is in the total, or the masking key's of one that fell away. It reveals nothing
before it knows that `threshold` nodes were told the same about who fell away: a server that told each node something else
could get the seed of one node, and the masking keys of all others (Bonawitz et al., 2017: the consistency check).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fedcal.errors import FedCalError
from fedcal.secure import crypto, shamir
from fedcal.secure.fixed import MOST_NODES, Words, add, negate
from fedcal.secure.identity import Identity
from fedcal.secure.messages import VERSION, Directory, Part, Stage, digest, entry_of, purpose, table_of

SEALED = 2 * shamir.SHARE + 16  # bytes: two shares, and what authenticates them
AGREED = 16  # bytes: the tag of an empty text
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass
class Member:
    """What a node keeps of an aggregation from one stage to the next; secrets as hex digits."""

    session: str
    sealing_key: str = field(default_factory=lambda: crypto.new_secret().hex())
    masking_key: str = field(default_factory=lambda: crypto.new_secret().hex())
    seed: str = field(default_factory=lambda: crypto.new_secret().hex())  # of the mask that is its own
    done: int = 0  # stages
    name: str = ""  # its own in the directory
    directory: Directory = field(default_factory=dict)
    sealing: dict[str, str] = field(default_factory=dict)  # by node: the key for what the two seal for each other
    held: dict[str, str] = field(default_factory=dict)  # by node: the share of its masking key, then that of its seed
    left: list[str] = field(default_factory=list)  # the nodes whose seeds it was told to reveal
    version: int = VERSION  # of the code that made it

    def keys(self, identity: Identity | None = None) -> Part:
        """Return the public keys, signed if the node has an identity."""
        self._enter("keys")
        keys = identity.sign(self.session, self._public()) if identity else self._public()
        return {"version": VERSION, "keys": keys}

    def shares(self, directory: Any, identity: Identity | None = None) -> Part:
        """Split the secrets, and seal a share for every other node.

        Args:
            directory: the public keys of all nodes.
            identity: the node's; every node must then be one of its peers.

        Raises:
            FedCalError: where the nodes are too few or too many, keys cannot be used, or this node's are not among them.
        """
        self._enter("shares")
        self.directory = _checked(directory)
        if identity:
            identity.check(self.session, self.directory)
        public = self._public()
        mine = [name for name, entry in self.directory.items() if entry[:2] == public]
        if len(mine) != 1:
            raise FedCalError("this node's keys are not in the server's directory: do not reply to this server")
        self.name = mine[0]
        least, count = shamir.threshold(len(self.directory)), len(self.directory)
        split = [shamir.split(bytes.fromhex(secret), least, count) for secret in (self.masking_key, self.seed)]
        sealed, about, sealing = {}, digest(self.session, self.directory), self._key(self.sealing_key)
        for name, key_share, seed_share in zip(self.directory, *split, strict=True):
            if name == self.name:
                self.held[name] = (key_share + seed_share).hex()
            else:
                sealed[name] = self._seal(sealing, name, key_share + seed_share, about)
        return {"sealed": sealed, "commitment": crypto.commitment(bytes.fromhex(self.seed))}

    def mask(self, sealed: Any, encode: Callable[[], Words], fewest: int = 0) -> Words:
        """Return the vector under masks: its own one, and one with every other node, which cancel in the total.

        Args:
            sealed: by node, what it sealed for this one: all those that are still there.
            encode: gives this node's vector; called when nothing can be refused any more, as it may cost privacy.
            fewest: nodes that must be left, if more than the threshold.

        Raises:
            FedCalError: where too few nodes are left, or what they sealed was changed.
        """
        self._enter("mask")
        others = table_of(sealed, SEALED, "sealed shares")
        if self.name in others or not set(others) <= set(self.directory):
            raise FedCalError("the shares are of nodes that are not in the directory: do not reply to this server")
        self._check_enough(len(others) + 1, fewest)
        about, masking = digest(self.session, self.directory), self._key(self.masking_key)
        self.held |= {name: self._unseal(name, text, about) for name, text in others.items()}
        vector = encode()
        total = add(vector, crypto.mask(bytes.fromhex(self.seed), *vector.shape))
        for name in others:
            public = bytes.fromhex(self.directory[name][1])
            total = add(total, pairwise(about, masking, public, vector.shape, self.name, name))
        return total

    def agree(self, left: Any, fewest: int = 0) -> Part:
        """Tell every other node which nodes are left, as this one was told.

        Args:
            left: the nodes whose masked vectors the server has.
            fewest: nodes that must be left, if more than the threshold.

        Raises:
            FedCalError: where they are too few, or not those of the stages before.
        """
        self._enter("agree")
        names = {str(name) for name in left} if isinstance(left, list) else set()
        if not names <= set(self.held) or self.name not in names:
            raise FedCalError("the server unmasks other nodes than those that masked: do not reply to this server")
        self._check_enough(len(names), fewest)
        self.left = sorted(names)
        about = self._about_left()
        return {
            "agreed": {
                name: crypto.seal(bytes.fromhex(self.sealing[name]), 2 + (self.name > name), b"", about).hex()
                for name in self.left
                if name != self.name
            }
        }

    def unmask(self, agreed: Any) -> Part:
        """Reveal the shares of the seeds of nodes that are left, and of the masking keys of those that fell away.

        Args:
            agreed: by node, what it told this one.

        Raises:
            FedCalError: where too few nodes were told the same as this one.
        """
        self._enter("unmask")
        told = table_of(agreed, AGREED, "agreements")
        about, least = self._about_left(), shamir.threshold(len(self.directory))
        agree = 1 + sum(self._agrees(name, text, about) for name, text in told.items())
        if agree < least:
            raise FedCalError(f"{agree} of {len(self.directory)} nodes agree on who is left, where {least} must")
        size = 2 * shamir.SHARE
        return {
            "seeds": {name: text[size:] for name, text in self.held.items() if name in self.left},
            "keys": {name: text[:size] for name, text in self.held.items() if name not in self.left},
        }

    def to_json(self) -> dict[str, Any]:
        """Return all that it holds, secrets included: for the node's own memory only."""
        return dict(vars(self))

    # -------------------------------------------------------------------------------------------------------------------

    def _enter(self, stage: Stage) -> None:
        """Every stage once and in order: two vectors under one mask, or two kinds of shares, would give a node away."""
        if self.done >= len(STAGES) or STAGES[self.done] != stage:
            raise FedCalError(f"{stage!r} is not the next stage of this aggregation: do not reply to this server")
        self.done += 1

    def _check_enough(self, nodes: int, fewest: int) -> None:
        least = max(shamir.threshold(len(self.directory)), fewest)
        if nodes < least:
            raise FedCalError(f"{nodes} of {len(self.directory)} nodes are left, where {least} are needed")

    def _about_left(self) -> bytes:
        """What a node says to another one: in this aggregation, these nodes are left."""
        return digest(self.session, self.directory) + hashlib.sha256(json.dumps(self.left).encode()).digest()

    def _agrees(self, other: str, text: str, about: bytes) -> bool:
        """Whether that node, which is left too, was told the same."""
        if other == self.name or other not in self.left:
            return False
        try:
            crypto.unseal(bytes.fromhex(self.sealing[other]), 2 + (other > self.name), bytes.fromhex(text), about)
        except FedCalError:
            return False
        return True

    def _public(self) -> list[str]:
        return [crypto.public_key(bytes.fromhex(key)).hex() for key in (self.sealing_key, self.masking_key)]

    def _key(self, secret: str) -> X25519PrivateKey:
        return crypto.private_key(bytes.fromhex(secret))

    def _seal(self, sealing: X25519PrivateKey, other: str, text: bytes, about: bytes) -> str:
        """Seal for another node; of the two, the first by name seals texts 0 and 2 under their key, the other 1 and 3."""
        public = bytes.fromhex(self.directory[other][0])
        key = crypto.agree(sealing, public, purpose("seal", about, self.name, other))
        self.sealing[other] = key.hex()
        return crypto.seal(key, self.name > other, text, about).hex()

    def _unseal(self, other: str, sealed: str, about: bytes) -> str:
        key = bytes.fromhex(self.sealing[other])
        try:
            return crypto.unseal(key, other > self.name, bytes.fromhex(sealed), about).hex()
        except FedCalError as error:
            raise FedCalError(f"node {other}: {error}") from None


def pairwise(
    about: bytes, private: X25519PrivateKey, public: bytes, shape: tuple[int, ...], name: str, other: str
) -> Words:
    """Return what a node adds to its vector for another one: their mask, or minus it if its name is the second of the two.

    Args:
        about: the `digest` of the aggregation.
        private: the node's masking key.
        public: the other one's.
        shape: of the vector.
        name: the node's.
        other: the other one's.
    """
    found = crypto.mask(crypto.agree(private, public, purpose("mask", about, name, other)), *shape)
    return found if name < other else negate(found)


def _checked(directory: Any) -> Directory:
    if not isinstance(directory, dict):
        raise FedCalError("the server's directory cannot be read")
    if not shamir.FEWEST_NODES <= len(directory) <= MOST_NODES:
        raise FedCalError(f"secure aggregation needs {shamir.FEWEST_NODES} to {MOST_NODES} nodes, not {len(directory)}")
    found = {str(name): entry_of(str(name), entry) for name, entry in sorted(directory.items())}
    if same := nodes_with_same_keys(found):
        raise FedCalError(f"nodes {', '.join(same)} have the same keys: do not reply to this server")
    return found


def nodes_with_same_keys(directory: Directory) -> list[str]:
    """Return the nodes that have a key in common with another node."""
    count = Counter(key for entry in directory.values() for key in entry[:2])
    return [name for name, entry in directory.items() if any(count[key] > 1 for key in entry[:2])]
