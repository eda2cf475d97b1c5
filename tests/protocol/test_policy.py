"""A client's policy: where it comes from, what it allows, and that honest federations never notice it."""

from __future__ import annotations

import json
import math
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conversations import ADDITIVE, SPECS, make_samples, suited
from fedcal import METHODS, FedCalError, FedCalWarning
from fedcal.base.folds import FOLDS, folds
from fedcal.exact.linear import n_parameters
from fedcal.exact.prepared import ALL, FoldMap
from fedcal.exact.queries import Histogram, LinearSums, Points, Score, Slope, Start
from fedcal.methods import get_method
from fedcal.methods.fit import FitScaler
from fedcal.protocol import Client, Policy, Privacy, Request, Server
from fedcal.protocol.bounds import check_bounds, logit_size
from fedcal.protocol.policy import LARGEST, Talk, private_rounds

SAMPLES = make_samples([60, 70, 80], 3)
PRIVATE = [spec for spec in ADDITIVE if get_method(spec).private]


def request_of(query: Any, round: int = 1, federation: str = "federation") -> Request:
    return Request(federation, round, query)


def points(
    family: str = "bias", at: float = 1.0, k: int = 3, curvature: Any = "full", maps: int = 1, fold: int = ALL
) -> Points:
    return Points(family, fold, curvature, np.full((maps, n_parameters(family, k)), at))


def linear(family: str = "bias", at: float = 1.0, k: int = 3, curvature: Any = "full", maps: int = 1) -> LinearSums:
    return LinearSums((points(family, at, k, curvature, maps),))


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_policy_comes_from_json_or_toml(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    values = {"methods": ["fed-ts", "fedcal-plus:accuracy=keep"], "min_count": 10, "max_rounds": 30}
    (tmp_path / "policy.json").write_text(json.dumps({**values, "privacy": {"epsilon": 2.0}}))
    (tmp_path / "policy.toml").write_text(
        'methods = ["fed-ts", "fedcal-plus:accuracy=keep"]\nmin_count = 10\nmax_rounds = 30\n[privacy]\nepsilon = 2.0\n'
    )
    one, other = (Policy.load(tmp_path / f"policy.{kind}") for kind in ("json", "toml"))
    assert one == other and one.privacy == Privacy(2.0, where="local")  # and not central: a site would add no noise
    assert (one.methods, one.min_count, one.max_bins) == (("fed-ts", "fedcal-plus:accuracy=keep"), 10, 100)
    assert Policy.from_dict({}) == Policy()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"min_cuont": 3}', "unknown entry 'min_cuont': did you mean 'min_count'?"),
        ('{"min_count": 0}', "min_count must be a whole number of at least 1, not 0"),
        ('{"min_count": "5"}', "min_count must be a whole number"),
        ('{"max_bins": 1e3}', "max_bins must be a whole number"),
        ('{"max_rounds": true}', "max_rounds must be a whole number"),
        ('{"max_restarts": -1}', "max_restarts must be a whole number of at least 0"),
        ('{"allow_pooling": "yes"}', "allow_pooling must be true or false, not 'yes'"),
        ('{"methods": "fed-ts"}', "methods must be a list of names"),
        ('{"methods": [3]}', "methods must be a list of names"),
        ('{"methods": 3}', "methods must be a list of names"),
        ('{"methods": null}', "methods must be a list of names"),
        ('{"privacy": [["epsilon", 1]]}', "privacy must be a Privacy"),
        (f'{{"privacy": {{"epsilon": 1{"0" * 400}}}}}', "epsilon must be a number that a float can hold"),
        ('{"methods": ["fed-tz"]}', "unknown method 'fed-tz': did you mean 'fed-ts'?"),
        ('{"privacy": {"delta": 1e-5}}', "privacy has no epsilon"),
        ('{"privacy": {"epsilon": 1, "sigma": 2}}', "unknown entry of privacy 'sigma'"),
        ('{"privacy": 3}', "privacy must be a Privacy, not 3"),
        ('{"privacy": {"epsilon": 1, "where": "central"}}', "the server adds the noise, and a client none"),
        ("[]", "holds no table"),
        ("{", "cannot be read as JSON or TOML"),
        ("[" * 100_000, "cannot be read as JSON or TOML"),
        (" " * (LARGEST + 1), "it has more than"),
    ],
)
def test_a_bad_policy_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(text)
    with pytest.raises(FedCalError, match=re.escape(words)) as error:
        Policy.load(path)
    assert str(error.value).startswith(f"{path} is no policy: ")
    with pytest.raises(FedCalError, match=r"nowhere\.json cannot be read: No such file"):
        Policy.load(tmp_path / "nowhere.json")


# --- methods and federations ------------------------------------------------------------------------------------------


def test_the_site_says_in_which_methods_it_takes_part() -> None:
    policy = Policy(methods=("fed-ts", "fedcal-plus:accuracy=keep"))
    for spec in ("fed-ts", "fed-ts:rounds=7", "fedcal-plus:accuracy=keep"):
        policy.check_method(get_method(spec))
    for spec in ("fed-bias", "fedcal-plus", "fedcal-plus:accuracy=keep,informed=false", "val-ts"):
        with pytest.raises(FedCalError):
            policy.check_method(get_method(spec))
    for method in METHODS.values():
        if method.needs_pooled_data:
            with pytest.raises(FedCalError, match="--allow-pooling"):
                Policy().check_method(method)
        else:
            Policy().check_method(method)


def test_a_client_keeps_to_the_federation_that_it_joined() -> None:
    """Also after a restart; what differs is said, and a refusal changes nothing."""
    client = Client("fed-bias", *SAMPLES[0], policy=Policy())
    client.reply(request_of(Start()))
    state = client.state_dict()
    for other, asked, words in (
        (
            client,
            request_of(Start(), 2, "elsewhere"),
            "joined federation 'federation', and the request is of 'elsewhere'",
        ),
        (Client("fed-ts", *SAMPLES[0], policy=Policy()), request_of(Slope(1.0), 2), "joined method 'fed-bias', and"),
        (Client("fed-bias:ridge=2", *SAMPLES[0], policy=Policy()), request_of(linear(), 2), "is of 'fed-bias:ridge=2'"),
        (
            Client("fed-bias", *make_samples([60], 4)[0], policy=Policy()),
            request_of(linear(k=4), 2),
            "joined n_classes 3",
        ),
    ):
        other.load_state_dict(state)
        with pytest.raises(FedCalError, match=re.escape(words)) as error:
            other.reply(asked)
        assert "begin with a new state" in str(error.value)
        assert other.state_dict()["about"] == state["about"]
    client.reply(request_of(linear(), 2))


@pytest.mark.parametrize("change", [{"stage": -1}, {"used": [0.5]}, {"federation": 3}, {"more": 1}, {"begun": True}])
def test_a_damaged_state_is_one_line(change: dict[str, Any]) -> None:
    client = Client("fed-bias", *SAMPLES[0], policy=Policy())
    client.reply(request_of(Start()))
    state = client.state_dict()
    assert Talk.from_json(json.loads(json.dumps(state["about"]["talk"]))) == client.talk
    for talk in ({**state["about"]["talk"], **change}, None):
        with pytest.raises(FedCalError, match="the client's state is damaged"):
            client.load_state_dict({**state, "about": {**state["about"], "talk": talk}})


# --- stages -----------------------------------------------------------------------------------------------------------


def converse(spec: str, policy: Policy, drop: bool = False, scale: float = 1.0) -> tuple[Server, dict[str, Client]]:
    """A whole fit with clients that have a policy; one of them is dropped in the third round."""
    server = Server(spec, 3)
    samples = suited(spec, [(scale * z, y) for z, y in SAMPLES])
    clients = {f"site{i}": Client(server.plan.method, *pair, policy=policy) for i, pair in enumerate(samples)}
    while (request := server.request) is not None:
        replies = {name: client.reply(request) for name, client in clients.items()}
        if drop and server.ledger.rounds == 2:
            drop = False
            del clients["site2"]
            if server.drop(["site2"]):
                continue
            del replies["site2"]
        server.receive(replies)
    return server, clients


@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec != "val-ts"])
def test_honest_federations_do_not_notice_a_policy(spec: str) -> None:
    """Every method's program keeps to its stages; one client falls away, and the fit begins again."""
    server, clients = converse(spec, Policy(), drop=True)
    for client in clients.values():
        assert client.talk.begun == 1 + bool(server.ledger.restarts) or len(client.method.stages(3)) == 1
        assert client.talk.replies == server.ledger.rounds
    assert server.ledger.restarts == (server.plan.method.additive and server.ledger.rounds > 3)


@pytest.mark.parametrize("spec", PRIVATE)
@pytest.mark.parametrize("unit", ["sample", "client"])
@pytest.mark.parametrize("where", ["central", "local", "distributed"])
def test_honest_private_federations_do_not_notice_a_policy(spec: str, unit: Any, where: Any) -> None:
    """Every private program keeps to its stages and bounds, whoever states the privacy; clients may be of any size."""
    pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedcal[privacy]'")
    rng = np.random.default_rng(0)
    pairs = [(z.repeat(12, 0) + rng.normal(size=(12 * len(z), 3)), y.repeat(12)) for z, y in SAMPLES]
    privacy = Privacy(1e4, unit=unit, where=where, nodes=len(pairs) + 1)
    for own in (None, privacy) if where != "central" else (None,):
        server = Server(spec, 3, privacy=privacy)
        policy = Policy(privacy=own)
        clients = [Client(spec, *pair, policy=policy) for pair in [*pairs, (pairs[0][0][:2], pairs[0][1][:2])]]
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FedCalWarning
            )  # four clients are too few to fit anything where they are protected
            while (request := server.request) is not None:
                server.receive({f"site{i}": client.reply(request) for i, client in enumerate(clients)})
        assert {(client.talk.replies, client.talk.begun) for client in clients} == {(server.ledger.rounds, 1)}
        assert server.scaler.params and server.ledger.rounds <= private_rounds(server.plan.method)


@pytest.mark.parametrize("spec", PRIVATE)
@pytest.mark.parametrize("kind", ["separable", "wrong", "one class", "heavy tails", "tiny", "huge"])
def test_private_fits_of_odd_samples_stay_within_the_bounds(spec: str, kind: str) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=900)
    z = 3 * (rng.normal(size=(900, 3)) + np.eye(3)[y])
    logits = {
        "separable": 5 * np.eye(3)[y] + 0.1 * z,
        "wrong": -5 * np.eye(3)[y] + 0.1 * z,
        "heavy tails": rng.standard_cauchy(size=(900, 3)) + z,
        "tiny": 1e-6 * z,
        "huge": 1e4 * z,
    }.get(kind, z)
    client = Client(spec, logits, y * (kind != "one class"), policy=Policy())
    server = Server(spec, 3, privacy=Privacy(math.inf))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedCalWarning)
        while (request := server.request) is not None:
            server.receive({"site": client.reply(request)})
    assert server.scaler.params


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_logits_of_any_size_are_legal(scale: float) -> None:
    for spec in ("fed-bias", "fed-beta", "lr-ts", "avg-t", "fed-head:features=4"):
        converse(spec, Policy(), scale=scale)


def test_the_same_request_again_costs_nothing() -> None:
    client = Client("fed-bias", *SAMPLES[0], policy=Policy(max_rounds=1))
    first, again = (client.reply(request_of(Start())) for _ in range(2))
    assert all(np.array_equal(first.content[name], value) for name, value in again.content.items())
    assert client.talk.replies == 1
    with pytest.raises(FedCalError, match="has replied in 1 round: its policy allows no more"):
        client.reply(request_of(linear(), 2))


def test_a_stage_is_past_once_the_next_has_begun() -> None:
    """A new beginning is one of few; and only what the method's options ask for is replied to."""
    policy = Policy(max_restarts=1)
    client = Client("fed-vector", *SAMPLES[0], policy=policy)
    for round, query in enumerate((Start(), linear("temperature", maps=7), linear("vector")), start=1):
        client.reply(request_of(query, round))
    assert (client.talk.begun, client.talk.stage) == (1, 2)
    client.reply(request_of(linear("temperature", 0.5), 4))  # the fit begins again, without its first request
    assert (client.talk.begun, client.talk.stage) == (2, 1)
    before = client.state_dict()["about"]
    for query in (Start(), linear("matrix"), linear("bias")):
        with pytest.raises(FedCalError, match="where fed-vector does not, or more often than it needs: do not reply"):
            client.reply(request_of(query, 5))
    assert client.state_dict()["about"] == before


ONE = np.ones(1)
CROWDED: dict[
    str, tuple[str, Any]
] = {  # queries of the right kind that hold more than the method's program asks at once
    "two maps": ("fed-matrix", linear("matrix", maps=2)),
    "a map twice": ("fed-matrix", LinearSums((points("matrix"), points("matrix")))),
    "eight temperatures": ("fed-matrix", linear("temperature", maps=8)),
    "two families": ("fed-matrix", LinearSums((points("matrix"), points("temperature")))),
    "another family": ("fed-vector", linear("matrix")),
    "a family that is fitted only where Hessians are too large": ("fed-matrix", linear("bias")),
    "samples outside a fold": ("fed-matrix", LinearSums((points("matrix", fold=0, curvature="none"),))),
    "a histogram of folds": ("fed-hist", Histogram(FoldMap("temperature", dict.fromkeys(range(FOLDS), ONE)))),
    "a histogram of a matrix": ("fed-beta", Histogram(FoldMap("matrix", {ALL: np.ones(12).astype(float)}))),
    "numbers of samples in folds": ("fed-bias", Start(folds=True)),
    "more maps than ridges": ("fedcal-plus", linear("matrix", maps=7)),
    "more scores than ridges": ("fedcal-plus", Score((FoldMap("temperature", {ALL: ONE}),) * 2)),
    "a matrix without need": ("fedcal-plus:accuracy=keep,informed=false", linear("matrix", maps=1)),
    "a Hessian outside a fold": ("fedcal-plus", LinearSums((points("bias"), points("bias", fold=0)))),
    "a sixth fold": ("fedcal-plus", LinearSums((points("bias", fold=FOLDS, curvature="none"),))),
}


@pytest.mark.parametrize(("spec", "query"), CROWDED.values(), ids=CROWDED.keys())
def test_a_request_holds_no_more_than_the_program_asks_at_once(spec: str, query: Any) -> None:
    client = Client(spec, *SAMPLES[0], policy=Policy())
    client.reply(request_of(Start(folds=spec.startswith("fedcal-plus"))))
    with pytest.raises(FedCalError, match=f"asks for {type(query).__name__} where .* does not, or more often"):
        client.reply(request_of(query, 2))
    free = Client(spec, *SAMPLES[0])
    if not (isinstance(query, LinearSums) and query.points[0].fold == FOLDS):
        assert free.reply(request_of(query, 2)).n == len(SAMPLES[0][1])  # without a policy


def test_a_kind_of_query_that_the_method_never_asks() -> None:
    client = Client("fed-bias", *SAMPLES[0], policy=Policy(max_restarts=0))
    with pytest.raises(FedCalError, match="asks for Histogram, which fed-bias never does"):
        client.reply(request_of(Histogram(FoldMap("temperature", {ALL: ONE}))))


@pytest.mark.parametrize("spec", ADDITIVE)
def test_a_server_never_asks_for_ever(spec: str) -> None:
    """Whatever the sums are that it is sent: Hessians of −1e10, zeros, noise."""
    method = get_method(spec)
    most = sum(stage.times for stage in method.stages(3))
    rng = np.random.default_rng(0)
    for make in (lambda v: v * 0 - 1e10, np.zeros_like, lambda v: rng.normal(size=v.shape).astype(v.dtype)):
        server = Server(method, 3, history=False)
        honest = Client(method, *suited(spec, SAMPLES)[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                while (request := server.request) is not None:
                    reply = honest.reply(request)
                    kept = {"n", "labels", "folds"}  # so that it goes on from there
                    content = {k: v if k in kept else make(v) for k, v in reply.content.items()}
                    server.receive({"a": replace(reply, content=content)}, check=False)
            except FedCalError:
                pass  # or it says that these sums lead nowhere
        assert server.ledger.rounds <= most


# --- bounds -----------------------------------------------------------------------------------------------------------


TEMPERATURES = {name: np.array([20.1]).astype(float) for name in ("temperature", "temperatures")}
BEYOND: list[tuple[Any, str]] = [
    (Slope(20.1), "a temperature of 0.0497512"),
    (Slope(0.0), "a temperature of inf"),
    (linear("bias", 1e5), "a number of size 1e+05"),
    (linear("matrix", 9e3), "a matrix map that makes logits larger than 10000"),
    (linear("bias", k=4), "bias parameters of shape (5,)"),
    (LinearSums((Points("bias", ALL, "none", np.ones(4).astype(float)),)), "bias parameters of shape ()"),
    (Histogram(FoldMap("vector", {0: np.ones(5).astype(float)})), "vector parameters of shape (5,)"),
    (FitScaler({"temperature": TEMPERATURES["temperature"]}, 0), "a temperature of 20.1"),
    (FitScaler({"temperatures": TEMPERATURES["temperatures"]}, 0), "a temperature of 20.1"),
    (FitScaler({"w1": np.full((2, 2), 2e4)}, 0), "a number of size 2e+04 in '/params/w1'"),
]


@pytest.mark.parametrize(("query", "words"), BEYOND, ids=[words for _, words in BEYOND])
def test_parameters_that_no_fit_comes_to(query: Any, words: str) -> None:
    size = logit_size(SAMPLES[0][0])
    assert size == pytest.approx(float(np.std(SAMPLES[0][0] - SAMPLES[0][0].mean(1, keepdims=True))))
    with pytest.raises(FedCalError, match=re.escape(words)) as error:
        check_bounds(query, size, 3)
    assert "do not reply to this server" in str(error.value)


def test_a_hessian_that_is_too_large_to_be_sent_is_not_computed() -> None:
    with pytest.raises(FedCalError, match="a Hessian of a matrix map"):
        check_bounds(linear("matrix", 0.1, k=60), 1.0, 60)
    check_bounds(linear("matrix", 0.1, k=60, curvature="none"), 1.0, 60)


# --- folds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fewest", [5, 12])
def test_no_fold_holds_fewer_than_the_least_number(fewest: int) -> None:
    for n in (1, 4, 5, 9, 10, 14, 24, 25, 26, 61, 200):
        fold = folds(*make_samples([n], 3)[0], fewest)
        sizes = np.bincount(fold, minlength=FOLDS)
        filled = sizes[sizes > 0]
        assert int(sizes.sum()) == n and int(filled.min()) >= min(fewest, n)
        assert len(filled) == max(1, min(FOLDS, n // fewest)) and int(filled.max() - filled.min()) <= 1


def test_many_small_clients_fill_all_folds() -> None:
    total = sum(np.bincount(folds(*pair), minlength=FOLDS) for pair in make_samples([5] * 100, 3))
    assert isinstance(total, np.ndarray) and int(total.min()) > 40


def test_a_policys_least_number_is_that_of_the_folds_too() -> None:
    client = Client("fedcal-plus", *SAMPLES[0], policy=Policy(min_count=30))
    sizes = client.reply(request_of(Start(folds=True))).content["folds"]
    assert sorted(sizes.tolist()) == [0, 0, 0, 30, 30]


@pytest.mark.parametrize("shape", [(), (4,), (1, 1, 4)])
def test_maps_that_are_no_table_are_refused(shape: tuple[int, ...]) -> None:
    query = LinearSums((Points("bias", ALL, "full", np.ones(shape)),))
    with pytest.raises(FedCalError, match="asks for LinearSums where fed-bias does not"):
        Client("fed-bias", *SAMPLES[0], policy=Policy()).reply(request_of(query))
