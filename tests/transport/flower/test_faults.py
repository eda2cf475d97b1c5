"""Nodes that go wrong: the round goes on with the rest, the reason is logged with the node, nothing is poisoned."""

import struct
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from transport.flower.help import ROUNDS, breaking, config_of, distance, flower, grid_of

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAdam, FedAvg, FedAvgM

import fedcal
from fedcal import FedCalError
from fedcal.federate import task
from fedcal.federate.app.client_app import app as client_app
from fedcal.protocol import Reply
from fedcal.protocol.checks import outliers
from fedcal.protocol.claim import Known
from fedcal.protocol.wire import pack, unpack
from fedcal.transport.flower import Privacy, calibration_mod
from fedcal.transport.flower.inner import numbers_of, put_back, state_of
from fedcal.transport.flower.records import DATA, REPLY, from_record, to_record
from fedcal.transport.flower.server import Nodes

SCALER = "the node's reply"


def changed(change, record=SCALER):
    """Every tensor of the node's reply, or every array of its model, changed."""

    def how(request, reply):
        if record == SCALER and replies_to_a_request(reply):
            tensors, header = unpack(reply.content[REPLY][DATA])
            rewrite(reply, {name: change(value) for name, value in tensors.items()}, header)
        elif record in reply.content:
            values = from_record(reply.content[record])
            reply.content[record] = to_record({name: change(value) for name, value in values.items()})
        return reply

    return how


def replies_to_a_request(reply):
    """Whether it is neither a name alone, nor what a node measured."""
    data = reply.content[REPLY][DATA] if REPLY in reply.content else b""
    return bool(data) and unpack(data)[1].get("kind") == "reply"


def rewrite(reply, tensors, header):
    reply.content[REPLY][DATA] = pack(tensors, header)


def headed(**other):
    """Other values in the header of the node's reply."""

    def how(request, reply):
        if replies_to_a_request(reply):
            tensors, header = unpack(reply.content[REPLY][DATA])
            rewrite(reply, tensors, header | other)
        return reply

    return how


def recorded(**other):
    """Other values in the record of the node's reply."""

    def how(request, reply):
        if REPLY in reply.content:
            reply.content[REPLY].update(other)
        return reply

    return how


def instead(record):
    """Another record in the place of the node's reply."""
    return lambda request, reply: reply.content.update({REPLY: record}) or reply


def lacking(request, reply):
    reply.content.pop(REPLY, None)
    return reply


def replay():
    """The node's first reply over and over; its model is as it should be."""
    kept = {}

    def how(request, reply):
        if replies_to_a_request(reply):
            reply.content[REPLY][DATA] = kept.setdefault("first", reply.content[REPLY][DATA])
        return reply

    return how


def raw(header):
    """Bytes of that header, and no tensors."""
    return struct.pack("<Q", len(header)) + header.encode()


def bytes_of(tensors, header):
    return save(tensors, {"fedcal": header})


DEEP = "[" * 100_000
EMPTY = '{"x": {"dtype": "F32", "shape": %s, "data_offsets": [0, 0]}, "__metadata__": {"fedcal": "{\\"order\\": [\\"x\\"]}"}}'
ONE = {"x": np.ones(1)}


def reshaped(value):
    return np.append(value, np.zeros(1, value.dtype))


FAULTS = {
    "dies or hangs": (lambda request, reply: None, "no reply"),
    "returns an error": (lambda request, reply: Message(Error(1, "out of memory"), reply_to=request), "out of memory"),
    "NaN": (changed(lambda v: v * float("nan")), "not finite"),
    "infinity": (changed(lambda v: v + float("inf")), "not finite"),
    "wrong shape": (changed(reshaped), "of shape"),
    "wrong type": (changed(lambda v: v.astype(np.float16)), "float16"),
    "another name": (lambda m, r: rewrite(r, ONE, unpack(r.content[REPLY][DATA])[1]) or r, "lacks"),
    "arrays for bytes": (instead(to_record(ONE)), "does not reply to FedCal"),
    "a number for bytes": (recorded(**{DATA: 5}), "holds no bytes"),
    "no bytes": (recorded(**{DATA: b""}), "cannot be read"),
    "a header that nests": (recorded(**{DATA: bytes_of(ONE, DEEP)}), "cannot be read"),
    "a tensor without a place": (recorded(**{DATA: bytes_of(ONE, '{"order": []}')}), "cannot be read"),
    "an empty tensor too large": (recorded(**{DATA: raw(EMPTY % [0, 2**62, 2**62])}), "cannot be read"),
    "an empty tensor that is none": (recorded(**{DATA: raw(EMPTY % [])}), "cannot be read"),
    "too many bytes": (recorded(**{DATA: bytes_of({"x": np.ones(1 << 21)}, "{}")}), "bytes, where"),
    "another version": (headed(schema=1), "another version"),
    "not a reply": (headed(kind="request"), "not a reply"),
    "no number of samples": (headed(n="ten"), "a whole number is needed"),
    "notes that are no numbers": (headed(notes={"x": "y"}), "notes are not numbers"),
    "privacy that is no budget": (headed(privacy={"epsilon": ["much"]}), "what its privacy has cost"),
    "no reply": (lacking, "does not reply to FedCal"),
    "a number for a name": (recorded(client=7), "does not reply to FedCal"),
    "1e6 too large": (changed(lambda v: v * 1e6), "the others' about"),
    "replayed": (replay(), "replies to another request"),
    "to another request": (headed(to="elsewhere"), "replies to another request"),
    "another node's name": (recorded(client="hungarian"), "another node's name"),
}


def model_of(make):
    """Arrays that `make` makes of the model's."""

    def how(request, reply):
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
    assert distance(strategy.scaler.params, without_va(config, arrays).params) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_in_training(fault):
    """In the second training round: model and scaler are those of the other nodes in that round."""
    how, words = (replay() if fault == "replayed" else FAULTS[fault][0]), FAULTS[fault][1]
    config = config_of("heart", "fedcal-literal:hidden=4")
    once = {"n": 0}

    def only_then(request, reply):
        once["n"] += 1
        return how(request, reply) if once["n"] <= (2 if fault == "replayed" else 1) else reply

    app = breaking("va", only_then, after=0 if fault == "replayed" else 1)
    strategy, _ = flower(config, grid_of(config, app))
    (found,) = strategy.report()["faults"]
    assert words in found["reason"] and (found["phase"], found["round"]) == ("training", 2)
    rounds = {r["round"]: r["took_part"] for r in strategy.report()["rounds"] if r["phase"] == "training"}
    assert rounds[2] == ["cleveland", "hungarian", "switzerland"]
    if fault == "dies or hangs":  # who let the time run out is not waited for again
        assert rounds[3] == rounds[2]
    else:
        assert len(rounds[3]) == 4
    assert all(bool(np.isfinite(v).all()) for v in strategy.scaler.params.values())
    assert strategy.metrics()["global"]["accuracy"] > 0.7


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("labels", lambda v: -v, "'labels' holds a negative count"),
        ("squares", lambda v: -v, "'squares' is negative"),
        ("0/hess", lambda v: -v, "'0/hess' has a negative second derivative"),
        ("0/grad", lambda v: v + 1, "add up to 0"),
    ],
)
def test_sums_that_no_samples_can_give_are_refused(name, change, words):
    """The fit goes on with the other nodes, as if the liar had never been there."""

    def how(request, reply):
        if replies_to_a_request(reply):
            tensors, header = unpack(reply.content[REPLY][DATA])
            rewrite(reply, tensors | ({name: change(tensors[name])} if name in tensors else {}), header)
        return reply

    config = config_of("heart", "fed-bias")
    strategy, _ = flower(config, grid_of(config, breaking("va", how)))
    report = strategy.report()
    assert report["fitted_by"] == ["cleveland", "hungarian", "switzerland"]
    assert all(words in fault["reason"] and "va's reply" in fault["reason"] for fault in report["faults"])
    assert report["faults"]


def test_sums_of_large_logits_are_not_too_far():
    """Two of four nodes make no mistake, so that their slopes are 0; the others' mistakes are of logits of 1e5."""
    slopes = {"a": [0.0, 0.0], "b": [0.0, 0.0], "c": [3e5, 2e9], "d": [2e5, 1e9]}
    replies = {name: Reply({"slope": np.array(slope)}, 10, "") for name, slope in slopes.items()}
    assert outliers(replies, additive=True, known={}) == {}
    replies["d"] = Reply({"slope": np.array([2e15, 1e19])}, 10, "")
    assert list(outliers(replies, additive=True, known={})) == ["d"]
    assert outliers(replies, additive=True, known={"d": Known(10, 1e40)}) == {}


@pytest.mark.parametrize("method", ["fed-ts", "fedcal-literal:hidden=4"])
def test_logits_of_another_number_of_classes(method):
    config = config_of("heart", method)

    def logits(arrays, context, split):
        z, y = task.logits(arrays, context, split)
        return (torch.cat([z, z], dim=1) if context.node_config["name"] == "va" else z), y

    app = ClientApp(mods=[calibration_mod(logits)])
    app.train()(task.train)
    strategy, _ = flower(config, grid_of(config, app))
    assert all("va: 4 classes, where the federation has 2" in f["reason"] for f in strategy.report()["faults"])
    assert strategy.report()["measured_by"] == ["cleveland", "hungarian", "switzerland"]


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


def without_heartbeat(request, reply):
    """What the SuperLink replies in its own name for a node that it has heard nothing of."""
    error = Message(Error(5, "Error: Node Unavailable"), reply_to=request)
    error.metadata.__dict__["_src_node_id"] = 1
    return error


@pytest.mark.parametrize("phase", ["training", "calibration"])
def test_what_flower_says_of_a_node_is_entered_under_that_node(phase):
    """A node that has died is no node that took too long: the reason holds no time that nobody has waited."""
    config = config_of("heart", "fed-ts")
    app = breaking("va", without_heartbeat, after=1 if phase == "training" else ROUNDS + 1)
    strategy, _ = flower(config, grid_of(config, app), timeout=120.0)
    found = [fault for fault in strategy.report()["faults"] if fault["phase"] == phase]
    assert {(fault["name"], fault["reason"]) for fault in found} == {("va", "no sign of life: Flower has given it up")}


def test_a_message_that_flower_does_not_take():
    config = config_of("heart", "fed-ts")
    grid = grid_of(config)
    push = grid.push_messages
    grid.push_messages = lambda messages: [
        sent if message.metadata.dst_node_id != 4 else "" for message in messages for sent in push([message])
    ]
    strategy, _ = flower(config, grid, timeout=120.0)
    reasons = {(fault["name"], fault["reason"]) for fault in strategy.report()["faults"]}
    assert reasons == {(f"node {sorted(grid.contexts)[3]}", "error: Flower did not take the message")}


def test_the_time_of_a_silent_node_is_the_time_that_was_waited():
    config = config_of("heart", "fed-ts")
    app = breaking("va", lambda request, reply: None, after=ROUNDS + 1)
    strategy, _ = flower(config, grid_of(config, app), timeout=1.6)
    assert [fault["reason"] for fault in strategy.report()["faults"]] == ["no reply within 2 s"]


def test_many_nodes_say_their_names_in_little_time():
    """Each name was looked for in a new set of all others, in every round: many seconds for 20,000."""
    nodes, began = Nodes(), time.process_time()
    records = {i: {REPLY: ConfigRecord({"client": f"node {i}"})} for i in range(20_000)}
    records[20_000] = {REPLY: ConfigRecord({"client": "node 7"})}
    nodes.introduce(records)
    assert len(nodes.meet(records)) == 20_000 and time.process_time() - began < 2
    (fault,) = nodes.faults
    assert fault["reason"] == "node 20000 calls itself node 7, which is another node's name"


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


@pytest.mark.parametrize("method", ["fedcal-plus", "fedcal-literal:hidden=4,rounds=3", "fedcal:hidden=4,rounds=4"])
def test_killed_server_goes_on_from_its_checkpoint(tmp_path, method):
    """Killed in training, and again in the middle of the fit; the state of nodes that must not remember is lost each time."""
    config = config_of("heart", method)
    whole, model = flower(config, grid_of(config))
    last = sum(len(one["took_part"]) for one in whole.report()["rounds"] if one["phase"] == "calibration")
    strategy, arrays, kept = whole, model, {}
    for messages in (4 * 2, 4 + last // 2, 10_000):
        grid = grid_of(config, killing(messages))
        for node, context in grid.contexts.items():
            context.state.update(kept.get(node, {}))
        try:
            strategy, arrays = flower(config, grid, folder=tmp_path)
        except SystemExit:
            assert (tmp_path / "checkpoint" / "training.safetensors").exists()
        if method != "fedcal-plus":
            kept = {node: dict(context.state) for node, context in grid.contexts.items()}
    assert strategy is not whole
    assert distance(strategy.scaler.params, whole.scaler.params) == 0
    assert distance(arrays.to_torch_state_dict(), model.to_torch_state_dict()) == 0
    assert strategy.metrics() == whole.metrics()
    ours, theirs = strategy.report(), whole.report()
    for key in ("bytes_up", "bytes_down", "calibration_rounds", "training_rounds", "fitted_by", "faults"):
        assert ours[key] == theirs[key], key  # also of the rounds before it was killed
    same = ("phase", "round", "took_part", "bytes") if kept else ("phase", "round", "took_part")
    for key in same:  # nodes that kept nothing are sent the model again
        assert [one[key] for one in ours["rounds"]] == [one[key] for one in theirs["rounds"]], key
    assert (tmp_path / "scaler.safetensors").exists() and not (tmp_path / "checkpoint").exists()


def test_the_latest_scalers_are_in_the_checkpoint(tmp_path):
    """va takes part in the first round only; its scaler still counts after the server was killed in the third."""
    config = config_of("heart", "fedcal-literal:hidden=4,average=latest")

    def gone(request, reply):
        return Message(Error(1, "out of memory"), reply_to=request)

    whole, _ = flower(config, grid_of(config, breaking("va", gone, after=1)))
    without, _ = flower(config, grid_of(config, breaking("va", gone)))
    first = grid_of(config, killing(4 * 2 + 1, breaking("va", gone, after=1)))
    with pytest.raises(SystemExit):
        flower(config, first, folder=tmp_path)
    second = grid_of(config, breaking("va", gone))
    for node, context in second.contexts.items():
        context.state.update(first.contexts[node].state)
    again, _ = flower(config, second, folder=tmp_path)
    assert (
        distance(again.scaler.params, whole.scaler.params) == 0 < distance(whole.scaler.params, without.scaler.params)
    )
    assert list(again.scaler.params) == list(whole.scaler.params)
    assert again.report()["bytes_up"] == whole.report()["bytes_up"]


def test_a_round_that_is_in_the_log_alone_is_not_told_twice(tmp_path):
    """Killed between the two files of a round: the log has the round already, the fit has not."""
    config = config_of("heart", "fed-ts")
    whole, _ = flower(config, grid_of(config))
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(4 * (ROUNDS + 3))), folder=tmp_path)
    (tmp_path / "checkpoint" / "round-0-0003.safetensors").unlink()
    again, _ = flower(config, grid_of(config), folder=tmp_path)
    assert [one["round"] for one in again.report()["rounds"]] == [one["round"] for one in whole.report()["rounds"]]
    assert again.report()["bytes_up"] == whole.report()["bytes_up"]


def test_rounds_of_another_run_are_not_taken_for_this_ones(tmp_path):
    """An earlier run was killed while it deleted its checkpoint: the rounds that are left are of another model."""
    config, folder = config_of("heart", "fed-ts"), tmp_path / "checkpoint"
    whole, model = flower(config, grid_of(config))
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(4 * (ROUNDS + 3))), folder=tmp_path)
    theirs = {path: path.read_bytes() for path in folder.glob("round-*")}
    (folder / "training.safetensors").unlink()
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(6)), folder=tmp_path)
    assert theirs and not list(folder.glob("round-*"))
    for path, data in theirs.items():  # put back by hand
        path.write_bytes(data)
    with pytest.raises(FedCalError, match="the rounds belong to another federation"):
        flower(config, grid_of(config), folder=tmp_path)
    for path in theirs:
        path.unlink()
    again, arrays = flower(config, grid_of(config), folder=tmp_path)
    assert distance(again.scaler.params, whole.scaler.params) == 0
    assert distance(arrays.to_torch_state_dict(), model.to_torch_state_dict()) == 0


def test_a_node_that_is_gone_when_the_server_comes_back_is_dropped(tmp_path):
    """The sums of earlier rounds are of all four: the fit begins again with those that are left."""
    config = config_of("heart", "fed-bias")
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(4 * (ROUNDS + 3))), folder=tmp_path)
    grid = grid_of(config)
    del grid.contexts[4]
    strategy, arrays = flower(config, grid, folder=tmp_path)
    assert strategy.report()["restarts"] == 1
    assert distance(strategy.scaler.params, without_va(config, arrays).params) == 0


def test_killed_where_the_fit_begins_again(tmp_path):
    """The restart is in the journal: the next server goes on from it, and not from the sums of all four."""
    config = config_of("heart", "fed-ts")
    gone = breaking("va", lambda request, reply: None, after=ROUNDS + 1)
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(4 * (ROUNDS + 2), gone)), folder=tmp_path)
    assert (tmp_path / "checkpoint" / "round-1-0000.safetensors").exists()
    grid = grid_of(config)
    del grid.contexts[4]
    strategy, arrays = flower(config, grid, folder=tmp_path)
    assert strategy.report()["restarts"] == 1 and strategy.report()["faults"][0]["name"] == "va"
    assert distance(strategy.scaler.params, without_va(config, arrays).params) == 0


@pytest.mark.filterwarnings("ignore:privacy")  # a temperature gains next to nothing there
def test_a_privacy_budget_outlives_the_server(tmp_path):
    """Killed in the middle of the fit: it goes on, and no round is released twice."""
    config, privacy = config_of("heart", "fed-ts"), Privacy(200.0)
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(4 * (ROUNDS + 3))), folder=tmp_path, privacy=privacy)
    strategy, _ = flower(config, grid_of(config), folder=tmp_path, privacy=privacy)
    assert strategy.server.ledger.spent == pytest.approx(1.0)
    assert strategy.report()["calibration_rounds"] == 8


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
    assert distance(again.scaler.params, whole.scaler.params) == 0


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


def test_arrays_that_no_file_can_hold_are_left_out():
    strategy = INNER["FedAdam"]()
    strategy.m_t = {"w": np.ones(2, complex)}
    strategy.v_t = {"w": np.ones(2)}
    arrays, told = state_of(strategy, numbers_of(strategy))
    assert list(told) == ["v_t"] and list(arrays) == ["v_t/0"]


def killing(last, app=client_app):
    """The app; with its message number `last` the server dies."""
    left = {"n": last}

    def until_then(message, context):
        left["n"] -= 1
        if left["n"] < 0:
            raise SystemExit  # LocalGrid takes what is an Exception for the node's own
        return app(message, context)

    return until_then


def test_a_checkpoint_of_another_method_is_refused(tmp_path):
    config, other = config_of("heart", "fed-ts"), config_of("heart", "fed-bias")
    with pytest.raises(SystemExit):
        flower(config, grid_of(config, killing(6)), folder=tmp_path)
    with pytest.raises(FedCalError, match="its method is 'fed-ts', not 'fed-bias'"):
        flower(other, grid_of(other), folder=tmp_path)
