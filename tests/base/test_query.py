"""Fingerprints: two queries, or two scalers, never have the same one."""

from __future__ import annotations

import numpy as np

from fedcal.base.query import fingerprint
from fedcal.methods import get_method
from fedcal.methods.fit import FitScaler
from fedcal.protocol import Policy, Scaler
from fedcal.protocol.policy import Talk


def of_text(*last_bytes: bytes) -> np.ndarray:
    """Numbers whose bytes are text, so that they may be part of a name."""
    return np.frombuffer(b"".join(b"      " + last for last in last_bytes), "<f8")


Z, A, B = of_text(b" @"), of_text(b" @", b" ?", b"!?", b'"?'), of_text(b"0@", b" ?", b"!?", b"p?")


def shifted() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Two maps whose names and numbers follow one another to the same text: a name may hold what an array would be."""

    def text(value: np.ndarray) -> str:
        return f" float64 ({len(value)},) {value.tobytes().decode()}/0/"

    one = {"a": Z, "bias": A, f"zz{text(Z)}bias{text(B)}zz": Z}
    return one, {f"a{text(Z)}bias{text(A)}zz": Z, "bias": B, "zz": Z}


def test_names_cannot_take_the_place_of_arrays() -> None:
    one, other = shifted()
    assert (one["bias"] != other["bias"]).any() and list(one) == sorted(one) and list(other) == sorted(other)
    assert fingerprint((one, 15)) != fingerprint((other, 15))
    assert fingerprint(FitScaler({"\ud800": Z}, 0)) != fingerprint(FitScaler({"\ud801": Z}, 0))


def test_a_second_scaler_is_not_measured_as_the_first() -> None:
    """A server that chooses names and numbers would otherwise have any number of scalers measured."""
    method, digests = get_method("fed-bias"), set[str]()
    for params in shifted():
        digests.add(Policy().measuring(Talk(), "f", Scaler(method, params, 3), 15).measured)
    assert len(digests) == 2
