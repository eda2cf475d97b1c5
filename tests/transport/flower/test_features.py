"""fed-head over Flower: nodes take features from the model that they receive; the same scaler as in memory."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

import fedcal
from fedcal import FedCalError
from fedcal.base.features import head_of
from fedcal.base.last_layer import with_features
from fedcal.exact.head_samples import join
from fedcal.protocol import Server
from fedcal.transport.flower import (
    CalibratedStrategy,
    LocalGrid,
    calibration_mod,
    features_of,
    logits_of,
    personal_scaler,
)
from fedcal.transport.flower.samples import to_measure_on
from fedcal.transport.memory import Exchange
from transport.flower.help import distance

K, D, NODES = 3, 6, 4


def make_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, D), nn.ReLU(), nn.Linear(D, K))


@cache
def batches(node: int, kind: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels that follow the model's features, but not its last layer."""
    rng = torch.Generator().manual_seed(10 * node + (kind == "train"))
    x = torch.randn(200, 5, generator=rng)
    with torch.no_grad():
        y = (6 * make_model()[:2](x)[:, :K] + torch.randn(200, K, generator=rng)).argmax(1)
    return [(x[:90], y[:90]), (x[90:], y[90:])]


def grid_of(**options) -> LocalGrid:
    def of(kind):
        return lambda context: batches(context.node_config["i"], kind)

    mod = calibration_mod(features_of(make_model, of("held-out"), of("train")), **options)
    return LocalGrid(
        lambda message, context: mod(message, context, None), [{"i": i, "name": f"n{i}"} for i in range(NODES)]
    )


def fit(grid: LocalGrid, method: str = "fed-head", **options) -> CalibratedStrategy:
    options = {"timeout": 5.0, "patience": 0.0, "n_classes": K, **options}
    strategy = CalibratedStrategy(FedAvg(), method, **options)
    strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=0)
    return strategy


@cache
def in_memory(options: str = "") -> fedcal.Scaler:
    """The same federation without Flower: on the model's logits bit for bit, since folds follow from them."""
    whole, samples = with_features(make_model()), {}
    for i in range(NODES):
        parts = []
        for kind in ("held-out", "train"):
            with torch.no_grad():
                found = torch.cat([whole(x) for x, _ in batches(i, kind)]).numpy()
            labels = torch.cat([y for _, y in batches(i, kind)]).numpy()
            seen = Counter()
            kept = np.concatenate([~to_measure_on(x, y, seen) | (kind == "train") for x, y in batches(i, kind)])
            parts.append((join(found[:, :K], found[:, K:], kind == "train")[kept], labels[kept]))
        samples[f"n{i}"] = tuple(np.concatenate(part) for part in zip(*parts, strict=True))
    return Exchange(Server(f"fed-head:features={D}{options}", K)).run(samples)


def test_equal_to_memory_and_served_by_the_model():
    expected, grid = in_memory(), grid_of()
    strategy = fit(grid, features=D)
    assert strategy.report()["faults"] == [] and "head" in expected.params
    assert distance(expected.params, strategy.scaler.params) == 0
    for context in grid.contexts.values():
        name = str(context.node_config["name"])
        assert distance(expected.personal[name], personal_scaler(context)) == 0
    metrics = strategy.metrics()
    assert metrics["global"]["nll"] < metrics["uncal"]["nll"] - 0.2
    x = batches(0, "held-out")[0][0]
    served = fedcal.CalibratedModel(make_model(), strategy.scaler)(x)
    expected.params |= dict(zip(("model_weight", "model_bias"), head_of(make_model()[2]), strict=True))
    with torch.no_grad():
        assert torch.allclose(served, expected.predict_proba(make_model()[:2](x)).float(), atol=1e-5)
        with pytest.raises(FedCalError, match="does not know the model's last layer: serve it by CalibratedModel"):
            strategy.scaler.predict_proba(make_model()[:2](x))


def test_conformal_sets():
    """The same thresholds as in memory; the model serves them."""
    expected = in_memory(",alpha=0.1,coverage=site")
    strategy = fit(grid_of(), features=D, alpha=0.1, coverage="site")
    assert strategy.report()["faults"] == [] and distance(expected.params, strategy.scaler.params) == 0
    x, y = batches(1, "held-out")[0]
    sets = fedcal.CalibratedModel(make_model(), strategy.scaler).predict_set(x)
    assert sets.shape == (90, K) and sets[torch.arange(90), y].float().mean() > 0.8
    with torch.no_grad():
        rows = torch.nn.functional.pad(with_features(make_model())(x), (0, 1))
    assert (expected.predict_set(rows) == sets).all()


def test_secure_aggregation_gives_the_same():
    strategy = fit(grid_of(), features=D, secure=True)
    assert strategy.report()["faults"] == []
    plain = {name: value for name, value in in_memory().params.items() if not name.startswith("model_")}
    assert distance(plain, strategy.scaler.params) < 1e-6


@pytest.mark.parametrize(("make", "method"), [(logits_of, "fedcal-plus"), (features_of, f"fed-head:features={D}")])
@pytest.mark.parametrize("secure", [False, True])
def test_a_node_without_any_batch_says_that_it_has_no_samples(make, method, secure):
    """Where it raised, a securely aggregated group of three came to nothing."""

    def of(context):
        return batches(context.node_config["i"], "held-out") if context.node_config["i"] else []

    mod = calibration_mod(make(make_model, of))
    nodes = [{"i": i, "name": f"n{i}"} for i in range(3)]
    grid = LocalGrid(lambda message, context: mod(message, context, None), nodes)
    assert fit(grid, method, secure=secure).report()["faults"] == []


def test_without_a_batch_only_a_linear_last_layer_tells_the_number_of_classes():
    with pytest.raises(FedCalError, match=r"logits of shape \(0, K\)"):
        logits_of(lambda: nn.Sequential(nn.Linear(5, K), nn.Tanh()), lambda context: [])(
            ArrayRecord(nn.Sequential(nn.Linear(5, K), nn.Tanh()).state_dict()), None, "test"
        )


def test_what_a_node_or_a_strategy_lacks_is_one_line():
    with pytest.raises(FedCalError, match="fed-head needs the model's features"):
        fit(grid_of())
    with pytest.raises(FedCalError, match="has no private form"):
        fit(grid_of(), features=D, privacy=fedcal.Privacy(4.0))
    logits = calibration_mod(lambda arrays, context, split: (torch.zeros(20, K), torch.zeros(20).long()))
    grid = LocalGrid(lambda message, context: logits(message, context, None), [{"i": 0, "name": "n0"}])
    strategy = CalibratedStrategy(FedAvg(), "fed-head", features=D, n_classes=K, timeout=5.0, patience=0.0)
    with pytest.raises(FedCalError):
        strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=0)
    assert any("asks for 6 features and 3 logits" in str(fault) for fault in strategy.report()["faults"])


def test_models_of_any_type_and_with_several_inputs():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.last = torch.nn.Linear(5, 3, dtype=torch.bfloat16)

        def forward(self, x):
            return self.last(x["a"] + x["b"] if isinstance(x, dict) else x[0] + x[1])

    a, b, y = torch.randn(40, 5).bfloat16(), torch.randn(40, 5).bfloat16(), torch.arange(40) % 3
    net = Two()
    sent = ArrayRecord({name: value.float() for name, value in net.state_dict().items()})
    for x in ({"a": a, "b": b}, [a, b]):
        found = [logits_of(Two, lambda context, x=x: [(x, y)])(sent, None, kind) for kind in ("held-out", "test")]
        assert sum(len(labels) for _, labels in found) == 40 and all(len(labels) > 8 for _, labels in found)
        assert all(z.dtype == np.float32 for z, _ in found)


@pytest.mark.parametrize("make", [logits_of, features_of])
def test_one_sample_more_does_not_move_others_between_calibration_and_test(make):
    """Under differential privacy it must not. By every second sample, in matched pairs, the first one moved all others."""
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    x[100:150] = x[100]  # equal ones
    y = torch.arange(200) % 2  # case, control, case, …

    def split(rows, kind):
        batches = [(x[part], y[part]) for part in (*rows.split(64), rows[:0])]
        z, labels = make(make_model, lambda context: batches)(arrays, None, kind)
        z = getattr(z, "rows", z)
        return Counter((str(row.round(3)), int(label)) for row, label in zip(z, labels, strict=True))

    arrays, rows = ArrayRecord(make_model().state_dict()), torch.arange(200)
    whole = {kind: split(rows, kind) for kind in ("held-out", "test")}
    assert 80 < whole["held-out"].total() < 120 and sum(map(Counter.total, whole.values())) == 200
    assert all(40 < sum(n for (_, label), n in one.items() if label) < 60 for one in whole.values())
    for gone in (0, 57, 120, 199):
        left = {kind: split(torch.cat([rows[:gone], rows[gone + 1 :]]), kind) for kind in whole}
        assert sum((whole[kind] - left[kind]).total() for kind in whole) == 1
        assert not any(left[kind] - whole[kind] for kind in whole)
    shuffled = rows[torch.randperm(200, generator=torch.Generator().manual_seed(1))]
    assert split(shuffled, "test") == whole["test"]


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.uint8, torch.bool, torch.int64])
def test_samples_of_any_type_and_shape_are_divided(kind):
    x = torch.randn(100, 2, 3, 3, generator=torch.Generator().manual_seed(0)).mul(50).to(kind)
    y = torch.arange(100) % 10
    assert 25 < to_measure_on(x, y, Counter()).sum() < 75
    assert not to_measure_on(x[:0], y[:0], Counter()).size
    same = to_measure_on(torch.zeros(100).to(kind), torch.zeros(100).long(), Counter())  # a number each, all equal
    assert same.sum() == 50
