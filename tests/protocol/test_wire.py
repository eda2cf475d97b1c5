"""Messages as bytes: what is packed comes back bit for bit, and no bytes raise anything but a FedCalError."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from conversations import SPECS, converse, make_samples, suited
from fedcal import METHODS, FedCalError
from fedcal.base.query import leaves
from fedcal.exact import stages
from fedcal.exact.queries import LinearSums, Points, Slope
from fedcal.methods import get_method, spec_of
from fedcal.methods.fit import FitScaler
from fedcal.methods.sets import SET_QUERIES
from fedcal.protocol import Client, Plan, Privacy, Reply, Request
from fedcal.protocol.wire import (
    asked_clients,
    pack,
    pack_reply,
    pack_request,
    plan_from_json,
    plan_to_json,
    unpack,
    unpack_reply,
    unpack_request,
)

Message = tuple[Plan, Request, dict[str, Reply]]


def same(one: np.ndarray, other: np.ndarray) -> bool:
    equal_kind = one.dtype == other.dtype and one.shape == other.shape
    return equal_kind and one.tobytes() == other.tobytes()


@cache
def messages() -> list[Message]:
    """All messages of every method, also of those that look different with many classes."""
    small = make_samples([60, 70], 3)
    found = [(server.plan, *rest) for spec in SPECS for server, *rest in converse(spec, small)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "NEWTON_MAX", 0)
        patch.setattr(stages, "MATRIX_NEWTON_MAX", 0)
        for spec in ("fed-vector", "fed-matrix"):
            found += [(server.plan, *rest) for server, *rest in converse(spec, small)]
    return found  # type: ignore[return-value]


# --- there and back -------------------------------------------------------------------------------------------------------


def test_every_type_of_query_is_sent() -> None:
    """So that the next test misses none."""
    sent = {type(request.query) for _, request, _ in messages()}
    assert sent == {kind for method in METHODS.values() for kind in method.may_ask} | set(SET_QUERIES)


def test_requests_come_back_bit_for_bit() -> None:
    for plan, request, _ in messages():
        data = pack_request(plan, request)
        again_plan, again = unpack_request(data)
        assert again_plan == plan and (again.federation, again.round) == (request.federation, request.round)
        assert again.digest == request.digest
        before, after = list(leaves(request.query)), list(leaves(again.query))
        assert [name for name, _ in before] == [name for name, _ in after]
        for (_, one), (_, other) in zip(before, after, strict=True):
            assert type(one) is type(other)
            assert same(one, other) if isinstance(one, np.ndarray) and isinstance(other, np.ndarray) else one == other
        assert pack_request(again_plan, again) == data


def test_replies_come_back_bit_for_bit() -> None:
    for _, _, replies in messages():
        for client, reply in replies.items():
            data = pack_reply(reply, client)
            name, again = unpack_reply(data)
            assert name == client and list(again.content) == list(reply.content)
            assert all(same(value, again.content[key]) for key, value in reply.content.items())
            assert replace(again, content={}) == replace(reply, content={})
            assert pack_reply(again, name) == data


def test_replies_to_a_request_that_travelled_are_the_same() -> None:
    samples = make_samples([60], 3)
    for plan, request, _ in messages():
        one, other = (Client(plan.method, *suited(spec_of(plan.method), samples)[0]) for _ in range(2))
        if not (plan.method.remembers and request.round > 1):
            reply = one.reply(request)
            travelled = other.reply(unpack_request(pack_request(plan, request))[1])
            assert pack_reply(reply, "x") == pack_reply(travelled, "x")


@pytest.mark.parametrize("classes", [(), ("cat", "dog", "owl"), (1, 5, 7), (0.5, 1.5, 2.5), (True, False)])
@pytest.mark.parametrize(
    "spec", ["fed-ts", "fedcal-plus:accuracy=keep,prior_shift=true", "fedcal:lr=0.02,average=latest"]
)
def test_plans_come_back(spec: str, classes: tuple[Any, ...]) -> None:
    plan = Plan(get_method(spec), len(classes) or 3, 7, classes)
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_privacy_and_names_come_back() -> None:
    plan = Plan(get_method("fed-ts"), 3)
    privacy = Privacy(3.0, clip=2.5, unit="client")
    data = pack_request(plan, Request(plan.federation, 1, Slope(1.0), privacy), ["siteA", "siteB"])
    assert unpack_request(data)[1].privacy == privacy
    assert asked_clients(data) == ["siteA", "siteB"]
    assert asked_clients(pack_request(plan, Request(plan.federation, 1, Slope(1.0)))) == []
    told = {"left": 3, "epsilon": 1.5}
    _, reply = unpack_reply(pack_reply(Reply({}, 5, "x", {"steps": 2.0}, told, probs=True), "ü/ x"))
    assert (reply.privacy, reply.notes, reply.probs) == (told, {"steps": 2.0}, True)


def test_odd_tensors_come_back() -> None:
    """Views, strides, no elements, no dimensions, negative zeros and subnormal numbers."""
    grid = np.arange(12, dtype=np.float64).reshape(3, 4)
    odd = [
        grid.T,
        grid[:, ::2],
        np.broadcast_to(grid[1], (2, 4)),
        np.empty((0, 3)),
        np.array(-0.0),
        np.array(5e-324),
    ]
    tensors = {f"b/{9 - i}": value for i, value in enumerate(odd)}
    found, header = unpack(pack(tensors, {"x": 1}))
    assert header == {"x": 1} and list(found) == list(tensors)
    assert all(same(value, found[name]) for name, value in tensors.items())


# --- hostile bytes ----------------------------------------------------------------------------------------------------------


PLAN = Plan(get_method("fedcal-plus"), 3)
QUERY = LinearSums((Points("bias", 0, "full", np.zeros((1, 4))),))
REQUEST = pack_request(PLAN, Request(PLAN.federation, 1, QUERY), ["siteA"])
REPLY = pack_reply(Reply({"n": np.ones(())}, 5, "x", {"steps": 2.0}), "siteA")
READERS: list[tuple[Callable[[bytes], Any], bytes]] = [(unpack_request, REQUEST), (unpack_reply, REPLY)]


def refused(read: Callable[[Any], Any], data: Any) -> None:
    with pytest.raises(FedCalError) as error:
        read(data)
    assert "\n" not in str(error.value)


def raw(header: Any, tensors: dict[str, np.ndarray] | None = None) -> bytes:
    """A message whose header is any text or JSON."""
    text = header if isinstance(header, str) else json.dumps(header)
    return save(tensors or {}, metadata={"fedcal": text})


def edited(data: bytes, **changes: Any) -> bytes:
    """The message with entries of its header changed, or (...) left out."""
    tensors, header = unpack(data)
    header = {key: value for key, value in (header | changes).items() if value is not ...}
    return pack(tensors, header)


@pytest.mark.parametrize(("read", "data"), READERS, ids=["request", "reply"])
def test_truncated_and_foreign_bytes(read: Callable[[bytes], Any], data: bytes) -> None:
    for end in range(len(data)):
        refused(read, data[:end])
    for other in (b"", b"\0" * 8, b"\0" * 100, b"{}", data + b"x", save({"x": np.zeros(1)}), None, 5, "text", [1]):
        refused(read, other)
    for size in (2**63, 2**64 - 1, 10**9, len(data)):  # a header that claims to be huge
        refused(read, struct.pack("<Q", size) + data[8:])


@pytest.mark.parametrize("read", [unpack_request, unpack_reply])
def test_headers_of_other_types(read: Callable[[bytes], Any]) -> None:
    for header in (
        "",
        "null",
        "[]",
        "5",
        "{}",
        '{"order": 5}',
        '{"order": [[]]}',
        '{"order": ["x"]}',
        "[" * 100_000,
        "NaN",
    ):
        refused(read, raw(header))
    refused(read, raw({"order": []}, {"x": np.zeros(1)}))  # a tensor that has no place
    refused(read, raw({"order": ["x", "x"]}, {"x": np.zeros(1)}))


def test_tensors_that_claim_to_be_huge() -> None:
    for shape, end in (([2**40], 8), ([2**62, 4], 8), ([1], 2**40), ([-1], 8), ([2**64], 8)):
        header = {
            "x": {"dtype": "F64", "shape": shape, "data_offsets": [0, end]},
            "__metadata__": {"fedcal": '{"order":["x"]}'},
        }
        text = json.dumps(header).encode()
        refused(unpack, struct.pack("<Q", len(text)) + text + b"\0" * 8)


ODD = [..., None, True, -1, 0, 1.5, float("nan"), float("inf"), 10**400, "", "x", [], [[]], {}, {"x": {}}, ["a", ["b"]]]
PRIVACY = asdict(Privacy(1.0))
OTHER_REQUESTS: dict[str, list[Any]] = {
    "schema": [v for v in ODD if v != 2],
    "kind": ["reply", *ODD],
    "round": ODD,
    "n_classes": [v for v in ODD if v is not ...] + [...],
    "seed": [v for v in ODD if type(v) is not int],
    "classes": [v for v in ODD if v != []] + [["a"], ["a", "a", "b"], [[1], [2], [3]], [None] * 3, [{}, 1, 2]],
    "federation": [v for v in ODD if type(v) is not str],
    "method": [*ODD, "fed-tss"],
    "options": [v for v in ODD if v != {}]
    + [{"accuracy": "x"}, {"rounds": -1}, {"rounds": 1.5}, {"name": "y"}, {"leaves": 1}],
    "query": ODD,
    "privacy": [v for v in ODD if v is not ... and v is not None]
    + [{"epsilon": 1.0}, PRIVACY | {"epsilon": "1"}, PRIVACY | {"x": 1}],
}
OTHER_REPLIES: dict[str, list[Any]] = {
    "schema": ODD,
    "kind": ["request", *ODD],
    "client": [v for v in ODD if type(v) is not str],
    "to": [v for v in ODD if type(v) is not str],
    "n": [v for v in ODD if v != 0 or type(v) is not int] + [10**13],
    "notes": [v for v in ODD if v != {}] + [{"steps": "many"}, {"steps": None}, {"steps": [1]}, {"steps": True}],
    "privacy": [v for v in ODD if v not in (..., {})] + [{"epsilon": [1]}, {"epsilon": {}}],
}


@pytest.mark.parametrize("key", OTHER_REQUESTS)
def test_requests_with_odd_entries(key: str) -> None:
    unpack_request(edited(REQUEST))
    for value in OTHER_REQUESTS[key]:
        refused(unpack_request, edited(REQUEST, **{key: value}))


@pytest.mark.parametrize("key", OTHER_REPLIES)
def test_replies_with_odd_entries(key: str) -> None:
    unpack_reply(edited(REPLY))
    for value in OTHER_REPLIES[key]:
        refused(unpack_reply, edited(REPLY, **{key: value}))


def test_notes_beyond_measure_are_left_out() -> None:
    assert unpack_reply(edited(REPLY, notes={"huge": 1e300, "steps": 3}))[1].notes == {"steps": 3.0}
    odd = {"nan": float("nan"), "inf": float("inf"), "steps": 3.0}
    assert unpack_reply(pack_reply(Reply({}, 5, "x", odd), "siteA"))[1].notes == {"steps": 3.0}


def test_whom_a_request_asks() -> None:
    for value in (5, "siteA", [5], [["siteA"]], {}):
        refused(asked_clients, edited(REQUEST, clients=value))


def query(**fields: Any) -> dict[str, Any]:
    points = {"type": "Points", "fields": fields}
    return {"type": "LinearSums", "fields": {"points": {"tuple": [points]}}}


def of_maps(at: Any) -> dict[str, Any]:
    return {
        "type": "Score",
        "fields": {"candidates": {"tuple": [{"type": "FoldMap", "fields": {"family": "bias", "at": at}}]}},
    }


T0 = {"tensor": "t"}
GOOD = {"family": "bias", "fold": 0, "curvature": "full", "at": T0}
DEEP: Any = {"tuple": []}
for _ in range(20):
    DEEP = {"tuple": [DEEP]}
OTHER_QUERIES: list[Any] = [
    {"type": "Unknown", "fields": {}},
    {"type": "Client", "fields": {}},
    {"type": "FoldMap", "fields": {"family": "bias", "at": {"dict": []}}},  # a part of queries, and none itself
    {"type": ["Slope"], "fields": {}},
    {"type": "Slope"},
    {"type": "Slope", "fields": []},
    {"type": "Slope", "fields": {}},
    {"type": "Slope", "fields": {"b": "1"}},
    {"type": "Slope", "fields": {"b": True}},
    {"type": "Slope", "fields": {"b": None}},
    {"type": "Slope", "fields": {"b": 1.0, "more": 1}},
    {"type": "Start", "fields": {"folds": 1}},
    query(**GOOD, more=1),
    query(**{**GOOD, "family": 5}),
    query(**{**GOOD, "curvature": "half"}),
    query(**{**GOOD, "curvature": {"tuple": []}}),
    query(**{**GOOD, "at": {"tuple": []}}),
    query(**{**GOOD, "at": 1.0}),
    query(**{**GOOD, "fold": "0"}),
    query(**{**GOOD, "fold": 0.5}),
    query(**{**GOOD, "at": {"tensor": "other"}}),
    query(**{**GOOD, "at": {"tensor": ["t"]}}),
    of_maps({"dict": [["0", T0]]}),
    of_maps({"dict": [[0, 1.0]]}),
    of_maps({"dict": [[[0], T0]]}),
    of_maps({"dict": [[0]]}),
    of_maps({"dict": 5}),
    {"type": "LinearSums", "fields": {"points": {"tuple": [T0, 5]}}},
    {"type": "LinearSums", "fields": {"points": [T0]}},
    {"type": "LinearSums", "fields": {"points": DEEP}},
    T0,
    {"dict": []},
    DEEP,
]


def of_query(content: Any) -> bytes:
    header = plan_to_json(PLAN) | {"kind": "request", "round": 1, "query": content}
    return pack({"t": np.zeros((1, 4))}, header)


def test_queries_that_are_none() -> None:
    assert isinstance(unpack_request(of_query(query(**GOOD)))[1].query, LinearSums)
    for content in OTHER_QUERIES:
        refused(unpack_request, of_query(content))


DTYPES = [np.float16, np.uint16, np.int8, np.int64, np.uint8, np.bool_]


def test_a_client_refuses_what_a_server_never_asks() -> None:
    """Bytes that are a request, but with numbers or types that do not belong there: refused before or in the reply."""
    client = Client("fedcal-plus", *make_samples([60], 3)[0])
    tensors = [np.zeros((1, 4), dtype) for dtype in DTYPES]
    tensors += [np.full((1, 4), value) for value in (float("nan"), float("inf"))]
    tensors += [np.zeros(shape) for shape in ((), (0,), (4,), (1, 3), (4, 3), (2, 1000))]
    for tensor in tensors:
        header = plan_to_json(PLAN) | {"kind": "request", "round": 1, "query": query(**GOOD)}
        refused(lambda data: client.reply(unpack_request(data)[1]), pack({"t": tensor}, header))
    refused(lambda data: client.reply(unpack_request(data)[1]), of_query(query(**{**GOOD, "fold": 99})))


def test_a_net_of_other_sizes_is_refused() -> None:
    client = Client("fedcal-small", *make_samples([60], 3)[0])
    params = {name: np.zeros((2, 2)) for name in ("w1", "b1", "w2", "b2", "w3", "b3")}
    for broken in (params, {}, {"x": np.zeros(1)}):
        refused(client.reply, Request("f", 1, FitScaler(broken, 5)))


# --- any bytes and any JSON -------------------------------------------------------------------------------------------------


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("t"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.recursive(
    JSON | st.just(T0) | st.just(GOOD),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"tuple": st.lists(inner, max_size=2)}),
        st.fixed_dictionaries({"dict": st.lists(st.tuples(st.integers(0, 4), inner), max_size=2)}),
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["Slope", "Start", "Score", "FoldMap", "Points", "LinearSums", "FitScaler"]),
                "fields": st.fixed_dictionaries(
                    {},
                    optional=dict.fromkeys(
                        ("b", "at", "fold", "folds", "family", "points", "candidates", "params", "draw"), inner
                    ),
                ),
            }
        ),
    ),
    max_leaves=6,
)


def only_fedcal_errors(read: Callable[[bytes], Any], data: bytes) -> None:
    with contextlib.suppress(FedCalError):
        read(data)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.binary(max_size=200), at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_any_bytes(data: bytes, at: int, byte: int) -> None:
    """Noise, and messages of which one byte is another."""
    for read, good in READERS:
        only_fedcal_errors(read, data)
        place = at % len(good)
        only_fedcal_errors(read, good[:place] + bytes([byte]) + good[place + 1 :])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(key=st.sampled_from([*OTHER_REQUESTS, *OTHER_REPLIES, "clients", "unit", "order"]), value=JSON)
def test_any_entry(key: str, value: Any) -> None:
    for read, good in READERS:
        tensors, header = unpack(good)
        only_fedcal_errors(read, pack(tensors, header | {key: value}))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(content=PARTS)
def test_any_query(content: Any) -> None:
    client = Client("fedcal-plus", *make_samples([10], 3)[0])
    only_fedcal_errors(lambda data: client.reply(unpack_request(data)[1]), of_query(content))
