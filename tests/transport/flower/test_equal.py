"""The same federation in the simulator and in Flower: the same model, scaler and metrics."""

import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedProx,
)

from fedcal import FedCalError
from fedcal.transport.flower import CalibratedStrategy, calibration_mod, own_scaler
from fedcal.transport.flower.app.client_app import app as client_app
from fedcal.transport.flower.client import as_samples
from flower_help import config_of, distance, flower, grid_of, simulated

CASES = [
    ("heart", "fed-ts"),
    ("digits", "fed-ts"),
    ("heart", "fedcal-plus"),
    ("digits", "fedcal-plus"),
    ("heart", "fedcal"),
    ("digits", "fedcal-literal"),
    ("heart", "ens"),
]


@pytest.mark.parametrize(("data", "method"), CASES)
def test_bit_equal_to_the_simulator(data, method):
    config = config_of(data, method)
    state, metrics = simulated(config)
    grid = grid_of(config)
    strategy, arrays = flower(config, grid)
    ours = state.calibrations[method]
    assert distance(state.model.state_dict(), arrays.to_torch_state_dict()) == 0
    assert distance(ours.params, strategy.calibration.params) == 0
    assert strategy.metrics()["global"] == metrics
    paired = strategy.measured.paired
    assert paired is not None and paired.difference("local", "uncal")[0] == pytest.approx(
        metrics["ece"] - strategy.metrics()["uncal"]["ece"]
    )
    assert (strategy.calibrator.state.rounds, strategy.report()["bytes_up"]) == (ours.rounds, ours.total_up)
    assert strategy.report()["faults"] == []
    names = {str(context.node_config["name"]): own_scaler(context) for context in grid.contexts.values()}
    assert all(distance(own, names[name]) == 0 for name, own in ours.own.items() if own)


def test_flowers_own_averaging_gives_the_same_temperature():
    config = config_of("digits", "fed-ts")
    state, metrics = simulated(config)
    strategy, arrays = flower(config, grid_of(config), FedAvg(fraction_evaluate=0.0))
    assert distance(state.model.state_dict(), arrays.to_torch_state_dict()) < 1e-6
    assert distance(state.calibrations["fed-ts"].params, strategy.calibration.params) < 1e-6
    found = strategy.metrics()["global"]
    assert all(abs(found[key] - value) < 1e-6 for key, value in metrics.items())


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
    assert all(bool(torch.isfinite(value).all()) for value in strategy.calibration.params.values())
    assert arrays


def test_the_model_travels_once():
    config = config_of("heart", "fed-ts")
    strategy, arrays = flower(config, grid_of(config))
    model = sum(len(array.data) for array in arrays.values())
    costs = [r["bytes"]["model_down"] for r in strategy.report()["rounds"] if r["phase"] == "calibration"]
    assert costs == [4 * model] + [0] * (len(costs) - 1)


def test_a_node_that_forgets_everything_is_told_again():
    """As if its SuperNode were started anew before every message: model and earlier questions come once more."""
    config = config_of("heart", "fedcal-plus")
    whole, _ = flower(config, grid_of(config))

    def forgetful(message, context):
        if context.node_config["name"] == "va":
            context.state.clear()
        return client_app(message, context)

    grid = grid_of(config, forgetful)
    again, _ = flower(config, grid)
    assert grid.sent == 4 * 3 + 5 * again.calibrator.fitted - 1 + 5  # each round but the first asks va twice
    assert distance(whole.calibration.params, again.calibration.params) == 0
    assert again.report()["faults"] == []


def test_a_folder_outlives_the_node(tmp_path):
    config = config_of("heart", "fed-ts")
    grid = grid_of(config)
    for context in grid.contexts.values():
        context.node_config["fedcal-state"] = str(tmp_path)
    flower(config, grid)
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["cleveland", "hungarian", "switzerland", "va"]


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


def test_nodes_may_give_probabilities_and_words():
    """What `calibration_mod(logits, probs=…, classes=…)` makes of them is what the logits and columns would have been."""
    logits = torch.randn(40, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    columns, words = torch.arange(40) % 3, ["owl", "cat", "dog"]
    given = as_samples(lambda *_: (logits.exp(), [words[k] for k in columns]), probs=True, classes=words)
    found, labels = given(ArrayRecord(), None, "calibration")  # type: ignore[arg-type]
    assert torch.allclose(found, logits) and torch.equal(labels, columns)
    with pytest.raises(FedCalError, match="labels are strings, such as 'owl'"):
        as_samples(lambda *_: (logits, [words[k] for k in columns]), None, None)(ArrayRecord(), None, "test")  # type: ignore[arg-type]
    with pytest.raises(FedCalError, match="probs must be True or False"):
        calibration_mod(lambda *_: (logits, columns), probs="yes")  # type: ignore[arg-type]
