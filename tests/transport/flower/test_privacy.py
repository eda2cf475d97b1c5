"""Differential privacy and secure aggregation of additive methods."""

import numpy as np
import pytest
import torch

from transport.flower.help import config_of, distance, flower, grid_of

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")
pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedcal[privacy]'")

from flwr.clientapp import ClientApp

import fedcal
from fedcal import FedCalError
from fedcal.federate import task
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


def nodes_with(privacy):
    app = ClientApp(mods=[calibration_mod(task.logits, privacy=privacy)])
    app.train()(task.train)
    return app


@pytest.mark.parametrize("where", ["central", "local", "distributed"])
def test_a_private_federation_is_fitted_and_measured_within_its_budget(where):
    config = config_of("digits", "fedcal-plus")
    privacy = Privacy(30.0, where=where, nodes=3)
    own = None if where == "central" else privacy
    strategy, _ = flower(config, grid_of(config, nodes_with(own)), privacy=privacy)
    report = strategy.report()
    assert report["faults"] == [] and len(report["fitted_by"]) == 3 and 8 <= report["calibration_rounds"] <= 9
    assert report["privacy"]["epsilon"] == pytest.approx(30.0, rel=1e-3) and report["privacy"]["where"] == where
    assert report["measured_by"] == ["all nodes"]  # no single node's metrics are told
    assert report["metrics"]["global"]["nll"] < report["metrics"]["uncal"]["nll"]
    assert set(report["node_privacy"]) == (set() if where == "central" else set(report["fitted_by"]))


def test_a_node_keeps_its_own_budget():
    """A node whose budget is used up replies no more, whatever the server and the federation."""
    config, privacy = config_of("digits", "fed-ts"), Privacy(8.0, where="local")
    grid = grid_of(config, nodes_with(privacy))
    strategy, _ = flower(config, grid, privacy=privacy)
    assert strategy.report()["faults"] == []
    with pytest.raises(FedCalError, match="budget of ε = 8 is used up"):
        flower(config, grid, privacy=privacy)


def test_a_private_node_refuses_a_server_without_privacy():
    config = config_of("digits", "fed-ts")
    with pytest.raises(FedCalError, match="private requests only"):
        flower(config, grid_of(config, nodes_with(Privacy(8.0, where="local"))))


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
