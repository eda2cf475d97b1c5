"""JSON and tensors as bytes: what is packed comes back, any flipped bit is found, and odd JSON is one line."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import torch

from fedcal.base.codec import check_finite, pack, parse_json, seal, unpack, unseal
from fedcal.errors import FedCalError
from tamper import flip, reseal, with_header

TENSORS = {"b": torch.arange(6, dtype=torch.float64).reshape(2, 3), "a": torch.ones(3), 'digest": "': torch.zeros(0, 2)}
ABOUT = {"digest": "0" * 32, "order": ["x"], "x": {"digest": "f" * 32}, "ü": [1, 2.5, None, True]}


def test_what_is_packed_comes_back_and_is_the_same_bytes() -> None:
    data = pack(TENSORS, ABOUT)
    tensors, about = unpack(data)
    assert list(tensors) == list(TENSORS) and about == ABOUT
    assert all(np.array_equal(tensors[name], value) for name, value in TENSORS.items())
    assert pack(tensors, about) == data == reseal(data)


def test_every_flipped_bit_is_found() -> None:
    data = pack(TENSORS, ABOUT)
    for at in range(len(data)):
        for bit in (0, 3, 7):
            damaged = data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]
            with pytest.raises(FedCalError):
                unpack(damaged)
    for end in range(len(data)):
        with pytest.raises(FedCalError):
            unpack(data[:end])


def test_a_flipped_bit_of_large_tensors_is_found() -> None:
    rng = np.random.default_rng(0)
    data = pack({"model": torch.randn(20_000, generator=torch.Generator().manual_seed(0))}, {})
    for _ in range(50):
        with pytest.raises(FedCalError, match="its digest is another one"):
            unpack(data[:500] + flip(data[500:], rng))


def test_headers_that_claim_much_are_refused_before_anything_is_read() -> None:
    data = pack({}, {})
    for size in (2**63, 2**40, len(data)):
        with pytest.raises(FedCalError, match="header is cut short, or too large"):
            unpack(struct.pack("<Q", size) + data[8:])
    with pytest.raises(FedCalError, match="too large"):
        unpack(data, most_header=10)
    for name, value in (
        ("shape", [2**62]),
        ("shape", [-1]),
        ("dtype", "F8_E5M2"),
        ("dtype", {}),
        ("data_offsets", [0]),
    ):
        odd = with_header(pack({"x": torch.zeros(2)}, {}), lambda outer, _, n=name, v=value: outer["x"].update({n: v}))
        with pytest.raises(FedCalError):
            unpack(odd)


def test_files_without_a_digest_are_refused() -> None:
    from safetensors.torch import save

    with pytest.raises(FedCalError, match="no digest"):
        unpack(save({"x": torch.zeros(2)}, metadata={"fedcal": "{}"}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 10_000 + "]" * 10_000, "nested"),
        ("[" * 40 + "]" * 40, "nested deeper than 32"),
        ('{"a": ' * 100_000, "nested"),
        ("9" * 5_000, "a number of 5000 digits"),
        ("[NaN]", "NaN is not finite"),
        ('{"x": -Infinity}', "is not finite"),
        ("1e999", "1e999 is not finite"),
        ('{"a": 1, "a": 2}', "a name is given twice"),
        ("{", "cannot be read as JSON"),
        (b"\xff\xfe", "cannot be read as JSON"),
    ],
)
def test_odd_json_is_one_line(text: str | bytes, words: str) -> None:
    with pytest.raises(FedCalError, match=words) as error:
        parse_json(text, "x.json")
    assert "x.json" in str(error.value) and len(str(error.value)) < 300


def test_a_sealed_object_is_known_to_be_whole() -> None:
    content = {"b": 0.1 + 0.2, "a": [1, None, {"2": 1, "10": 2}], 3: 1}
    sealed = json.loads(json.dumps(seal(content)))
    assert unseal(sealed, "x") == json.loads(json.dumps(content))
    for change in ({"b": 0.3}, {"digest": "0"}, {"digest": None}, {"c": 1}):
        with pytest.raises(FedCalError, match="x is damaged, or was changed by hand"):
            unseal(sealed | change, "x")
    with pytest.raises(FedCalError, match="not list"):
        unseal([], "x")


def test_numbers_that_are_not_finite_are_named() -> None:
    check_finite({"a": np.zeros(2), "n": np.zeros(2, np.int64)})
    with pytest.raises(FedCalError, match="'a' holds NaN or infinity"):
        check_finite({"a": np.array([0.0, np.inf])})
