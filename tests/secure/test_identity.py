"""Nodes with identities: a server cannot put itself, or one node twice, into the directory."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedcal import FedCalError
from fedcal.secure.fixed import encode
from fedcal.secure.identity import Identity, identity_of
from fedcal.secure.member import Member

NAMES = ("a", "b", "c")


def identities():
    """Three nodes: two keys of one kind, one of the other."""
    keys = [Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())]
    public = [key.public_key() for key in keys]
    return {name: Identity(key, public) for name, key in zip(NAMES, keys, strict=True)}


def met(who):
    members = {name: Member("session") for name in NAMES}
    return members, {name: members[name].keys(who[name])["keys"] for name in NAMES}


def test_peers_aggregate():
    who = identities()
    members, directory = met(who)
    shared = {name: members[name].shares(directory, who[name]) for name in NAMES}
    sealed = {name: shared[name]["sealed"]["a"] for name in ("b", "c")}
    assert members["a"].mask(sealed, lambda: encode(np.ones(2), 2)).shape == (2, 2)


@pytest.mark.parametrize("attack", ["unsigned", "stranger", "twice", "other keys", "other session", "nonsense"])
def test_a_directory_with_anybody_else_is_refused(attack):
    who = identities()
    members, directory = met(who)
    fake = Member("session").keys()["keys"]
    forged = {
        "unsigned": lambda: fake,
        "stranger": lambda: Identity(Ed25519PrivateKey.generate(), []).sign("session", fake),
        "twice": lambda: who["b"].sign("session", fake),
        "other keys": lambda: [*fake, *directory["c"][2:]],
        "other session": lambda: who["c"].sign("another", fake),
        "nonsense": lambda: [*fake, who["c"].name, "zz"],
    }[attack]()
    with pytest.raises(FedCalError, match="none of this node's peers"):
        members["a"].shares({**directory, "c": forged}, who["a"])


def test_keys_are_read_from_files(tmp_path):
    key, other = Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())
    (tmp_path / "north").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (tmp_path / "south.pub").write_bytes(other.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    config = {"fedcal-key": str(tmp_path / "north"), "fedcal-peers": str(tmp_path)}
    found = identity_of(config)
    assert found and len(found.peers) == 2 and found.name == Identity(key, []).name
    assert identity_of({}) is None
    with pytest.raises(FedCalError, match="go together"):
        identity_of({"fedcal-key": "north"})
    for bad in ("south.pub", "missing"):
        with pytest.raises(FedCalError, match="cannot be read as a key"):
            identity_of({**config, "fedcal-key": str(tmp_path / bad)})
