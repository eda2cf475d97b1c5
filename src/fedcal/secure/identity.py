"""Who a node is: it signs the public keys of every aggregation, and takes only nodes whose own keys it was given before.

Without identities a node believes the server's directory of public keys, and a server that lies could be every other node
itself. Keys are those of ssh-keygen (ed25519 or ecdsa), such as the ones that Flower's SuperNodes register with; sites
exchange the .pub files themselves, not through the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedcal.errors import FedCalError
from fedcal.secure.messages import Directory

Private = EllipticCurvePrivateKey | Ed25519PrivateKey
Public = EllipticCurvePublicKey | Ed25519PublicKey


class Identity:
    """A node's own key, and those of the nodes that it takes part with.

    Args:
        key: the node's own.
        peers: the others', perhaps with its own among them.
    """

    def __init__(self, key: Private, peers: list[Public]) -> None:
        self.key = key
        self.name = _name(key.public_key())
        self.peers = {_name(peer): peer for peer in [*peers, key.public_key()]}

    @classmethod
    def read(cls, key: Path, peers: Path) -> Identity:
        """Read a private key, and a folder of the peers' .pub files.

        Raises:
            FedCalError: where a file is not such a key.
        """
        others = []
        for path in sorted(peers.glob("*.pub")):
            others.append(_load(path, load_ssh_public_key, (EllipticCurvePublicKey, Ed25519PublicKey)))
        private = _load(
            key, lambda data: load_ssh_private_key(data, None), (EllipticCurvePrivateKey, Ed25519PrivateKey)
        )
        return cls(private, others)

    def sign(self, session: str, keys: list[str]) -> list[str]:
        """Return the node's entry in the directory: its public keys, who it is, and its signature."""
        text = _text(session, keys)
        signed = (
            self.key.sign(text) if isinstance(self.key, Ed25519PrivateKey) else self.key.sign(text, ECDSA(SHA256()))
        )
        return [*keys, self.name, signed.hex()]

    def check(self, session: str, directory: Directory) -> None:
        """Refuse a directory in which not every node is one of the peers, each of them once.

        Raises:
            FedCalError: which says which node is not.
        """
        seen = set[str]()
        for node, entry in directory.items():
            who = entry[2] if len(entry) == 4 else ""
            if (
                who not in self.peers
                or who in seen
                or not _signed(self.peers[who], _text(session, entry[:2]), entry[3])
            ):
                raise FedCalError(f"node {node} is none of this node's peers: do not reply to this server")
            seen.add(who)


def identity_of(config: Mapping[str, Any]) -> Identity | None:
    """Return the identity that a node's config gives it: `fedcal-key` and `fedcal-peers`; None where it gives none.

    Raises:
        FedCalError: where only one of the two is given, or cannot be read.
    """
    key, peers = (config.get(name) for name in ("fedcal-key", "fedcal-peers"))
    if bool(key) != bool(peers):
        raise FedCalError("fedcal-key and fedcal-peers go together: give both in the node's config, or none")
    return Identity.read(Path(str(key)), Path(str(peers))) if key else None


def _text(session: str, keys: list[str]) -> bytes:
    return f"fedcal secure aggregation {session} {' '.join(keys)}".encode()


def _signed(key: Public, text: bytes, signature: str) -> bool:
    try:
        raw = bytes.fromhex(signature)
        key.verify(raw, text) if isinstance(key, Ed25519PublicKey) else key.verify(raw, text, ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def _name(key: Public) -> str:
    return hashlib.sha256(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)).hexdigest()


def _load(path: Path, load: Any, kinds: tuple[type, ...]) -> Any:
    try:
        key = load(path.read_bytes())
        if isinstance(key, kinds):
            return key
    except (OSError, ValueError, TypeError):
        pass
    raise FedCalError(
        f"{path} cannot be read as a key: make one with `ssh-keygen -t ed25519 -f NAME`, without password"
    )
