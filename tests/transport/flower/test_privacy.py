"""Differential privacy and secure aggregation of additive methods."""

import math

import numpy as np
import pytest
import torch

from transport.flower.help import config_of, distance, flower, grid_of

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")
pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedcal[flower]'")

from flwr.clientapp import ClientApp

import fedcal
from fedcal import FedCalError
from fedcal.exact.prepared import ALL, Prepared
from fedcal.exact.queries import LinearSums, Points
from fedcal.federate import task
from fedcal.methods import get_method
from fedcal.protocol.privacy import clipped
from fedcal.transport.flower import LocalGrid, Privacy, calibration_mod
from fedcal.transport.flower.secagg import secure_client, secure_fit

K = 10


def clients(sizes=(60, 80, 120, 200, 50, 90)):
    rng = np.random.default_rng(0)
    found = []
    for n in sizes:
        y = rng.choice(K, size=n, p=rng.dirichlet(np.full(K, 0.5)))
        z = 3 * (rng.normal(size=(n, K)) + 1.5 * np.eye(K)[y])
        found.append((torch.from_numpy(z), torch.from_numpy(y)))
    return found


@pytest.mark.parametrize("epsilon", [0.5, 4.0])
def test_noise_is_the_accountants(epsilon):
    """The budget is used up by its rounds, not exceeded; the Gaussian mechanism's exact (ε, δ) curve agrees."""
    privacy = Privacy(epsilon, delta=1e-5, rounds=10)
    assert privacy.spent(10) == pytest.approx(epsilon, rel=1e-3)
    assert privacy.spent(3) < privacy.spent(10)
    mu = math.sqrt(10) / privacy.noise  # ten Gaussian releases are one of that µ (Dong, Roth, Su 2022)

    def phi(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))

    delta = phi(-epsilon / mu + mu / 2) - math.exp(epsilon) * phi(-epsilon / mu - mu / 2)
    assert 0 < delta < 1e-5  # RDP is a bound: the true δ is below


def test_one_sample_moves_a_sum_by_the_clip_at_most():
    (z, y), method, policy = clients([40])[0], get_method("fed-bias"), Privacy(math.inf, clip=0.7)
    query = LinearSums((Points("bias", ALL, "full", torch.zeros(1, K + 1, dtype=torch.float64)),))

    def reply(z, y):
        samples = Prepared(lambda: (z, y))
        return policy.at_client(method, query, samples, {}, method.reply(query, samples, {}))

    whole = torch.cat([v.flatten() for v in reply(z, y).values()])
    for i in range(len(y)):
        keep = torch.arange(len(y)) != i
        less = torch.cat([v.flatten() for v in reply(z[keep], y[keep]).values()])
        assert float((whole - less).norm()) <= 0.7 + 1e-9
    assert distance(clipped({"a": torch.tensor([3.0, 4.0])}, 1.0), {"a": torch.tensor([0.6, 0.8])}) < 1e-6
    assert clipped({"a": torch.tensor([0.3])}, 1.0) == {"a": torch.tensor([0.3])}


def test_noise_has_its_size_and_is_not_the_runs_seed():
    privacy = Privacy(1.0, clip=2.0, rounds=5)
    a, b = (privacy.noised({"a": torch.zeros(20_000, dtype=torch.float64)})["a"] for _ in range(2))
    assert float(a.std()) == pytest.approx(privacy.noise * 2.0, rel=0.05)
    assert not torch.equal(a, b)


@pytest.mark.parametrize("unit", ["sample", "client"])
def test_central_and_local_without_noise_are_the_clipped_fit(unit):
    """With ε = ∞ and a clip that nothing reaches, both are the exact fit."""
    config = config_of("heart", "fed-ts")
    exact, _ = flower(config, grid_of(config))
    none = Privacy(math.inf, clip=1e9, rounds=100, unit=unit)
    central, _ = flower(config, grid_of(config), privacy=none)
    app = ClientApp(mods=[calibration_mod(task.logits, privacy=none)])
    app.train()(task.train)
    local, _ = flower(config, grid_of(config, app))
    for one in (central, local):
        assert distance(exact.scaler.params, one.scaler.params) < 1e-9


def test_central_privacy_is_reported_and_its_rounds_are_kept():
    config = config_of("digits", "fed-ts")
    strategy, _ = flower(config, grid_of(config), privacy=Privacy(8.0, clip=5.0, rounds=6))
    report = strategy.report()
    assert report["calibration_rounds"] == 6 == report["privacy"]["releases"]
    assert report["privacy"]["epsilon"] == pytest.approx(8.0, rel=1e-3)
    assert 0.05 <= float(strategy.scaler.params["temperature"]) <= 20


def test_noised_sums_are_not_taken_for_lies():
    """Local noise makes counts fractions: no node is refused for that."""
    config = config_of("heart", "fed-bias")
    app = ClientApp(mods=[calibration_mod(task.logits, privacy=Privacy(50.0, clip=5.0, rounds=8))])
    app.train()(task.train)
    strategy, _ = flower(config, grid_of(config, app))
    assert strategy.report()["faults"] == [] and len(strategy.report()["fitted_by"]) == 4


def test_a_node_keeps_its_own_budget():
    """The fit ends with the budget; a node asked once more refuses, and it joins no other federation in that state."""
    config = config_of("digits", "fed-ts")
    app = ClientApp(mods=[calibration_mod(task.logits, privacy=Privacy(8.0, clip=5.0, rounds=4))])
    app.train()(task.train)
    grid = grid_of(config, app)
    strategy, _ = flower(config, grid)
    report = strategy.report()
    assert report["calibration_rounds"] == 4 and report["faults"] == []
    assert {told["releases"] for told in report["local_privacy"].values()} == {4}
    assert all(told["epsilon"] == pytest.approx(8.0, rel=1e-3) for told in report["local_privacy"].values())
    with pytest.raises(FedCalError, match="this site has joined federation"):
        flower(config, grid)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Privacy(0.0), "epsilon must be above 0"),
        (lambda: Privacy(1.0, delta=1.0), "delta must be below 1"),
        (lambda: Privacy(1.0, unit="hospital"), "sample or client"),
        (lambda: Privacy(1.0).check(get_method("fedcal")), "additive"),
        (lambda: Privacy(1.0).check(get_method("fedcal-plus")), "unit='client'"),
    ],
)
def test_bad_settings(make, words):
    with pytest.raises(FedCalError, match=words):
        make()


@pytest.mark.parametrize("method", ["fed-bias", "fed-ts"])
def test_secure_aggregation_is_the_exact_fit(method):
    """Six nodes; the server's strategy sees means only, and these are off by rounding within the bound."""
    data = clients()
    grid = LocalGrid(
        secure_client(lambda c: data[int(c.node_config["partition-id"])]), [{"partition-id": i} for i in range(6)]
    )
    found, about = secure_fit(grid, method, K)
    exact = fedcal.calibrate(data, method)
    assert distance(exact.params, found.params) < 1e-3
    assert about["nodes"] == 6 and about["error_bound"] < 0.01
    assert grid.sent == 4 * 6 * about["protocol_rounds"]


def test_secure_aggregation_of_fedcal_plus():
    """Its requests carry all that a reply needs, so that nodes which keep nothing can reply."""
    data = clients([60, 80, 120])
    grid = LocalGrid(
        secure_client(lambda c: data[int(c.node_config["partition-id"])]), [{"partition-id": i} for i in range(3)]
    )
    found, _ = secure_fit(grid, "fedcal-plus", K)
    exact = fedcal.calibrate(data, "fedcal-plus")
    assert list(found.params) == list(exact.params)
    logits = torch.cat([z for z, _ in data])
    assert float((found.predict_proba(logits) - exact.predict_proba(logits)).abs().max()) < 1e-4


def test_secure_aggregation_shows_no_nodes_own_sums():
    """Nothing that leaves a node is near its reply: masked vectors look uniform."""
    data, seen = clients(), []
    app = secure_client(lambda c: data[int(c.node_config["partition-id"])])

    def listening(message, context):
        reply = app(message, context)
        seen.extend(
            np.load(__import__("io").BytesIO(raw), allow_pickle=False)
            for record in reply.content.config_records.values()
            for raw in record.get("masked_params", [])
        )
        assert not any(len(array.data) for record in reply.content.array_records.values() for array in record.values())
        return reply

    secure_fit(LocalGrid(listening, [{"partition-id": i} for i in range(6)]), "fed-ts", K)
    values = np.concatenate([np.atleast_1d(v).astype(float).ravel() for v in seen]) / 2**32
    assert len(values) > 100 and abs(values.mean() - 0.5) < 0.1 and values.std() == pytest.approx(12**-0.5, rel=0.2)


@pytest.mark.parametrize(
    ("method", "nodes", "words"),
    [
        ("fedcal", 4, "does not only add"),
        ("fed-ts", 2, "3 to 64"),
    ],
)
def test_what_cannot_be_aggregated_securely(method, nodes, words):
    grid = LocalGrid(secure_client(lambda c: clients()[0]), [{"partition-id": i} for i in range(nodes)])
    with pytest.raises(FedCalError, match=words):
        secure_fit(grid, method, K)
