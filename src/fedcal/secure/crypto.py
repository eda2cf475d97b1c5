"""Keys that two nodes share, what they seal for each other, and masks: all from the `cryptography` library."""

from __future__ import annotations

import hashlib
import secrets

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedcal.errors import FedCalError
from fedcal.secure.fixed import Words

KEY = 32  # bytes of every key and secret
FIELD = 2**255 - 19  # the prime of X25519: a public key is a number below it
# Public keys of low order: the secret that anybody shares with them is 0 (https://cr.yp.to/ecdh.html#validate).
LOW_ORDER = frozenset(
    [
        0,
        1,
        FIELD - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    ]
)


def new_secret() -> bytes:
    """Return 256 bits from the operating system's cryptographic source."""
    return secrets.token_bytes(KEY)


def private_key(secret: bytes) -> X25519PrivateKey:
    """Return the X25519 key that a secret is."""
    return X25519PrivateKey.from_private_bytes(secret)


def public_key(secret: bytes) -> bytes:
    """Return the public half of a key."""
    return private_key(secret).public_key().public_bytes_raw()


def check_public_key(public: bytes) -> None:
    """Refuse a public key of low order, and one that is not in the form that `public_key` gives.

    X25519 ignores the highest bit and reduces the rest modulo the prime. Without this check one key would have several
    forms, and two nodes' keys could be the same key and look different.

    Raises:
        FedCalError: which says what is wrong.
    """
    value = int.from_bytes(public, "little")
    if value >= FIELD:
        raise FedCalError("a public key is not in its canonical form")
    if value in LOW_ORDER:
        raise FedCalError("a public key is of low order: everybody knows the secrets that it shares")


def agree(private: X25519PrivateKey, public: bytes, purpose: bytes) -> bytes:
    """Return the key that two nodes share for one purpose: X25519, then HKDF-SHA256.

    Raises:
        FedCalError: where the public key is none.
    """
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise FedCalError("a node's public key is damaged: do not reply to this server") from None
    return HKDF(SHA256(), KEY, salt=None, info=purpose).derive(shared)


def seal(key: bytes, number: int, text: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate a text, bound to what it is about. A key must seal one text only of each number."""
    return ChaCha20Poly1305(key).encrypt(number.to_bytes(12), text, about)


def unseal(key: bytes, number: int, sealed: bytes, about: bytes) -> bytes:
    """Return the text that was sealed.

    Raises:
        FedCalError: where it was changed, or is about something else.
    """
    try:
        return ChaCha20Poly1305(key).decrypt(number.to_bytes(12), sealed, about)
    except (InvalidTag, ValueError):
        raise FedCalError("a sealed share was changed on its way: do not reply to this server") from None


def mask(key: bytes, words: int, length: int) -> Words:
    """Expand a key to a mask of that many numbers: ChaCha20's key stream."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * words * length))
    return np.frombuffer(stream, "<u8").reshape(words, length)


def random_words(words: int, length: int) -> Words:
    """Return that many uniform numbers."""
    return mask(new_secret(), words, length)


def commitment(secret: bytes) -> str:
    """Return a fingerprint of a secret of 256 bits, by which it can be recognised and not be found."""
    return hashlib.sha256(b"fedcal commitment" + secret).hexdigest()
