"""The same federation in the simulator and in Flower: the same model, scaler and metrics."""

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
)

from fedcal import FedCalError, FedCalWarning, Scaler
from fedcal.base.lock import locked
from fedcal.base.store import read_bytes
from fedcal.federate import task
from fedcal.federate.app.client_app import app as client_app
from fedcal.protocol import Policy
from fedcal.protocol.wire import unpack
from fedcal.transport.flower import CalibratedStrategy, calibration_mod, node, personal_scaler
from fedcal.transport.flower.records import REQUEST, record_of
from fedcal.transport.flower.samples import as_samples
from transport.flower.help import ROUNDS, config_of, distance, flower, grid_of, simulated

CASES = [
    ("heart", "fed-ts"),
    ("digits", "fed-ts"),
    ("heart", "fedcal-plus"),
    ("heart", "fedcal-plus:coverage=site"),
    ("digits", "fedcal-plus"),
    ("heart", "fedcal"),
    ("digits", "fedcal-literal"),
    ("heart", "ens"),
]


@pytest.mark.parametrize(("data", "method"), CASES)
def test_bit_equal_to_the_simulator(data, method):
    config = config_of(data, method)
    theirs = simulated(config)
    grid = grid_of(config)
    strategy, arrays = flower(config, grid)
    assert distance(theirs.model, arrays.to_torch_state_dict()) == 0
    assert distance(theirs.scaler.params, strategy.scaler.params) == 0
    metrics = strategy.metrics()["global"]
    assert metrics == {key: theirs.metrics[key] for key in metrics}
    assert strategy.measured.difference("local", "uncal")[0] == pytest.approx(
        metrics["ece"] - strategy.metrics()["uncal"]["ece"]
    )
    assert (strategy.server.ledger.rounds, strategy.report()["bytes_up"]) == (theirs.rounds, theirs.bytes_up)
    assert strategy.report()["faults"] == []
    names = {str(context.node_config["name"]): personal_scaler(context) for context in grid.contexts.values()}
    assert all(distance(personal, names[name]) == 0 for name, personal in theirs.scaler.personal.items())
    if method in ("fedcal", "fedcal-plus"):
        assert all(names.values())


def test_the_scaler_knows_its_classes(tmp_path):
    config = config_of("heart", "fed-ts")
    strategy, _ = flower(config, grid_of(config), classes=["healthy", "ill"], folder=tmp_path)
    assert strategy.scaler.classes == ("healthy", "ill") == Scaler.load(tmp_path / "scaler.safetensors").classes
    with pytest.raises(FedCalError, match="classes must be a list of 2"):
        CalibratedStrategy(FedAvg(), n_classes=2, classes=["ill"])


def test_flowers_own_averaging_gives_the_same_temperature():
    config = config_of("digits", "fed-ts")
    theirs = simulated(config)
    strategy, arrays = flower(config, grid_of(config), FedAvg(fraction_evaluate=0.0))
    assert distance(theirs.model, arrays.to_torch_state_dict()) < 1e-6
    assert distance(theirs.scaler.params, strategy.scaler.params) < 1e-6
    found = strategy.metrics()["global"]
    assert all(abs(theirs.metrics[key] - value) < 1e-6 for key, value in found.items())


@pytest.mark.parametrize(
    "inner",
    [
        FedProx(proximal_mu=0.1, fraction_evaluate=0.0),
        FedAdam(fraction_evaluate=0.0),
        FedMedian(fraction_evaluate=0.0),
        DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.1, 1.0, 4),
    ],
    ids=lambda inner: type(inner).__name__,
)
@pytest.mark.parametrize("method", ["fed-ts", "fedcal-literal"])
def test_wraps_any_strategy(inner, method):
    strategy, arrays = flower(config_of("heart", method), grid_of(config_of("heart", method)), inner)
    assert strategy.report()["faults"] == []
    assert strategy.report()["measured_by"] == ["cleveland", "hungarian", "switzerland", "va"]
    assert all(bool(np.isfinite(value).all()) for value in strategy.scaler.params.values())
    assert arrays


def test_the_model_travels_once():
    config = config_of("heart", "fed-ts")
    strategy, arrays = flower(config, grid_of(config))
    model = sum(len(array.data) for array in arrays.values())
    costs = [r["bytes"]["model_down"] for r in strategy.report()["rounds"] if r["phase"] == "calibration"]
    assert costs == [4 * model] + [0] * (len(costs) - 1)


def forgetting(node, after=0):
    """The app; that node loses its state before every message from number `after` on."""
    seen = {"n": -1}

    def app(message, context):
        if context.node_config["name"] == node:
            seen["n"] += 1
            if seen["n"] >= after:
                context.state.clear()
        return client_app(message, context)

    return app


def test_a_node_that_forgets_everything_is_told_again():
    """As if its SuperNode were started again before every message: the model comes once more, and nothing else."""
    config = config_of("heart", "fedcal-plus")
    whole, _ = flower(config, grid_of(config))
    grid = grid_of(config, forgetting("va"))
    again, _ = flower(config, grid)
    # Each round on the frozen model but the first, and the one that measures, asks va twice.
    assert grid.sent == 4 * ROUNDS + 5 * again.report()["calibration_rounds"] - 1 + 5
    assert distance(whole.scaler.params, again.scaler.params) == 0
    assert again.report()["faults"] == []


def test_lost_state_is_that_nodes_fault():
    """What a method's clients must remember cannot be sent again: the round goes on without the node that lost it."""
    config = config_of("heart", "fedcal:rounds=3,start=matched")
    strategy, _ = flower(config, grid_of(config, forgetting("va", after=ROUNDS + 1)))
    (fault,) = strategy.report()["faults"]
    assert (fault["name"], fault["phase"], fault["round"]) == ("va", "calibration", 2)
    assert "LostState" in fault["reason"] and "what this client kept from its last reply is gone" in fault["reason"]
    assert (
        strategy.report()["fitted_by"] == strategy.report()["measured_by"] == ["cleveland", "hungarian", "switzerland"]
    )


def test_a_folder_outlives_the_node(tmp_path):
    config = config_of("heart", "fed-ts")
    grid = grid_of(config)
    for context in grid.contexts.values():
        context.node_config["fedcal-state"] = str(tmp_path / "state")
    flower(config, grid)
    files = sorted((tmp_path / "state").iterdir())
    assert [path.stem for path in files] == ["cleveland", "hungarian", "switzerland", "va"]
    assert [path.stat().st_mode & 0o777 for path in (*files, files[0].parent)] == [0o600] * 4 + [0o700]


def test_a_node_goes_on_from_its_folder(tmp_path):
    """Its context is lost before every message: what it must remember is in the folder."""
    config = config_of("heart", "fedcal:rounds=3,start=matched")
    whole, _ = flower(config, grid_of(config))
    grid = grid_of(config, forgetting("va"))
    for context in grid.contexts.values():
        context.node_config["fedcal-state"] = str(tmp_path)
    again, _ = flower(config, grid)
    assert again.report()["faults"] == [] and again.metrics() == whole.metrics()
    assert distance(whole.scaler.params, again.scaler.params) == 0
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()  # in that state a node joins no other federation
    (tmp_path / "va.safetensors").write_bytes(b"{}")
    for context in grid.contexts.values():
        context.state.clear()
    broken, _ = flower(config, grid)
    assert {fault["node"] for fault in broken.report()["faults"]} == {"4"}
    assert all("delete it" in fault["reason"] for fault in broken.report()["faults"])


def test_two_runs_at_once_share_what_a_node_keeps(tmp_path, monkeypatch):
    """Each run has a context of its own. Were it trusted, a server could begin two runs at once and spend a budget twice."""
    config = config_of("heart", "fed-ts")
    first, second = grid_of(config), grid_of(config)
    for grid in (first, second):
        for context in grid.contexts.values():
            context.node_config["fedcal-state"] = str(tmp_path)
    flower(config, second)  # now its contexts remember that run
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    flower(config, first)
    for context in second.contexts.values():
        found = node.Node(context, {REQUEST: record_of(b"", phase="meet")}, task.logits, Policy(), False)
        assert found.kept_of == unpack(read_bytes(node.state_path(context)))[1]  # what the other run wrote
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()
    for context in first.contexts.values():
        context.state.clear()
    monkeypatch.setattr(node, "PATIENCE", 0.2)
    with locked(tmp_path / "va.busy", "a message of another run"):
        strategy, _ = flower(config, first)
    # It trains all the same: only what it keeps may not be written twice at once.
    assert {(fault["node"], fault["phase"]) for fault in strategy.report()["faults"]} == {("4", "calibration")}
    assert all("in use" in fault["reason"] for fault in strategy.report()["faults"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "val-ts"}, "sends every logit"),
        ({"method": "fed-tss"}, "did you mean"),
        ({"n_classes": 1}, "n_classes must be"),
        ({"robust": "median"}, "no median"),
        ({"method": "fedcal", "robust": "mode"}, "median or trimmed"),
        ({"accuracy": "raise"}, "accuracy"),
    ],
)
def test_bad_settings(options, words):
    with pytest.raises(FedCalError, match=words):
        CalibratedStrategy(FedAvg(), **{"method": "fedcal-plus", "n_classes": 10, **options})


@pytest.mark.parametrize("probs", [True, None])
def test_the_scaler_takes_what_nodes_give(probs):
    def scores(arrays, context, split):
        logits, labels = task.logits(arrays, context, split)
        return (logits.softmax(1) if probs else logits), labels

    app = ClientApp(mods=[calibration_mod(scores, probs=probs)])
    app.train()(task.train)
    config = config_of("heart", "fed-ts")
    strategy, _ = flower(config, grid_of(config, app))
    assert strategy.scaler.probs is probs


def test_nodes_may_give_probabilities_and_words():
    """What `calibration_mod(logits, probs=…, classes=…)` makes of them is what the logits and columns would have been."""
    logits = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    columns, words = torch.arange(40) % 3, ["owl", "cat", "dog"]
    given = as_samples(lambda *_: (logits.exp(), [words[k] for k in columns]), probs=True, classes=words)
    found, labels = given(ArrayRecord(), None, "calibration")  # type: ignore[arg-type]
    assert np.allclose(found, logits) and np.array_equal(labels, columns)
    with pytest.raises(FedCalError, match="labels are strings, such as 'owl'"):
        as_samples(lambda *_: (logits, [words[k] for k in columns]), None, None)(ArrayRecord(), None, "test")  # type: ignore[arg-type]
    with pytest.warns(FedCalWarning, match="the logits look like probabilities"):
        as_samples(lambda *_: (logits.exp(), columns), None, None)(ArrayRecord(), None, "test")  # type: ignore[arg-type]
    with pytest.raises(FedCalError, match="probs must be True or False"):
        calibration_mod(lambda *_: (logits, columns), probs="yes")  # type: ignore[arg-type]
