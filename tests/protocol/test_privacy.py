"""Differential privacy: attacks on our own releases, the accountant, and what a private client refuses."""

import json
import math
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from scipy.stats import beta

pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedcal[privacy]'")

import dp_accounting
from dp_accounting import rdp

from fedcal import FedCalError, FedCalWarning, Privacy
from fedcal.exact.prepared import Prepared
from fedcal.exact.private_queries import PRIVATE_QUERIES, Gains, MatrixSums, Measure, Scales, ScaleSums
from fedcal.exact.private_query import VALUES
from fedcal.exact.queries import Slope, Start
from fedcal.methods import get_method
from fedcal.protocol import Client, Plan, Policy, Request, Server
from fedcal.protocol.privacy import LEAST
from fedcal.protocol.wire import pack_request, unpack_request

K = 3


def samples(n=60, seed=0, k=K):
    rng = np.random.default_rng(seed)
    return 3 * rng.normal(size=(n, k)), rng.integers(k, size=n)


def request(query, privacy=None, number=1):
    return Request("federation", number, query, privacy)


def hessian_query(budget=0.2):
    return ScaleSums(K, budget, 2.0, np.array([1.0, 0.1, 0.0, -0.1]))


# --- attacks -------------------------------------------------------------------------------------------------------------


def noise_of_seed(seed, d, sigma=50.0):
    """Noise as it must not be drawn: from torch's generator, whose seed has 32 bits, on every entry of a symmetric matrix."""
    return sigma * torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).numpy()


def seed_search(released, seeds):
    """The symmetric matrix under the noise: what tells two mirrored entries apart is noise alone, and gives the seed away."""
    difference = released - released.T
    for seed in seeds:
        noise = noise_of_seed(seed, len(released))
        if float(np.abs(difference).max()) > 0 and np.allclose(noise - noise.T, difference, atol=1e-6):
            return released - noise
    return None


def test_a_seed_search_denoises_a_release_of_a_seeded_generator_but_none_of_ours():
    z, y = samples()
    query = hessian_query()
    _, hessian = query.read(query.reply(Prepared(lambda: (z, y)))[VALUES])
    seeds = range(2000)
    found = seed_search(hessian + noise_of_seed(1234, K + 1), seeds)
    assert found is not None and np.allclose(found, hessian)
    content = Client("fed-bias", z, y, privacy=Privacy(1.0, where="local")).reply(request(query)).content
    _, released = query.read(content[VALUES])
    assert float(np.abs(released - hessian).max()) > 1  # it is noised
    assert np.array_equal(released, released.T)  # and its two triangles are one
    assert seed_search(released, seeds) is None


@pytest.mark.parametrize("where", ["local", "distributed"])
def test_everything_released_lies_on_the_grid(where):
    """Floating-point sums tell of samples by their last bits: what leaves is whole multiples of a power of two."""
    privacy = Privacy(2.0, where=where, nodes=3)
    for query in (Scales(K, 0.1), hessian_query()):
        values = Client("fed-bias", *samples(), privacy=privacy).reply(request(query)).content[VALUES]
        steps = values / privacy.grid(query)
        assert np.array_equal(steps, np.rint(steps)) and math.log2(privacy.grid(query)).is_integer()


def test_one_sample_moves_a_rounded_sum_by_the_sensitivity_at_most():
    z, y = samples(25)
    privacy, query = Privacy(math.inf), hessian_query()

    def rounded(z, y):
        return privacy.at_client(query, query.reply(Prepared(lambda: (z, y))))[VALUES]

    most = query.bound + privacy.grid(query) * math.sqrt(query.size)
    for i in range(len(y)):
        keep = np.arange(len(y)) != i
        assert float(np.linalg.norm(rounded(z, y) - rounded(z[keep], y[keep]))) <= most


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_the_least_number_of_samples_is_no_jump(unit):
    """A client of 4 samples replies with none of them: the fifth must not bring the other four along."""
    z = samples(12)[0]
    privacy, query = Privacy(math.inf, where="local", unit=unit), Scales(K, 0.1)
    policy, most = Policy(min_count=5), query.bound + privacy.grid(query) * math.sqrt(query.size)
    before = np.zeros(query.size)
    for n in range(13):
        client = Client("fed-bias", z[:n], np.zeros(n, np.int64), policy=policy)
        values = client.reply(request(query, privacy)).content[VALUES]
        assert float(np.linalg.norm(values - before)) <= most and bool(values.any()) == (n >= 5)
        before = values
    assert float(values[0]) == pytest.approx(8 if unit == "sample" else 1, abs=0.01)


@pytest.mark.parametrize("method", ["fed-bias", "fed-hist"])
@pytest.mark.parametrize("where", ["central", "distributed"])
def test_one_sample_does_not_decide_whether_a_client_takes_part(method, where):
    """A client that adds no noise of its own refuses steep maps, and all its samples would go with the one that is huge."""
    z, y = samples(400)
    clients = {name: Client(method, z, y, policy=Policy()) for name in "ab"}
    clients["c"] = Client(method, np.append(z, [[1e12, 0.0, 0.0]], 0), np.append(y, 0), policy=Policy())
    server = Server(method, K, privacy=Privacy(100.0, where=where, nodes=3))
    with warnings.catch_warnings(action="ignore", category=FedCalWarning):  # that the fit falls back
        while (ask := server.request) is not None:
            server.receive({name: client.reply(ask) for name, client in clients.items()})
    assert server.ledger.took_part == list("abc") and server.ledger.rounds >= 8


def lower_bound(privacy, draws=1200):
    """A lower bound of ε, right with 99.9 %: how well releases of two neighbouring data sets can be told apart."""
    query = Scales(2, 1.0, norms=False)
    z = np.zeros((9, 2))
    full = replace(privacy, measure=0.0)

    def releases(n):
        sums = query.reply(Prepared(lambda: (z[:n], np.zeros(n, np.int64))))
        return np.array([float(full.at_client(query, sums)[VALUES][0]) for _ in range(draws)])

    without, with_one = np.sort(releases(8)), np.sort(releases(9))
    best = 0.0
    for threshold in np.linspace(6, 12, 25):
        right, wrong = int((with_one > threshold).sum()), int((without > threshold).sum())
        tpr = beta.ppf(5e-4, right, draws - right + 1) if right else 0.0
        fpr = beta.ppf(1 - 5e-4, wrong + 1, draws - wrong) if wrong < draws else 1.0
        if tpr > privacy.delta:
            best = max(best, math.log((tpr - privacy.delta) / fpr))
    return best


def test_releases_of_neighbours_cannot_be_told_apart_better_than_epsilon_allows():
    assert lower_bound(Privacy(1.0, where="local")) < 1.0
    assert lower_bound(Privacy(2.5, where="local")) < 2.5
    assert lower_bound(Privacy(30.0, where="local")) > 2.5  # the audit does see noise that is too small


# --- the accountant ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("method", ["fedcal-plus", "fed-ts", "fed-hist"])
def test_a_whole_conversation_stays_within_epsilon(epsilon, method):
    """All requests of a fit and the measurement, composed one by one by the accountant."""
    privacy, accountant = Privacy(epsilon, where="local"), rdp.RdpAccountant()
    server, client = Server(method, K, privacy=privacy), Client(method, *samples(3000), privacy=privacy)
    asked = []
    while (ask := server.request) is not None:
        asked.append(ask.query)
        server.receive({"a": client.reply(ask)})
    asked.append(Measure(K, 1.0, 3, 15))
    for query in asked:
        accountant.compose(
            dp_accounting.GaussianDpEvent(math.sqrt(privacy.variance(query)) * privacy.grid(query) / query.bound)
        )
    assert 0.9 * epsilon < accountant.get_epsilon(privacy.delta) <= epsilon
    assert client.spent == pytest.approx(server.ledger.spent) and client.spent <= 0.9 + 1e-9
    assert privacy.spent(1.0) == pytest.approx(epsilon, rel=1e-3) and privacy.spent(0.0) == 0


def test_shares_of_the_noise_add_up_to_the_central_noise():
    query = hessian_query()
    central = Privacy(2.0).variance(query)
    for nodes in (1, 2, 7, 63):
        one = Privacy(2.0, where="distributed", nodes=nodes).noise_of_one(query)
        assert central <= nodes * one <= central + nodes and one >= LEAST
    # Sums of discrete Gaussians this wide are discrete Gaussians, for any number of nodes (Kairouz, Liu, Steinke 2021).
    assert 10 * 10**6 * math.exp(-(math.pi**2) * LEAST) < 1e-60
    with pytest.raises(FedCalError, match="nodes"):
        Privacy(2.0, where="distributed").noise_of_one(query)


def test_a_total_of_fewer_shares_than_promised_is_refused():
    query, privacy = hessian_query(), Privacy(2.0, where="distributed", nodes=5)
    zero = {VALUES: np.zeros(query.size)}
    privacy.at_server(query, zero, 5)
    with pytest.raises(FedCalError, match="a total of 4 nodes has less noise than nodes=5 promises"):
        privacy.at_server(query, zero, 4)


def test_a_large_client_beside_a_small_one_is_no_outlier():
    """Private replies do not say of how many samples they are: an honest server must not refuse one for its size."""
    server = Server("fed-ts", K, privacy=Privacy(4.0))
    sizes = {"large": 5000, "small": 1}
    replies = {name: Client("fed-ts", *samples(n)).reply(server.request) for name, n in sizes.items()}
    server.receive(replies)
    assert server.ledger.took_part == ["large", "small"]


def test_noise_has_the_size_that_the_program_is_told():
    query = replace(hessian_query(), budget=1.0)
    for where, clients in (("central", 4), ("local", 4), ("distributed", 4)):
        privacy = Privacy(2.0, where=where, nodes=4)
        zero = {VALUES: np.zeros(query.size)}
        totals = []
        for _ in range(60):
            parts = [privacy.at_client(query, zero)[VALUES] for _ in range(clients)]
            totals.append(privacy.at_server(query, {VALUES: np.stack(parts).sum(0)}, clients))
        told = float(totals[0]["noise"])
        assert float(np.stack([t[VALUES] for t in totals]).std()) == pytest.approx(told, rel=0.1)


# --- what a private client does ------------------------------------------------------------------------------------------


def test_the_same_request_gets_the_same_reply_and_costs_once():
    client = Client("fed-bias", *samples(), privacy=Privacy(1.0, where="local"))
    first = client.reply(request(hessian_query()))
    spent = client.spent
    assert client.reply(request(hessian_query())) is first and client.spent == spent > 0
    other = Client("fed-bias", *samples(), privacy=Privacy(1.0, where="local"))
    other.load_state_dict(client.state_dict())  # a restart does not draw again either
    assert np.array_equal(other.reply(request(hessian_query())).content[VALUES], first.content[VALUES])
    assert other.spent == spent
    client.reply(request(hessian_query(), number=2))  # another request is another release
    assert client.spent == 2 * spent


@pytest.mark.parametrize("other", [None, Privacy(1.0, where="local"), Privacy(8.0, 1e-6, where="local")])
def test_a_spent_budget_is_not_taken_for_that_of_another_privacy(other):
    """A share of ε = 8 would be reported as the same share of ε = 1."""
    mine = Privacy(8.0, where="local")
    client = Client("fed-ts", *samples(), privacy=mine)
    fresh = Client("fed-ts", *samples(), privacy=mine).state_dict()
    client.reply(request(Scales(K, 0.9)))
    state = client.state_dict()
    with pytest.raises(FedCalError, match=r"was spent under Privacy\(epsilon=8.0.*: give that one again, or begin"):
        Client("fed-ts", *samples(), privacy=other).load_state_dict(state)
    again = Client("fed-ts", *samples(), privacy=mine)
    again.load_state_dict({**state, "about": json.loads(json.dumps(state["about"]))})
    assert again.spent == client.spent > 0
    Client("fed-ts", *samples(), privacy=other).load_state_dict(fresh)  # nothing is spent


def test_a_used_up_budget_ends_all_replies_whatever_the_federation():
    client = Client("fed-bias", *samples(), privacy=Privacy(1.0, where="local", measure=0.0))
    for number in range(1, 6):
        client.reply(request(hessian_query(0.2), number=number))
    spent = client.spent
    for federation in ("federation", "another"):
        with pytest.raises(FedCalError, match="budget of ε = 1 is used up"):
            client.reply(Request(federation, 6, hessian_query(0.01)))
    assert client.spent == spent == pytest.approx(1.0)  # refusals cost nothing


@pytest.mark.parametrize("odd", [*({"budget": budget} for budget in (0.0, -1.0, 1.5, math.nan)), {"clip": 0.0}])
@pytest.mark.parametrize("own", [True, False])
def test_a_share_that_is_no_share_is_refused(odd, own):
    privacy = Privacy(1.0, where="local") if own else None
    client = Client("fed-bias", *samples(), privacy=privacy, policy=Policy())
    with pytest.raises(FedCalError, match="do not reply to this server"):
        client.reply(request(replace(hessian_query(), **odd), Privacy(1.0)))
    assert client.spent == 0


@pytest.mark.parametrize(
    "query",
    [replace(hessian_query(), budget=budget) for budget in ("x", None, True, np.ones(2))]
    + [replace(hessian_query(), k="3"), replace(hessian_query(), clip=None)]
    + [replace(hessian_query(), t=(1.0,)), replace(hessian_query(), full=1)]
    + [replace(Gains(K, 0.1, ()), maps=maps) for maps in ("bias", ("bias",), ({"bias": "x"},))],
)
def test_a_query_of_other_types_is_no_request(query):
    data = pack_request(Plan(get_method("fed-bias"), K), request(query))
    with pytest.raises(FedCalError, match="the request cannot be read"):
        unpack_request(data)


def test_requests_that_are_not_private_are_refused():
    """Exact sums, whole or by fold: those could single samples out. Private queries have nothing to choose samples by."""
    client = Client("fed-bias", *samples(), privacy=Privacy(1.0, where="local"))
    for query in (Start(), Start(folds=True), Slope(1.0)):
        with pytest.raises(FedCalError, match="private requests only"):
            client.reply(request(query), check=False)
    assert client.spent == 0


def test_a_client_keeps_to_its_own_privacy_and_not_to_the_servers():
    mine, query = Privacy(1.0, where="local", unit="client"), Scales(K, 0.5, norms=False)
    z, y = samples(5000)
    client = Client("fed-bias", z, y, privacy=mine)
    values = client.reply(request(query, Privacy(math.inf))).content[VALUES]
    assert float(values.sum()) < 200  # as one client, and noised: not 5000 samples


def test_a_client_does_not_take_central_privacy_for_its_own():
    """The server would add the noise: the client's sums would leave it as they are."""
    for make in (
        lambda: Client("fed-bias", *samples(), privacy=Privacy(1.0)),
        lambda: Policy(privacy=Privacy(1.0)),
    ):
        with pytest.raises(FedCalError, match="a client none"):
            make()


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (Privacy(math.inf, where="local"), "adds no noise"),
        (Privacy(1.0, where="distributed"), "needs nodes=…"),
    ],
)
def test_a_client_does_not_take_a_simulations_privacy_for_its_own(privacy, words):
    """It would add no noise, or refuse every request."""
    for make in (lambda: Client("fed-bias", *samples(), privacy=privacy), lambda: Policy(privacy=privacy)):
        with pytest.raises(FedCalError, match=words):
            make()


@pytest.mark.parametrize("other", [None, Privacy(1.0), Privacy(50.0, unit="client"), Privacy(50.0, 1e-6)])
def test_a_fit_does_not_go_on_under_another_privacy(other):
    """Sums with the noise of ε = 50 would be reported as those of ε = 1."""
    server = Server("fed-bias", K, privacy=Privacy(50.0))
    asked = server.request
    assert asked is not None
    server.receive({"a": Client("fed-bias", *samples()).reply(asked)})
    state = server.state_dict()
    with pytest.raises(FedCalError, match="the state is of a fit with Privacy"):
        Server("fed-bias", K, privacy=other).load_state_dict(state)
    again = Server("fed-bias", K, privacy=Privacy(50.0))
    again.load_state_dict(state)
    assert again.ledger.spent == server.ledger.spent > 0 and again.request and server.request
    assert again.request.digest == server.request.digest


def test_how_many_samples_a_client_has_is_not_told():
    """Neighbours differ in their number of samples, so that a reply does not declare it: not even that there are none."""
    privacy = Privacy(1.0, where="local")
    for n in (0, 1, 500):
        reply = Client("fed-bias", *samples(n), privacy=privacy).reply(request(Scales(K, 0.1)))
        assert reply.n == 1 and reply.content[VALUES].shape == (Scales(K, 0.1).size,)


def test_privacy_travels_with_the_request():
    server = Server("fed-bias", K, privacy=Privacy(2.0, 1e-6, "client", "distributed", 3.0, 5))
    plan, back = unpack_request(pack_request(server.plan, server.request))
    assert back.privacy == server.privacy and back.digest == server.request.digest and plan == server.plan


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Privacy(0.0), "epsilon must be above 0"),
        (lambda: Privacy(1.0, delta=1.0), "delta must be below 1"),
        (lambda: Privacy(1.0, clip=-1.0), "clip must be above 0"),
        (lambda: Privacy(0.01, delta=1e-12).mu, "give a larger ε or δ"),
        (lambda: Privacy(1.0, measure=1.0), "measure must be below 1"),
        (lambda: Privacy(1.0, unit="hospital"), "sample or client"),
        (lambda: Privacy(1.0, where="cloud"), "central or local or distributed"),
        (lambda: Privacy(1.0).check(get_method("fedcal")), "fedcal has no private form"),
        (lambda: Privacy(1.0).check(get_method("val-ts")), "val-ts has no private form"),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(FedCalError, match=words):
        make()


def test_requests_that_do_not_fit_the_samples_are_refused_and_cost_nothing():
    client = Client("fed-bias", *samples(), privacy=Privacy(1.0, where="local"))
    for query in (Scales(10**6, 0.1), replace(hessian_query(), t=np.zeros(2))):
        with pytest.raises(FedCalError, match="does not fit this client's samples"):
            client.reply(request(query))
    assert client.spent == 0


@pytest.mark.parametrize(
    "query",
    [
        Measure(1, 1.0, K, 5),  # as many logits as K classes have, and labels of one class only
        Measure(K, 1.0, 1, 0),
        replace(hessian_query(), t=np.zeros(2)),
        replace(hessian_query(), t=np.zeros((K + 1, K))),  # would fit clients of K samples
        MatrixSums(K, 0.1, 2.0, np.zeros((2, 2))),
        Gains(K, 0.1, ({"bias": np.zeros(K)},)),
        Gains(K, 0.1, ({"sun": np.zeros(K)},)),
        Gains(K, 0.1, ({"bias": np.zeros((K + 1, 1))},)),
        Gains(K, 0.1, ({},)),
        Gains(K, 0.1, ()),
    ],
)
def test_whether_a_client_refuses_tells_nothing_of_its_samples(query):
    """Refusals are free and exact: a server could ask by them whether there is a sample at all, how many, or of a class."""
    said = set()
    for n, label in ((0, 0), (1, 0), (K, 0), (9, 0), (9, K - 1)):
        client = Client("fed-bias", samples(n)[0], np.full(n, label), privacy=Privacy(1.0, where="local"))
        with pytest.raises(FedCalError) as refused:
            client.reply(request(query))
        said.add(str(refused.value))
    assert len(said) == 1


def test_a_server_cannot_choose_how_summands_are_weighed():
    """Weights near the end of float64 would overflow for some samples and not for others."""
    names = {entry.name for kind in PRIVATE_QUERIES for entry in fields(kind)}
    known = {"k", "budget", "per_client", "norms", "labels", "clip", "t", "full", "w", "family", "maps", "scale"}
    assert names <= known


def test_more_noise_than_numbers_can_hold_is_refused():
    client = Client("fed-bias", *samples(), privacy=Privacy(1.0, where="local"))
    for budget in (1e-40, 1e-300):
        with pytest.raises(FedCalError, match="more noise than numbers can hold"):
            client.reply(request(hessian_query(budget)))
