"""What a server refuses of its clients and a client of its server, each with one line that names who and why."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conversations import SPECS, converse, make_samples
from fedcal import METHODS, FedCalError, Privacy
from fedcal.base.query import Query
from fedcal.exact.prepared import FoldMap
from fedcal.exact.queries import Histogram, LinearSums, Points, Slope, Start
from fedcal.methods.fit import FitScaler
from fedcal.protocol import Client, LostState, Plan, Reply, Request, Server
from fedcal.protocol.checks import (
    HEADER,
    check_bytes,
    check_client_name,
    check_n_classes,
    check_request,
    example_reply,
    of_others,
    outliers,
)
from fedcal.protocol.claim import Known

SAMPLES = make_samples([60, 70, 80], 3)
ONE = np.ones(())


SEVEN = np.ones(7)  # in a fit's second round, a loss at each scale of a grid


def second_round(spec: str = "fed-bias") -> tuple[Server, dict[str, Reply]]:
    """A server in its second round, and the replies to that."""
    rounds = converse(spec, SAMPLES)
    next(rounds)
    server, _, replies = next(rounds)
    server.known = {name: Known(reply.n, 1e4) for name, reply in replies.items()}
    return server, replies


# --- replies -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS)
def test_honest_replies_pass(spec: str) -> None:
    """Of every method, in every round; and the server's example shows what they look like."""
    for server, request, replies in converse(spec, SAMPLES):
        like = example_reply(server.plan.method, 3, request.query)
        for name, reply in replies.items():
            if not server.plan.method.needs_pooled_data:
                server.check(name, reply)
            server.known[name] = server.known.get(name, Known()).after(reply)
            assert set(reply.content) == set(like)
            assert all(value.dtype == like[key].dtype for key, value in reply.content.items())


def with_tensor(name: str, value: np.ndarray) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, content={**reply.content, name: value})


REFUSED: dict[str, tuple[Callable[[Reply], Reply], str]] = {
    "other request": (lambda r: replace(r, to="0" * 32), "site1 replies to another request than that of round 2"),
    "n changed": (lambda r: replace(r, n=71), "site1 declares 71 samples, but 70 in the round before"),
    "a name too many": (with_tensor("x", ONE), "site1's reply should not hold 'x'"),
    "a name too few": (
        lambda r: replace(r, content=dict(list(r.content.items())[1:])),
        "site1's reply lacks '0/loss'",
    ),
    "nothing": (lambda r: replace(r, content={}), "site1's reply lacks"),
    "another shape": (with_tensor("0/loss", np.zeros(2)), "'0/loss' is float64 of shape (2,), not"),
    "another type": (with_tensor("0/loss", np.zeros((), np.float32)), "'0/loss' is float32 of shape ()"),
    "whole numbers": (with_tensor("0/loss", np.zeros((), np.int64)), "'0/loss' is int64"),
    "not a number": (with_tensor("0/loss", SEVEN * math.nan), "site1's reply: '0/loss' is not finite"),
    "infinite": (with_tensor("0/loss", SEVEN * math.inf), "site1's reply: '0/loss' is not finite"),
    "huge": (with_tensor("0/loss", SEVEN * 1e40), "site1's reply: '0/loss' reaches 1e+40"),
    "impossible": (with_tensor("0/loss", -SEVEN), "site1's reply: '0/loss' is negative"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_replies_are_refused(case: tuple[Callable[[Reply], Reply], str]) -> None:
    change, words = case
    server, replies = second_round()
    server.check("site1", replies["site1"])
    for call in (
        lambda: server.check("site1", change(replies["site1"])),
        lambda: server.receive({**replies, "site1": change(replies["site1"])}),
    ):
        with pytest.raises(FedCalError, match=re.escape(words)) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_reply_of_no_samples() -> None:
    server, replies = second_round()
    server.known.clear()
    empty = replace(replies["site1"], n=0)
    server.check("site1", replace(empty, content={}))
    with pytest.raises(FedCalError, match="site1 declares no samples, but replies"):
        server.check("site1", empty)


def test_nothing_is_expected_of_a_finished_server() -> None:
    server = Server("avg-t", 3)
    client = Client("avg-t", *SAMPLES[0])
    assert server.request is not None
    reply = client.reply(server.request)
    server.receive({"site0": reply})
    for call in (lambda: server.check("site0", reply), lambda: server.receive({"site0": reply})):
        with pytest.raises(FedCalError, match="no request is open: the scaler is ready"):
            call()


def test_values_of_private_replies_are_not_compared_with_samples() -> None:
    """Noise may make them negative; their size, names and types are checked. A client's word alone changes nothing."""
    server, replies = second_round()
    private = replace(replies["site1"], privacy={"where": "local"})
    with pytest.raises(FedCalError, match="is negative"):
        server.check("site1", with_tensor("0/loss", -SEVEN)(private))
    server.privacy = Privacy(1.0)
    server.check("site1", with_tensor("0/loss", -SEVEN)(private))
    with pytest.raises(FedCalError, match="is not finite"):
        server.check("site1", with_tensor("0/loss", SEVEN * math.nan)(private))


def test_what_a_client_declares_is_known() -> None:
    first = Known().after(Reply({"squares": ONE * 5}, 7, "x", probs=True))
    assert first == Known(7, 5.0, True)
    assert first.after(Reply({}, 7, "x", probs=True)) == first
    assert Known().after(Reply({"squares": ONE * 5}, 7, "x", privacy={"left": 1})).squares is None  # noised


def test_a_message_is_measured_before_it_is_read() -> None:
    like = {"x": np.zeros(1000)}
    check_bytes("site1", 8000 + HEADER, like)
    with pytest.raises(FedCalError, match=f"site1: {8001 + HEADER} bytes, where a reply has at most {8000 + HEADER}"):
        check_bytes("site1", 8001 + HEADER, like)


# --- outliers ------------------------------------------------------------------------------------------------------------


def reply_of(size: float, n: int = 1) -> Reply:
    return Reply({"x": np.array([0.0, -size])}, n, "x")


def test_scalers_far_from_the_others_are_outliers() -> None:
    replies = {"a": reply_of(1), "b": reply_of(2), "c": reply_of(1e6)}
    assert outliers(replies, additive=False, known={}) == {"c": "c's reply reaches 1e+06, the others' about 1.5"}
    assert outliers({**replies, "c": reply_of(1000)}, additive=False, known={}) == {}
    assert outliers({"a": reply_of(1e9)}, additive=False, known={}) == {}
    assert outliers({}, additive=False, known={}) == {}
    small = {"a": reply_of(1e-9), "b": reply_of(1e-9), "c": reply_of(999)}
    assert outliers(small, additive=False, known={}) == {}  # 1 is not large, whatever the others send


def test_sums_are_measured_per_sample() -> None:
    replies = {"a": reply_of(10, n=10), "b": reply_of(0, n=10), "c": reply_of(1e6, n=10**6)}
    assert outliers(replies, additive=True, known={}) == {}
    assert set(outliers({**replies, "c": reply_of(1e6, n=10)}, additive=True, known={})) == {"c"}
    # A single large one among zeros: far from the largest of the others.
    assert outliers({"a": reply_of(0), "b": reply_of(0), "c": reply_of(900)}, additive=True, known={}) == {}


def test_clients_that_declared_their_logits_are_no_outliers() -> None:
    replies = {"a": reply_of(1), "b": reply_of(1), "c": reply_of(1e6)}
    assert outliers(replies, additive=True, known={"c": Known(1, 5.0)}) == {}
    assert set(outliers(replies, additive=True, known={"c": Known(1)})) == {"c"}


@pytest.mark.parametrize("usual", [np.max, np.median])
def test_what_is_usual_of_the_others(usual: Callable[[Any], Any]) -> None:
    sizes = {str(i): float(value) for i, value in enumerate([3, 1, 4, 1, 5, 9, 2, 6])}
    found = of_others(sizes, usual)
    assert found == {name: usual([size for other, size in sizes.items() if other != name]) for name in sizes}


def test_many_clients_are_compared_in_little_time() -> None:
    """Each was compared with a new list of all others, in every round: many seconds for 10,000."""
    replies = {str(i): reply_of(i % 7) for i in range(10_000)}
    began = time.process_time()
    assert outliers(replies, additive=True, known={}) == {}
    assert time.process_time() - began < 2


def test_empty_replies_are_no_outliers() -> None:
    replies = {"a": reply_of(1), "b": Reply({}, 0, "x"), "c": Reply({"x": np.empty(0)}, 1, "x")}
    assert outliers(replies, additive=True, known={}) == {}


# --- requests, at a client -----------------------------------------------------------------------------------------------


def request_of(query: Query, round: int = 1) -> Request:
    return Request("federation", round, query)


def sums_at(family: str, at: np.ndarray, fold: int = -1) -> LinearSums:
    return LinearSums((Points(family, fold, "full", at),))


HISTOGRAM = Histogram(FoldMap("temperature", {-1: np.ones(1)}))
UNASKED: list[tuple[str, Query, str]] = [
    ("fed-ts", Start(), "asks for Start, which fed-ts never does"),
    ("fed-bias", HISTOGRAM, "asks for Histogram, which fed-bias never does"),
    ("fed-bias", FitScaler({}, 1), "asks for FitScaler"),
    ("avg-t", Slope(1.0), "asks for Slope, which avg-t never does"),
    ("fed-op", Slope(1.0), "asks for Slope"),
    ("fed-ts", Query(), "asks for Query"),
    ("fed-ts", Slope(math.nan), "not finite in '/b'"),
    ("fed-ts", Slope(math.inf), "not finite in '/b'"),
    ("fed-bias", sums_at("bias", np.full((1, 4), math.nan)), "not finite in '/points/0/at'"),
    ("fed-bias", sums_at("bias", np.zeros((1, 4), bool)), "holds bool in '/points/0/at'"),
    ("avg-t", FitScaler({"temperature": np.ones((), np.int64)}, 1), "holds int64"),
]


@pytest.mark.parametrize(("spec", "query", "words"), UNASKED)
def test_a_client_refuses_what_its_method_never_asks(spec: str, query: Query, words: str) -> None:
    client = Client(spec, *SAMPLES[0])
    for call in (lambda: client.reply(request_of(query)), lambda: check_request(request_of(query), client.method)):
        with pytest.raises(FedCalError, match=re.escape(words)) as error:
            call()
        assert "do not reply to this server" in str(error.value)


def test_no_method_is_refused_its_own_queries() -> None:
    for spec in SPECS:
        for server, request, _ in converse(spec, SAMPLES):
            check_request(request, server.plan.method)


def test_microscopic_logits_make_huge_but_honest_requests() -> None:
    check_request(request_of(Slope(1e150)), METHODS["fed-ts"])


@pytest.mark.parametrize(
    "query",
    [
        sums_at("bias", np.zeros((1, 7))),
        sums_at("matrix", np.zeros((1, 3))),
        sums_at("bias", np.zeros(4)),
        sums_at("bias", np.zeros((1, 4)), fold=17),
    ],
)
def test_a_request_that_does_not_fit_the_samples(query: Query) -> None:
    with pytest.raises(FedCalError, match="the request does not fit this client's samples"):
        Client("fed-matrix", *SAMPLES[0]).reply(request_of(query))


def test_a_refusal_does_not_say_how_many_samples_there_are() -> None:
    """Over Flower the server reads it, also of a node whose sums are masked."""
    server = Server("fed-op", 3)
    while type(server.request.query).__name__ != "NetGradient":
        server.receive({"a": Client("fed-op", *SAMPLES[0]).reply(server.request)})
    query = replace(server.request.query, net={**server.request.query.net, "w1": np.zeros((0, 3))})
    with pytest.raises(FedCalError, match="does not fit this client's samples") as error:
        Client("fed-op", *SAMPLES[0]).reply(replace(server.request, query=query))
    assert not re.search(r"\d", str(error.value))


def test_rounds_of_the_past_and_lost_states() -> None:
    client = Client("fedcal-no-wm:steps=2", *SAMPLES[0])
    server = Server(client.method, 3)
    first = server.request
    assert first is not None
    reply = client.reply(first)
    server.receive({"site0": reply})
    second = server.request
    assert second is not None
    replies = [client.reply(second).content for _ in range(2)]  # the same, however often it is asked
    assert all(np.array_equal(replies[0][name], replies[1][name]) for name in replies[0])
    with pytest.raises(FedCalError, match="round 1 is past: this client has replied to round 2 already"):
        client.reply(first)
    with pytest.raises(LostState, match="is gone: bring its state back, or start again"):
        Client(client.method, *SAMPLES[0]).reply(second)


@pytest.mark.parametrize("name", ["siteA", "Sankt Anna", "å_1-2"])
def test_names_that_files_can_have(name: str) -> None:
    assert check_client_name(name) == name


@pytest.mark.parametrize("name", ["", ".x", "../x", "a/b", "a\\b", "a,b", " a", "a\0", 201 * "a", 101 * "é"])
def test_names_that_files_cannot_have(name: str) -> None:
    with pytest.raises(FedCalError, match="cannot name a site"):
        check_client_name(name)


def test_samples_of_other_classes() -> None:
    plan = Plan(METHODS["fed-ts"], 3)
    check_n_classes("siteA", 3, plan)
    with pytest.raises(FedCalError, match="siteA: 4 classes, where the federation has 3"):
        check_n_classes("siteA", 4, plan)
