"""Nodes that go wrong: the round goes on with the rest, the reason is logged with the node, nothing is poisoned."""

import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAdam, FedAvg, FedAvgM

import fedcal
from fedcal import FedCalError
from fedcal.methods import Update, get_method
from fedcal.transport.flower import task
from fedcal.transport.flower.app.client_app import app as client_app
from fedcal.transport.flower.checks import too_far
from fedcal.transport.flower.grid import copy_content
from fedcal.transport.flower.inner import numbers_of, put_back, state_of
from fedcal.transport.flower.records import ANSWER, PACKED, PREFIX, SAID, from_record, pack, to_record, unpack
from flower_help import ROUNDS, breaking, config_of, distance, flower, grid_of


def changed(change, record=ANSWER):
    """Every array of that record, changed."""

    def how(asked, reply):
        if record in reply.content:
            read, write = (unpack, pack) if record == ANSWER else (from_record, to_record)
            values = read(reply.content[record])
            reply.content[record] = write({name: change(value) for name, value in values.items()})
        return reply

    return how


def said(**other):
    def how(asked, reply):
        if SAID in reply.content:
            for key, value in other.items():
                reply.content[SAID][key] = value
        return reply

    return how


def lacking(record):
    def how(asked, reply):
        reply.content.pop(record, None)
        return reply

    return how


def replay():
    """The node's first answer over and over; its model is as it should be."""
    kept = {}

    def how(asked, reply):
        ours = {name: record for name, record in copy_content(reply.content).items() if name.startswith(PREFIX)}
        kept.setdefault("first", ours)
        if ANSWER in reply.content:
            kept.setdefault("answer", ours)
            reply.content.update(kept["answer"])
        return reply

    return how


def packed(value):
    """That in the place of packed tensors."""
    return lambda asked, reply: reply.content.update({ANSWER: ConfigRecord({PACKED: value})}) or reply


def raw(header):
    """Bytes of that header, and no tensors."""
    return struct.pack("<Q", len(header)) + header.encode()


DEEP = "[" * 100_000
EMPTY = '{"x": {"dtype": "F32", "shape": %s, "data_offsets": [0, 0]}, "__metadata__": {"names": "[\\"x\\"]"}}'


def reshaped(value):
    return torch.cat([value.flatten(), torch.zeros(1, dtype=value.dtype)])


FAULTS = {
    "dies or hangs": (lambda asked, reply: None, "no reply"),
    "returns an error": (lambda asked, reply: Message(Error(1, "out of memory"), reply_to=asked), "out of memory"),
    "NaN": (changed(lambda v: v * float("nan")), "not finite"),
    "infinity": (changed(lambda v: v + float("inf")), "not finite"),
    "wrong shape": (changed(reshaped), "of shape"),
    "wrong type": (changed(lambda v: v.to(torch.float16)), "float16"),
    "another name": (lambda a, r: r.content.update({ANSWER: pack({"x": torch.ones(1)})}) or r, "lacks"),
    "not packed": (lambda a, r: r.content.update({ANSWER: to_record({"x": torch.ones(1)})}) or r, "cannot be read"),
    "a number for tensors": (packed(5), "cannot be read"),
    "names that nest": (packed(save({"x": torch.ones(1)}, {"names": DEEP})), "cannot be read"),
    "a tensor without a name": (packed(save({"x": torch.ones(1)}, {"names": "[]"})), "some have no name"),
    "an empty tensor too large": (packed(raw(EMPTY % [0, 2**62, 2**62])), "cannot be read"),
    "an empty tensor that is none": (packed(raw(EMPTY % [])), "cannot be read"),
    "too many bytes": (packed(save({"x": torch.ones(1 << 21)}, {"names": '["x"]'})), "bytes, where"),
    "notes too large": (said(notes=f'{{"x": 1{"0" * 400}}}'), "no numbers"),
    "notes that nest": (said(notes=DEEP), "'notes' cannot be read"),
    "privacy that nests": (said(privacy=DEEP), "'privacy' cannot be read"),
    "no answer": (lacking(ANSWER), "sent no answer"),
    "no header": (lacking(SAID), "does not answer FedCal"),
    "another K": (said(n_classes=7), "7 classes"),
    "1e6 too large": (changed(lambda v: v * 1e6), "the others' about"),
    "replayed": (replay(), "answers round"),
    "of another federation": (said(federation="elsewhere"), "another federation"),
    "another node's name": (said(site="hungarian"), "another node's name"),
}


def model_of(make):
    """Arrays that `make` makes of the model's."""

    def how(asked, reply):
        if "arrays" in reply.content:
            reply.content["arrays"] = ArrayRecord({name: make(a) for name, a in reply.content["arrays"].items()})
        return reply

    return how


def without_va(config, arrays):
    """The exact fit of the other three hospitals on that model."""
    state = task.federation(grid_of(config).contexts[1].run_config["config"])
    state.model.load_state_dict(arrays.to_torch_state_dict())
    samples = {c.name: task.predict(state.model, c.cal_x) for c in state.clients if c.name != "va"}
    labels = {c.name: c.cal_y for c in state.clients}
    return fedcal.calibrate({name: (logits, labels[name]) for name, logits in samples.items()}, config.method[-1])


@pytest.mark.parametrize("fault", FAULTS)
def test_on_the_frozen_model(fault):
    """From the second calibration round on: the fit begins anew, and is exactly the one of the other nodes."""
    how, words = (replay() if fault == "replayed" else FAULTS[fault][0]), FAULTS[fault][1]
    config = config_of("heart", "fed-ts")
    late = ROUNDS + 2 if fault == "replayed" else ROUNDS + 1
    app = breaking("va", how, after=ROUNDS if fault == "replayed" else late)
    strategy, arrays = flower(config, grid_of(config, app))
    (found,) = strategy.report()["faults"]
    assert words in found["reason"] and (found["name"] == "va" or fault == "another node's name")
    assert (
        strategy.report()["fitted_by"] == strategy.report()["measured_by"] == ["cleveland", "hungarian", "switzerland"]
    )
    assert strategy.report()["restarts"] == 1
    assert distance(strategy.calibration.params, without_va(config, arrays).params) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_in_training(fault):
    """In the second training round: model and scaler are those of the other nodes in that round."""
    how, words = (replay() if fault == "replayed" else FAULTS[fault][0]), FAULTS[fault][1]
    config = config_of("heart", "fedcal-literal")
    once = {"n": 0}

    def only_then(asked, reply):
        once["n"] += 1
        return how(asked, reply) if once["n"] <= (2 if fault == "replayed" else 1) else reply

    app = breaking("va", only_then, after=0 if fault == "replayed" else 1)
    strategy, _ = flower(config, grid_of(config, app), hidden=4)
    (found,) = strategy.report()["faults"]
    assert words in found["reason"] and found["round"] == 2
    rounds = {r["round"]: r["took_part"] for r in strategy.report()["rounds"] if r["phase"] == "training"}
    assert rounds[2] == ["cleveland", "hungarian", "switzerland"]
    if fault == "dies or hangs":  # who let the time run out is not waited for again
        assert rounds[3] == rounds[2]
    else:
        assert len(rounds[3]) == 4
    assert all(bool(torch.isfinite(v).all()) for v in strategy.calibration.params.values())
    assert strategy.metrics()["global"]["accuracy"] > 0.7


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("labels", lambda v: -v, "'labels' holds a negative count"),
        ("squares", lambda v: -v, "'squares' is negative"),
        ("newton/bias/all/hess", lambda v: -v, "'newton/bias/all/hess' has a negative second derivative"),
        ("newton/bias/all/grad", lambda v: v + 1, "add up to 0"),
    ],
)
def test_sums_that_no_samples_can_give_are_refused(name, change, words):
    """The fit goes on with the other nodes, as if the liar had never been there."""

    def how(asked, reply):
        if ANSWER in reply.content and name in (content := unpack(reply.content[ANSWER])):
            reply.content[ANSWER] = pack({**content, name: change(content[name])})
        return reply

    config = config_of("heart", "fed-bias")
    strategy, _ = flower(config, grid_of(config, breaking("va", how)))
    report = strategy.report()
    assert report["fitted_by"] == ["cleveland", "hungarian", "switzerland"]
    assert all(words in fault["reason"] and "va's answer" in fault["reason"] for fault in report["faults"])
    assert report["faults"]


def test_sums_of_large_logits_are_not_too_far():
    """Two of four nodes make no mistake, so that their slopes are 0; the others' mistakes are of logits of 1e5."""
    slopes = {"a": [0.0, 0.0], "b": [0.0, 0.0], "c": [3e5, 2e9], "d": [2e5, 1e9]}
    updates = {name: Update({"slope": torch.tensor(slope)}, 10) for name, slope in slopes.items()}
    assert too_far(updates, get_method("fed-ts")) == {}
    updates["d"] = Update({"slope": torch.tensor([2e15, 1e19])}, 10)
    assert list(too_far(updates, get_method("fed-ts"))) == ["d"]
    assert too_far(updates, get_method("fed-ts"), declared=["d"]) == {}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (changed(lambda v: v * float("nan"), "arrays"), "not finite"),
        (changed(lambda v: v * 1e6, "arrays"), "the others' about"),
        (changed(reshaped, "arrays"), "names or shapes"),
        (model_of(lambda like: Array(np.full(like.shape, "x"))), "not of numbers"),
        (model_of(lambda like: Array(like.dtype, like.shape, like.stype, b"PK\x03\x04")), "cannot be read"),
    ],
)
def test_broken_models_are_not_averaged(how, words):
    """Whatever FedCal's own records say."""
    config = config_of("heart", "fed-ts")
    app = breaking("va", how, after=0)
    strategy, arrays = flower(config, grid_of(config, app), FedAvg(fraction_evaluate=0.0))
    found = [fault for fault in strategy.report()["faults"] if words in fault["reason"]]
    assert len(found) == ROUNDS
    assert all(bool(torch.isfinite(v).all()) for v in arrays.to_torch_state_dict().values())


def test_all_nodes_wrong_is_an_error():
    config = config_of("heart", "fed-ts")

    def app(message, context):
        raise ValueError("no disk")

    with pytest.raises(FedCalError, match="no disk"):
        flower(config, grid_of(config, app))


def test_a_node_gone_for_good_does_not_make_the_strategy_wait():
    """Flower's own strategies would wait for ever for a fourth node."""
    config = config_of("heart", "fed-ts")
    grid = grid_of(config)
    del grid.contexts[4]
    strategy, _ = flower(config, grid, FedAvg(fraction_evaluate=0.0, min_available_nodes=4), training=1)
    assert strategy.report()["training_rounds"] == 1 and strategy.report()["rounds"][0]["took_part"] == []
    assert strategy.report()["fitted_by"] == ["cleveland", "hungarian", "switzerland"]


@pytest.mark.parametrize("robust", ["median", "trimmed"])
def test_robust_averages_hold_where_the_mean_gives_way(robust):
    """A node that lies within what is plausible: weights a hundred times too large."""
    config = config_of("heart", "fedcal-literal")
    honest, _ = flower(config, grid_of(config))
    lie = breaking("va", changed(lambda v: v * -30.0))
    mean, _ = flower(config, grid_of(config, lie))
    held, _ = flower(config, grid_of(config, lie), robust=robust)
    assert held.report()["faults"] == mean.report()["faults"] == []
    nll = {name: s.metrics()["global"]["nll"] for name, s in {"honest": honest, "mean": mean, "held": held}.items()}
    assert nll["held"] < nll["honest"] + 0.1 and nll["mean"] > nll["held"] + 0.1


def test_killed_server_goes_on_from_its_checkpoint(tmp_path):
    """Killed in training, and again in the middle of the fit; the nodes' state is lost each time."""
    config = config_of("heart", "fedcal-plus")
    whole, model = flower(config, grid_of(config))
    strategy, arrays = whole, model
    for rounds in (2, 30, 1000):
        grid = grid_of(config, killing(4 * rounds))
        try:
            strategy, arrays = flower(config, grid, folder=tmp_path)
        except SystemExit:
            assert (tmp_path / "checkpoint" / "training.safetensors").exists()
    assert strategy is not whole
    assert distance(strategy.calibration.params, whole.calibration.params) == 0
    assert distance(arrays.to_torch_state_dict(), model.to_torch_state_dict()) == 0
    assert strategy.metrics() == whole.metrics()
    said, once = ([(r["phase"], r["took_part"]) for r in one.report()["rounds"]] for one in (strategy, whole))
    assert said == once  # also of the rounds before it was killed
    assert (tmp_path / "scaler.safetensors").exists() and not (tmp_path / "checkpoint").exists()


INNER = {
    "FedAdam": lambda: FedAdam(fraction_evaluate=0.0, eta=0.01),
    "FedAvgM": lambda: FedAvgM(fraction_evaluate=0.0, server_momentum=0.9),
    "adaptive clipping around FedAdam": lambda: DifferentialPrivacyServerSideAdaptiveClipping(
        FedAdam(fraction_evaluate=0.0, eta=0.01), 0.0, 4, clipped_count_stddev=0.0
    ),
}


@pytest.mark.parametrize("inner", INNER)
def test_a_strategys_own_state_is_in_the_checkpoint(tmp_path, inner):
    """Killed in the third training round: moments, momentum and clipping norm are those of the unbroken run."""
    config = config_of("heart", "fed-ts")
    whole, model = flower(config, grid_of(config), INNER[inner]())
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(4 * 2 + 1)), INNER[inner](), folder=tmp_path)
    again, arrays = flower(config, grid_of(config), INNER[inner](), folder=tmp_path)
    assert again.report()["training_rounds"] == ROUNDS
    assert len(again.report()["rounds"]) == len(whole.report()["rounds"])
    assert distance(arrays.to_torch_state_dict(), model.to_torch_state_dict()) == 0
    assert distance(again.calibration.params, whole.calibration.params) == 0


def test_settings_are_the_apps_and_another_strategys_state_is_refused(tmp_path):
    config = config_of("heart", "fed-ts")
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(6)), INNER["FedAdam"](), folder=tmp_path)
    with pytest.raises(FedCalError, match="another strategy"):
        flower(config, grid_of(config), FedAvg(fraction_evaluate=0.0), folder=tmp_path)
    slower = FedAdam(fraction_evaluate=0.0, eta=0.001)
    flower(config, grid_of(config), slower, folder=tmp_path)
    assert slower.eta == 0.001


@pytest.mark.parametrize(
    "told",
    [
        {"eta": True},
        {"eta": "0.1"},
        {"accept_failures": 1},
        {"m_t": {"kind": "dict"}},
        {"m_t": {"kind": "code", "names": []}},
        {"m_t": {"kind": "dict", "names": ["w"]}},
        {"m_t": {"kind": "array", "names": []}},
        {"m_t": {"kind": "dict", "names": 5}},
    ],
)
def test_a_damaged_strategys_state_is_refused(told):
    strategy = INNER["FedAdam"]()
    strategy.accept_failures = True
    with pytest.raises(FedCalError, match="damaged or of another strategy"):
        put_back(strategy, {}, told)


def test_arrays_that_pytorch_has_not_are_left_out():
    strategy = INNER["FedAdam"]()
    strategy.m_t = {"w": np.ones(2, ">f8")}
    strategy.v_t = {"w": np.ones(2)}
    arrays, told = state_of(strategy, numbers_of(strategy))
    assert list(told) == ["v_t"] and list(arrays) == ["v_t/0"]


def killing(last):
    """The app; with its message number `last` the server dies."""
    left = {"n": last}

    def app(message, context):
        left["n"] -= 1
        if left["n"] < 0:
            raise SystemExit  # LocalGrid takes what is an Exception for the node's own
        return client_app(message, context)

    return app


def test_a_checkpoint_of_another_method_is_refused(tmp_path):
    config, other = config_of("heart", "fed-ts"), config_of("heart", "fed-bias")
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(6)), folder=tmp_path)
    with pytest.raises(FedCalError, match="another method"):
        flower(other, grid_of(other), folder=tmp_path)
