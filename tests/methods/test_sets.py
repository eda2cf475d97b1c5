"""Conformal sets of a scaler: what they promise, for every method that adds sums, and what is refused."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import betabinom, binom

import fedcal
from fedcal import FedCalError, FedCalWarning
from fedcal.base.conformal import LEVELS
from fedcal.base.folds import FEWEST, held_out
from fedcal.methods import METHODS, get_method, spec_of
from fedcal.methods.sets import SetScores, SiteSpread, WithSets
from fedcal.protocol import Client, Policy, Request, Scaler, Server

ADDITIVE = [name for name, method in METHODS.items() if method.additive]


def site(n, k, seed, prior=None, scale=2.0):
    """Logits of an over-confident model, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.choice(k, size=n, p=prior)
    return scale * (rng.normal(size=(n, k)) + 1.5 * np.eye(k)[y]), y


def covered(sets, y):
    return sets[np.arange(len(y)), y]


@pytest.fixture(scope="module")
def clients():
    return {f"site{i}": site(300, 4, i, np.random.default_rng(i).dirichlet(np.ones(4))) for i in range(6)}


@pytest.mark.parametrize(
    "name", [name for name in ADDITIVE if name not in ("fed-op", "fed-head")] + ["fed-op:rounds=5"]
)
def test_every_additive_method_has_sets(name, clients, tmp_path):
    scaler = fedcal.calibrate(clients, name, alpha=0.1)
    x, y = site(2000, 4, 99)
    sets = scaler.predict_set(x)
    assert sets.dtype == bool and sets.shape == (2000, 4) and sets.any(1).all()
    assert (sets.argmax(1) >= 0).all() and sets[np.arange(2000), scaler.predict_proba(x).argmax(1)].all()
    assert 0.86 < covered(sets, y).mean() < 0.96
    scaler.save(tmp_path / "scaler.safetensors")
    again = Scaler.load(tmp_path / "scaler.safetensors")
    assert (again.predict_set(x, 0.1) == sets).all() and again.method == scaler.method
    assert get_method(spec_of(scaler.method)) == scaler.method


def test_the_held_out_samples_are_not_fitted_on(clients):
    """The scaler is the one that four fifths give; personal parts too."""
    kept = {}
    for name, (x, y) in clients.items():
        held = held_out(x, y)
        assert held.sum() == 60
        kept[name] = x[~held], y[~held]
    whole, part = fedcal.calibrate(clients, alpha=0.1), fedcal.calibrate(kept)
    for key, value in part.params.items():
        assert np.array_equal(whole.params[key], value)
    for name in clients:
        assert np.array_equal(whole.personal[name]["shift"], part.personal[name]["shift"])
    scores, personal = [], []
    for name, (x, y) in clients.items():
        held = held_out(x, y)
        scores += list(1 - covered(part.predict_proba(x[held]), y[held]))
        personal += list(1 - covered(part.predict_proba(x[held], name), y[held]))
    level = int(np.flatnonzero(np.isclose(LEVELS, 0.1))[0])
    for key, found in (("set_thresholds", scores), ("set_personal", personal)):
        exact = np.sort(found)[math.ceil(361 * 0.9) - 1]
        assert exact <= float(whole.params[key][level, 0]) < exact + 0.01


@pytest.mark.parametrize("coverage", ["marginal", "class", "site"])
def test_the_sums_are_all_that_counts(coverage, clients):
    """Files, streams and many clients together: the conversation is the same; here its parts are."""
    whole = fedcal.calibrate(clients, "fed-bias", coverage=coverage)
    reversed_order = fedcal.calibrate(dict(reversed(clients.items())), "fed-bias", coverage=coverage)
    assert np.array_equal(whole.params["set_counts"], reversed_order.params["set_counts"])
    x, _ = site(500, 4, 7)
    assert (whole.predict_set(x, 0.1) == reversed_order.predict_set(x, 0.1)).all()
    if coverage != "site":  # which clients there are does not matter where the held-out samples are the same
        streamed = fedcal.calibrate(clients, "fed-bias", stream=True, coverage=coverage)
        assert (whole.predict_set(x, 0.1) == streamed.predict_set(x, 0.1)).all()


def test_many_small_clients_reply_as_one():
    """From 256 clients on, small ones reply together: the same histograms as one by one."""
    small = {str(i): site(12, 3, i) for i in range(300)}
    together = fedcal.calibrate(small, "fedcal-plus", alpha=0.1)
    assert float(together.params["set_counts"][0]) == 300 * FEWEST
    alone = fedcal.calibrate(small, "fedcal-plus", alpha=0.1, stream=True)
    x, _ = site(500, 3, 1000)
    assert (together.predict_set(x) != alone.predict_set(x)).mean() < 1e-3  # scalers differ by rounding


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
@pytest.mark.parametrize("k", [2, 1000])
def test_two_classes_and_a_thousand(k, score):
    clients = [site(400, k, seed) for seed in range(3)]
    scaler = fedcal.calibrate(clients, "fed-ts", alpha=0.1, score=score)
    x, y = site(3000, k, 9)
    found = covered(scaler.predict_set(x), y).mean()
    low = betabinom.ppf(0.0005, 3000, 217, 24) / 3000  # 240 held-out samples
    assert found >= low


def test_ties_and_certain_models():
    """All scores equal: the threshold is theirs, and sets hold all classes that tie with it."""
    x, y = np.zeros((100, 3)), np.arange(100) % 3
    scaler = fedcal.calibrate([(x, y)], "fed-ts", alpha=0.1)
    assert scaler.predict_set(np.zeros((5, 3))).all()
    sure = 50 * np.eye(3)[y]
    with pytest.warns(FedCalWarning, match="the lowest temperature"):
        scaler = fedcal.calibrate([(sure, y)], "fed-ts", alpha=0.1)
    assert scaler.predict_set(sure).sum() == 100


def test_a_new_client_with_and_without_labels(clients):
    for coverage in ("marginal", "class", "site"):
        scaler = fedcal.calibrate(clients, coverage=coverage)
        x, y = site(400, 4, 50, [0.7, 0.1, 0.1, 0.1])
        with pytest.raises(FedCalError, match="unknown client 'new'"):
            scaler.predict_set(x, 0.1, client="new")
        scaler.welcome("new", x[:200], y[:200])
        scaler.welcome("blind", x[:200])
        for name in ("new", "blind"):
            assert covered(scaler.predict_set(x[200:], 0.1, client=name), y[200:]).mean() > 0.8


def test_a_class_that_nobody_has_is_in_every_set_of_class_coverage():
    clients = [site(300, 4, seed, [0.5, 0.3, 0.2, 0.0]) for seed in range(3)]
    scaler = fedcal.calibrate(clients, "fed-ts", coverage="class")
    with pytest.warns(FedCalWarning, match=r"1 class with fewer than 9 held-out samples \(columns 3\): in every set"):
        sets = scaler.predict_set(clients[0][0])
    assert sets[:, 3].all() and not sets[:, 2].all()
    assert not fedcal.calibrate(clients, "fed-ts", alpha=0.1).predict_set(clients[0][0])[:, 3].all()


def test_too_few_samples_for_alpha_is_every_class_and_one_line(clients):
    scaler = fedcal.calibrate([site(30, 3, 0)], "fed-ts", alpha=0.1)  # 6 are held out
    x, _ = site(20, 3, 1)
    with pytest.warns(FedCalWarning) as said:
        assert scaler.predict_set(x).all()
    assert [str(one.message) for one in said] == [
        "6 held-out samples, where alpha=0.1 needs 9: every class is in every set"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not scaler.predict_set(x, 0.3).all()
    nothing = fedcal.calibrate([site(9, 3, 0)], "fed-ts", alpha=0.1)
    with pytest.warns(FedCalWarning, match="0 held-out samples, where alpha=0.5 needs 1"):
        assert nothing.predict_set(x, 0.5).all()


def test_levels_are_rounded_to_the_safe_side(clients):
    scaler = fedcal.calibrate(clients, "fed-ts", alpha=0.1)
    x, _ = site(500, 4, 1)
    sizes = [scaler.predict_set(x, alpha).sum() for alpha in (0.02, 0.1, 0.1024, 0.105, 0.3, 0.5)]
    assert sizes == sorted(sizes, reverse=True) and sizes[1] == sizes[2]


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 0.0001, 0.6, float("nan"), "0.1", True])
def test_alpha_out_of_range_is_one_line(alpha, clients):
    with pytest.raises(FedCalError, match="alpha") as caught:
        fedcal.calibrate(clients, alpha=alpha)
    assert "\n" not in str(caught.value)
    scaler = fedcal.calibrate(clients, "fed-ts", alpha=0.1)
    with pytest.raises(FedCalError, match="alpha must lie"):
        scaler.predict_set(clients["site0"][0], alpha)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("avg-t", {"alpha": 0.1}, "'alpha' is of conformal sets, which need a method that adds sums, as fedcal-plus"),
        (
            "fed-ts",
            {"alpha": 0.1, "fit_on": "train"},
            "fed-ts: .* samples that the model was not trained on: leave out fit_on",
        ),
        ("fed-ts", {"coverage": "all"}, "unknown coverage 'all': choose from marginal, class, site"),
        ("fed-ts", {"score": "softmax"}, "unknown score 'softmax': choose from lac, aps, raps"),
        ("fed-ts", {"coverage": "site", "confidence": 1.0}, "confidence must be below 1"),
        ("fed-ts", {"positive": 1, "coverage": "class"}, "positive bounds one class's misses"),
        ("fed-ts", {"positive": 4}, "positive is column 4, and there are 4 classes"),
        ("fed-ts", {"alpha": 0.1, "privacy": fedcal.Privacy(epsilon=1)}, "conformal sets have no private form"),
    ],
)
def test_bad_options_are_one_line(method, options, words, clients):
    with pytest.raises(FedCalError, match=words) as caught:
        fedcal.calibrate(clients, method, **options)
    assert "\n" not in str(caught.value)


def test_a_scaler_without_sets_says_so(clients):
    with pytest.raises(FedCalError, match=r"made without sets: calibrate with alpha=0\.1"):
        fedcal.calibrate(clients, "fed-ts").predict_set(clients["site0"][0])


def test_the_false_negative_rate_of_a_class():
    """Over 40 federations, sets miss the positive class of at most α of its samples."""
    missed = total = 0
    for seed in range(40):
        clients = [site(200, 3, 1000 * seed + i, [0.6, 0.3, 0.1], scale=0.7) for i in range(3)]
        scaler = fedcal.calibrate(clients, "fed-ts", alpha=0.2, positive=2)
        x, y = site(1000, 3, 1000 * seed + 9, [0.6, 0.3, 0.1], scale=0.7)
        sets = scaler.predict_set(x)
        missed += int((~sets[y == 2, 2]).sum())
        total += int((y == 2).sum())
    assert 0.1 < missed / total <= 0.2 + 0.03


@pytest.mark.parametrize("n", [3, 10, 100])
def test_coverage_is_what_is_promised_from_few_samples_on(n):
    """End to end, with n held-out samples: the mean over federations is at least 1 − α, as the rank says (studies: more)."""
    alpha, draws, fresh = 0.3, 150, 40
    hits = held = 0
    n_samples = max(FEWEST * 2, 5 * n)
    for seed in range(draws):
        x, y = site(n_samples + fresh, 3, seed, scale=0.5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedCalWarning)
            scaler = fedcal.calibrate([(x[:n_samples], y[:n_samples])], "fed-ts", alpha=alpha)
            hits += int(covered(scaler.predict_set(x[n_samples:]), y[n_samples:]).sum())
        held = int(scaler.params["set_counts"][0])
    rank = math.ceil((held + 1) * (1 - alpha) - 1e-9)
    spread = float(betabinom.std(fresh, rank, held + 1 - rank)) / math.sqrt(draws) / fresh
    assert hits / (draws * fresh) >= 1 - alpha - 3.5 * spread


def test_sites_are_covered_where_a_pooled_threshold_misses():
    """One site is harder than the others: its own threshold covers it, the federation's does not."""
    clients = {f"site{i}": site(600, 4, i) for i in range(9)}
    clients["hard"] = site(600, 4, 77, scale=2.0)
    x, y = clients["hard"]
    rng = np.random.default_rng(0)
    clients["hard"] = x, np.where(rng.random(600) < 0.25, rng.integers(4, size=600), y)
    fresh, y = site(2000, 4, 78)
    y = np.where(rng.random(2000) < 0.25, rng.integers(4, size=2000), y)
    found = {}
    for coverage in ("marginal", "site"):
        scaler = fedcal.calibrate(clients, coverage=coverage)
        found[coverage] = covered(scaler.predict_set(fresh, 0.1, client="hard"), y).mean()
        easy, labels = site(2000, 4, 79)
        sets = scaler.predict_set(easy, 0.1, client="site0")
        assert covered(sets, labels).mean() > 0.88
    assert found["marginal"] < 0.87 and found["site"] > 0.9 - 3 * float(binom.std(2000, 0.9)) / 2000


def test_a_client_tells_nothing_of_too_few_held_out_samples():
    server = Server("fed-ts:alpha=0.1", 3)
    method = server.plan.method
    assert isinstance(method, WithSets)
    clients = {
        name: Client(method, *site(n, 3, n), policy=Policy(min_count=20)) for name, n in (("small", 60), ("large", 200))
    }
    replies = {}
    while (request := server.request) is not None:
        replies = {name: client.reply(request) for name, client in clients.items()}
        server.receive(replies)
    assert float(replies["small"].content["set_thresholds"].sum()) == 0  # 12 are held out
    assert float(server.scaler.params["set_counts"][0]) == 40


def by_policy(spec, k, samples, policy):
    """The scaler of clients that all have a policy."""
    server = Server(spec, k)
    clients = {str(i): Client(server.plan.method, *one, policy=policy) for i, one in enumerate(samples)}
    while (request := server.request) is not None:
        server.receive({name: client.reply(request) for name, client in clients.items()})
    return server.scaler


def test_rare_classes_of_clients_with_a_policy_have_a_threshold_in_common():
    """Twenty sites hold out 20 samples each: two classes are common, six are rare at every site and shown by none."""
    prior = [0.35, 0.35, *[0.05] * 6]
    sites = [site(100, 8, seed, prior, scale=0.7) for seed in range(20)]
    scaler = by_policy("fed-ts:alpha=0.1,coverage=class", 8, sites, Policy())
    counts = scaler.params["set_counts"]
    assert len(counts) == 9 and counts.sum() > 360 and (counts[:2] > 60).all() and (counts[2:8] < 9).all()
    assert counts[8] > 60
    x, y = site(20_000, 8, 99, prior, scale=0.7)
    with pytest.warns(
        FedCalWarning, match=r"^6 classes with fewer than 9 .*\(columns 2, 3, 4, 5, 6, …\): with a thresh"
    ):
        sets = scaler.predict_set(x)
    rare = y >= 2
    for chosen, n in ((y == 0, counts[0]), (y == 1, counts[1]), (rare, counts[8])):
        rank = math.ceil((n + 1) * 0.9)
        low, high = (betabinom.ppf(q, chosen.sum(), rank, n + 1 - rank) / chosen.sum() for q in (0.001, 0.999))
        assert low <= covered(sets, y)[chosen].mean() <= high + 0.01  # bins, and the class's own few samples
    assert sets.mean() < 0.9
    curve = scaler.params["set_thresholds"]
    assert (np.diff(curve, axis=0) <= 0).all() and (curve[:, 2:].std(1) < 0.01).all()


def test_a_class_in_every_set_and_one_that_shares_a_threshold_are_said_apart():
    """At a level that even all rare samples are too few for, every rare class is in every set."""
    prior = [0.45, 0.45, *[0.025] * 4]
    scaler = by_policy(
        "fed-ts:coverage=class", 6, [site(150, 6, seed, prior) for seed in range(3)], Policy(min_count=3)
    )
    counts = scaler.params["set_counts"]
    assert counts[2:].sum() < 99 and counts[6] > 4
    x, _ = site(50, 6, 7)
    with pytest.warns(FedCalWarning, match="in every set"):
        assert scaler.predict_set(x, 0.01)[:, 2:].all()
    with pytest.warns(FedCalWarning, match="^4 classes .*: with a threshold in common$"):
        scaler.predict_set(x, 0.2)


def test_more_than_ten_thousand_held_out_samples():
    """A count of samples is no parameter that a policy bounds."""
    scaler = by_policy("fed-ts:coverage=site", 3, [site(26_000, 3, seed) for seed in range(2)], Policy())
    assert scaler.params["set_counts"] == [10_400]
    params = {name: value for name, value in scaler.params.items() if name != "set_spread"}
    for odd in (-1.0, 1e30):
        client = Client(scaler.method, *site(100, 3, 0), policy=Policy())
        with pytest.raises(FedCalError, match="numbers of samples"):
            client.reply(Request("f", 1, SiteSpread(params | {"set_counts": np.array([odd])})))


DAMAGES = {
    "set_thresholds": [
        lambda t: t[:50],
        lambda t: t[::-1],
        lambda t: t + 1,
        lambda t: -t,
        lambda t: t.astype(np.float32),
    ],
    "set_counts": [lambda t: t + 0.5, lambda t: -t - 1, lambda t: np.tile(t, 2)],
    "set_spread": [lambda t: 2 * t, lambda t: t[:3], lambda t: t - 0.5],
}


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, some in DAMAGES.items() for i in range(len(some))])
def test_a_file_from_a_stranger_is_checked(name, number, clients, tmp_path):
    scaler = fedcal.calibrate(clients, "fed-ts", coverage="site")
    path = tmp_path / "scaler.safetensors"
    scaler.params[name] = DAMAGES[name][number](scaler.params[name])
    scaler.save(path)
    with pytest.raises(FedCalError, match=f"is damaged .*{name}"):
        Scaler.load(path)


def test_thresholds_without_a_method_of_sets_and_the_other_way_round(clients, tmp_path):
    path = tmp_path / "scaler.safetensors"
    scaler = fedcal.calibrate(clients, "fed-ts", alpha=0.1)
    scaler.params.pop("set_counts")
    scaler.save(path)
    with pytest.raises(FedCalError, match="'set_counts' is missing"):
        Scaler.load(path)
    scaler = fedcal.calibrate(clients, "fed-ts", alpha=0.1)
    assert isinstance(scaler.method, WithSets)
    scaler.method = scaler.method.inner
    scaler.save(path)
    with pytest.raises(FedCalError, match="fitted without sets"):
        Scaler.load(path)
    personal = fedcal.calibrate(clients, "fed-ts", coverage="site")
    personal.personal["site0"]["set_thresholds"] *= -1
    personal.save(path)
    with pytest.raises(FedCalError, match="client site0: 'set_thresholds' holds no thresholds"):
        Scaler.load(path)


def test_the_estimator_and_the_module_give_the_scalers_sets(clients):
    estimator = fedcal.FederatedCalibrator("fed-bias", options={"alpha": 0.1, "coverage": "site"}).fit(clients)
    x, _ = site(50, 4, 5)
    for name in (None, "site1"):
        expected = estimator.scaler_.predict_set(x, 0.2, name)
        assert (estimator.predict_set(x, 0.2, name) == expected).all()
        model = fedcal.CalibratedModel(torch.nn.Identity(), estimator.scaler_, name)
        assert (model.predict_set(torch.from_numpy(x), 0.2).numpy() == expected).all()
    binary = fedcal.FederatedCalibrator("fed-ts", options={"alpha": 0.1}).fit(x[:, 0] - x[:, 1], x[:, 0] > 0)
    with pytest.warns(FedCalWarning, match="needs 19"):
        assert binary.predict_set(x[:, 0], 0.05).shape == (50, 2)
    with pytest.raises(FedCalError, match="made without sets"):
        fedcal.CalibratedModel(torch.nn.Identity(), fedcal.calibrate(clients, "fed-ts")).predict_set(torch.zeros(1, 4))


def odd_scalers(params):
    """Requests that no fit makes: nothing to apply, another method's, a label distribution that is none, no thresholds."""
    yield {}
    yield {"w1": torch.zeros(3)}
    yield params | {"prior": -params["prior"]}
    yield params | {"alpha": -params["alpha"]}
    yield params | {"set_thresholds": params["set_thresholds"] - 9}
    yield {name: value for name, value in params.items() if name != "set_counts"}


def test_a_client_refuses_scores_under_what_is_no_scaler(clients):
    """A server is a stranger: one line, no traceback, and nothing is told."""
    scaler = fedcal.calibrate(clients, coverage="site")
    params = {name: value for name, value in scaler.params.items() if name != "set_spread"}
    for odd in odd_scalers(params):
        client = Client(scaler.method, *clients["site0"], policy=Policy())
        with pytest.raises(FedCalError, match="do not reply to this server"):
            client.reply(Request("f", 1, SiteSpread(odd)))
        assert client.talk.replies == 0
    for empty in ({}, {"x": np.zeros(3)}):  # without a policy too
        with pytest.raises(FedCalError, match="check the server"):
            Client(scaler.method, *clients["site0"]).reply(Request("f", 1, SetScores(empty)))
    asked = Client(scaler.method, *clients["site0"], policy=Policy(max_restarts=0))
    asked.reply(Request("f", 1, SiteSpread(params)))
    with pytest.raises(FedCalError, match="more often than it needs"):  # each question once: no two differ by a sample
        asked.reply(Request("f", 2, SiteSpread(params | {"set_counts": params["set_counts"] + 1})))
