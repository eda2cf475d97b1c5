"""Secure aggregation in the strategy: the plain fit, from totals; nodes that die, and nodes that refuse."""

import json
import math
import os
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import fedcal
from fedcal import FedCalError, Privacy
from fedcal.base.store import read_json
from fedcal.exact.prepared import ALL
from fedcal.exact.queries import LinearSums, Points
from fedcal.federate import task
from fedcal.measure.tally import Tally
from fedcal.protocol import Request, Server
from fedcal.protocol.wire import pack_request
from fedcal.secure import divide
from fedcal.secure.fixed import add, encode
from fedcal.transport.flower import CalibratedStrategy, LocalGrid, calibration_mod, personal_scaler
from fedcal.transport.flower.grid import copy_content
from fedcal.transport.flower.records import record_of
from transport.flower.help import config_of, distance, simulated
from transport.flower.help import grid_of as heart_grid

K = 3
MODEL = ArrayRecord({})


@cache
def samples(node: int, scale: float = 1.0):
    """Skewed labels, and logits that are three times too large: for calibration, then for measuring."""
    rng = np.random.default_rng(node)
    y = rng.choice(K, size=80, p=rng.dirichlet(np.full(K, 2.0)))
    z = 3 * (rng.normal(size=(80, K)) + 1.5 * np.eye(K)[y])
    logits, labels = scale * z, y
    return {"held-out": (logits[:40], labels[:40]), "test": (logits[40:], labels[40:])}


def node_app(scale: float = 1.0, **options):
    mod = calibration_mod(lambda arrays, context, split: samples(context.node_config["i"], scale)[split], **options)

    def train(message, context):
        return Message(RecordDict({"arrays": MODEL}), reply_to=message)

    return lambda message, context: mod(message, context, train)


def grid_of(nodes: int, app=None, **config):
    return LocalGrid(app or node_app(), [{"i": i, "name": f"n{i:02d}", **config} for i in range(nodes)])


def fit(grid: LocalGrid, method: str, **options) -> CalibratedStrategy:
    options = {"timeout": 1.0, "patience": 0.0, "n_classes": K, **options}
    strategy = CalibratedStrategy(FedAvg(), method, **options)
    strategy.start(grid, MODEL, num_rounds=0)
    return strategy


def lose(node: str, stage: str, after: int = 0):
    """The app, but from that node's message of that stage number `after` on, nothing comes from it any more."""
    app, seen = node_app(), {"n": 0, "dead": False}

    def losing(message, context):
        stages = json.loads(message.content["fedcal.request"].get("stages", "[]"))
        if context.node_config["name"] == node and any(part["stage"] == stage for part in stages[:1]):
            seen["n"] += 1
            seen["dead"] |= seen["n"] > after
        return None if context.node_config["name"] == node and seen["dead"] else app(message, context)

    return losing


# --- the same fit ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedcal-plus", "fed-hist", "fed-ts:coverage=site"])
def test_six_nodes_give_the_plain_fit(method):
    plain_grid, grid = grid_of(6), grid_of(6)
    plain, secure = fit(plain_grid, method), fit(grid, method, secure=True)
    assert distance(plain.scaler.params, secure.scaler.params) < 1e-7
    for kind in ("uncal", "global"):
        mine, theirs = plain.metrics()[kind], secure.metrics()[kind]
        assert mine == pytest.approx(theirs, abs=1e-9, nan_ok=True)
    report = secure.report()
    assert report["secure"] == {
        "groups": [6],
        "aggregations": report["calibration_rounds"] + 1,
        "rounding": 3 * 2.0**-64,
    }
    assert report["fitted_by"] == report["measured_by"] == [f"n{i:02d}" for i in range(6)] and report["faults"] == []
    assert report["calibration_rounds"] == plain.report()["calibration_rounds"]
    for node, context in grid.contexts.items():  # each node's prior shift is made there, and stays there
        assert distance(personal_scaler(plain_grid.contexts[node]), personal_scaler(context)) < 1e-7
    n, own = sum(samples(i)["test"][1].shape[0] for i in range(6)), secure.measured.pooled("own")
    assert own.n == n and secure.metrics()["own"]["nll"] == pytest.approx(plain.measured.pooled("own").nll / n)


@pytest.mark.parametrize(("nodes", "most", "groups"), [(63, 63, [63]), (9, 5, [5, 4])])
def test_a_full_group_and_two(monkeypatch, nodes, most, groups):
    """With the method that has fewest rounds: in a full group each takes thousands of keys."""
    monkeypatch.setattr("fedcal.transport.flower.secure.divide", partial(divide, most=most))
    secure = fit(grid_of(nodes), "fed-op:rounds=3", secure=True)
    exact = fedcal.calibrate({str(i): samples(i)["held-out"] for i in range(nodes)}, "fed-op:rounds=3")
    assert distance(exact.params, secure.scaler.params) < 1e-9
    report = secure.report()
    assert report["secure"]["groups"] == groups and len(report["fitted_by"]) == nodes and report["faults"] == []
    logits, labels = (np.concatenate(part) for part in zip(*(samples(i)["test"] for i in range(nodes)), strict=True))
    tally = Tally.of(secure.scaler.method.apply(secure.scaler.params, logits), labels)
    assert secure.metrics()["global"] == pytest.approx(tally.summary(), abs=1e-9)


@pytest.mark.parametrize("scale", [1e9, 1e14])
def test_logits_of_any_large_scale(scale):
    """Sums beyond the range are noticed, nothing is clipped: the request is made again with more words."""
    plain = fit(grid_of(3, node_app(scale)), "fed-bias")
    secure = fit(grid_of(3, node_app(scale)), "fed-bias", secure=True)
    assert float(secure.scaler.params["bias"][0]) == pytest.approx(float(plain.scaler.params["bias"][0]), rel=1e-6)
    assert secure.report()["secure"]["aggregations"] > secure.report()["calibration_rounds"] + 1
    assert secure.metrics()["global"]["nll"] == pytest.approx(plain.metrics()["global"]["nll"], abs=1e-6)


def test_a_node_without_samples_adds_nothing():
    def logits(arrays, context, split):
        z, y = samples(context.node_config["i"])[split]
        return (z[:0], y[:0]) if context.node_config["i"] == 1 else (z, y)

    def app(message, context):
        return calibration_mod(logits)(message, context, None)

    plain, secure = fit(grid_of(4, app), "fedcal-plus"), fit(grid_of(4, app), "fedcal-plus", secure=True)
    assert distance(plain.scaler.params, secure.scaler.params) < 1e-9 and secure.report()["faults"] == []


def test_the_run_folder_of_a_federation_shows_all_nodes_together(tmp_path):
    config = config_of("heart", "fed-ts")
    options = {"secure": True, "timeout": 1.0, "patience": 0.0}
    for _ in range(2):  # the second run in a process began with the model of the first
        strategy = task.serve(heart_grid(config), json.dumps(config.to_dict()), options, str(tmp_path))
    results = read_json(tmp_path / "results.json")
    assert results["data"]["clients"] == ["all nodes"] and (tmp_path / "report.html").exists()
    ours, theirs = results["methods"]["fed-ts"]["global"], simulated(config).metrics
    assert all(ours[name] == pytest.approx(theirs[name], abs=1e-6) for name in ("ece", "nll", "accuracy"))
    assert read_json(tmp_path / "federation.json")["secure"]["groups"] == [4] == [len(strategy.report()["fitted_by"])]


# --- what is refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "method", "words"),
    [(2, "fed-ts", "needs 3 to 63 nodes in a group, not 2"), (4, "fedcal", "does not only add")],
)
def test_what_cannot_be_aggregated_securely(nodes, method, words):
    with pytest.raises(FedCalError, match=words):
        fit(grid_of(nodes), method, secure=True)


@pytest.mark.parametrize("by", ["mod", "config"])
def test_a_node_may_refuse_whatever_is_not_aggregated_securely(by):
    grid = grid_of(3, node_app(secure=True)) if by == "mod" else grid_of(3, **{"fedcal-secure": True})
    with pytest.raises(FedCalError, match="replies under secure aggregation only"):
        fit(grid, "fed-ts")
    assert fit(grid, "fed-ts", secure=True).report()["faults"] == []


def send(grid: LocalGrid, server: Server, phase: str, **more) -> Message:
    """The first node's reply to the server's request, sent by hand."""
    record = record_of(pack_request(server.plan, server.request), phase=phase, model="", bins=15, **more)
    content = RecordDict({"fedcal.request": record, "fedcal.model": MODEL, "arrays": MODEL})
    return next(iter(grid.send_and_receive([Message(content, min(grid.get_node_ids()), "train")], timeout=5)))


def at_once(app, grid: LocalGrid, message: Message) -> list[Message | str]:
    """What a node replies to a message twice, where both begin with the same context, as two processes of Flower's do."""
    context, found = grid.contexts[message.metadata.dst_node_id], []
    for _ in range(2):
        copy = Context(context.run_id, context.node_id, context.node_config, copy_content(context.state), {})
        try:
            found.append(app(Message(copy_content(message.content), context.node_id, "train"), copy))
        except FedCalError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("stage", ["keys", "shares", "mask", "agree", "unmask"])
def test_a_stage_is_done_once_though_messages_begin_with_the_same_secrets(stage):
    """Else a server could have two vectors under the same masks, or shares by two lists of who is left."""
    app, seen = node_app(), []

    def twice(message, context):
        stages = json.loads(message.content["fedcal.request"]["stages"])
        if not seen and context.node_config["name"] == "n01" and stage in [part["stage"] for part in stages]:
            seen.extend(at_once(app, grid, message))
        return app(message, context)

    grid = grid_of(4, twice)
    fit(grid, "fed-ts", secure=True)
    assert not isinstance(seen[0], str) and seen[1].startswith("another message has gone on")


def test_turns_leave_two_files_of_a_run_for_a_month(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    fit(grid_of(3), "fed-ts", secure=True)
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and len(list(folder.iterdir())) == 6
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    (folder / "gone").symlink_to("nowhere")  # as a file that another node renames meanwhile
    fit(grid_of(4), "fed-ts", secure=True)
    assert len(list(folder.iterdir())) == 8 + 1


def test_a_folder_of_turns_that_others_may_change_is_refused(tmp_path, monkeypatch):
    """Another user of the machine could make it before, rename its files back, and help a server to the same masks twice."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"fedcal-turns-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(FedCalError, match="is not this user's alone"):
        fit(grid_of(3), "fed-ts", secure=True)


@pytest.mark.parametrize("stages", [{}, {"stages": "[]"}])
@pytest.mark.parametrize("phase", ["train", "reply"])
def test_no_phase_makes_a_secure_node_reply_openly(phase, stages):
    """A request of the phase that trains is replied to openly: empty stages beside it must not let it through."""
    reply = send(grid_of(3, node_app(secure=True)), Server("fedcal-plus", K), phase, **stages)
    openly = b"" if reply.has_error() else reply.content["fedcal.reply"]["data"]
    assert openly == b"" and (phase == "reply" or "secure aggregation only" in reply.error.reason)


def test_a_node_that_adds_a_share_of_the_noise_replies_within_totals_only():
    privacy = Privacy(1.0, where="distributed", nodes=1000)
    reply = send(grid_of(3, node_app(privacy=privacy)), Server("fed-ts", K, privacy=privacy), "reply")
    assert reply.has_error() and "secure aggregation only" in reply.error.reason


def test_distributed_noise_is_enough_in_every_total(monkeypatch):
    """Each total holds one group's shares of the noise, or those that are left of it: neither server nor node takes less."""
    privacy = Privacy(8.0, where="distributed", nodes=6)
    monkeypatch.setattr("fedcal.transport.flower.secure.divide", partial(divide, most=3))
    with pytest.raises(FedCalError, match="a total of 3 nodes has less noise than nodes=6"):
        fit(grid_of(6, node_app(privacy=privacy)), "fed-ts", secure=True, privacy=privacy)
    server = replace(privacy, nodes=3)  # one that takes less: its nodes refuse
    with pytest.raises(FedCalError, match="nodes are left"):
        fit(grid_of(6, node_app(privacy=privacy)), "fed-ts", secure=True, privacy=server)


def test_microscopic_logits_are_refused_by_their_node():
    """For one model only: by many, a server would learn a node's largest logit under each, which is not masked."""
    grid = grid_of(3)
    for scale, words in ((1e-9, "multiply logits"), (1e-8, "this site has joined"), (1e-7, "this site has joined")):
        grid.app = node_app(scale)
        strategy = CalibratedStrategy(FedAvg(), "fed-ts", n_classes=K, secure=True, timeout=1.0, patience=0.0)
        with pytest.raises(FedCalError, match="nodes are left"):
            strategy.start(grid, MODEL, num_rounds=0)
        assert all(words in fault["reason"] for fault in strategy.report()["faults"])


def test_a_node_remembers_that_it_has_refused_for_its_samples():
    """Refusals are not masked: by many of them a server would learn a node's sums."""
    plan, grid = Server("fed-bias", K).plan, grid_of(1)

    def says(number, scale):
        query = LinearSums((Points("bias", ALL, "none", np.array([[scale, 0, 0, 0]])),))
        data = pack_request(plan, Request(plan.federation, number, query))
        records = {"fedcal.request": record_of(data, phase="reply", model="", bins=0), "fedcal.model": MODEL}
        (reply,) = grid.send_and_receive([Message(RecordDict(records), 1, "train")], timeout=5)
        return reply.error.reason if reply.has_error() else ""

    assert says(1, 1.0) == ""
    assert "which no fit comes to" in says(2, 1e9)
    assert "replies no more" in says(3, 1e9) and "replies no more" in says(4, 1.0)


@pytest.mark.parametrize("keys", [["00" * 32, "02" * 32], ["02" * 32, "02" * 32], ["02" * 32, "02" * 31 + "82"]])
def test_a_node_with_keys_that_nobody_can_use_is_left_out(keys):
    """The server refuses and names it: the other nodes never see its keys, and do not refuse the server for them."""
    inner = node_app()

    def app(message, context):
        stages = json.loads(message.content["fedcal.request"].get("stages", "[]"))
        reply = inner(message, context)
        if context.node_config["name"] == "n02" and any(part["stage"] == "keys" for part in stages):
            record = reply.content["fedcal.reply"]
            parts = json.loads(record["stages"])
            record["stages"] = json.dumps([{**part, "keys": keys} if "version" in part else part for part in parts])
        return reply

    report = fit(grid_of(6, app), "fed-ts", secure=True).report()
    assert [fault["name"] for fault in report["faults"]] == ["n02"] and len(report["fitted_by"]) == 5
    assert "cannot be used" in report["faults"][0]["reason"]


def lying(name, value):
    """The app, but the replies of node n02 hold this in place of what it says."""
    inner = node_app()

    def app(message, context):
        reply = inner(message, context)
        if context.node_config["name"] == "n02":
            reply.content["fedcal.reply"][name] = value
        return reply

    return app


STAGES = {"number": 7, "deep": "[" * 100_000, "text": '["keys"]', "table": "{}", "long": f"[{'[],' * 400_000}[]]"}


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_a_node_whose_stages_cannot_be_read_is_left_out(stages):
    report = fit(grid_of(4, lying("stages", stages)), "fed-ts", secure=True).report()
    assert [fault["name"] for fault in report["faults"]] == ["n02"] and len(report["fitted_by"]) == 3


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_a_node_refuses_stages_that_it_cannot_read(stages):
    reply = send(grid_of(1), Server("fed-ts", K), "reply", stages=stages)
    assert reply.has_error() and "FedCalError" in reply.error.reason and "secure aggregation" in reply.error.reason


@pytest.mark.parametrize(("openly", "left"), [(7, 4), (bytes(1 << 21), 3), (b"{}", 3)])
def test_what_a_node_says_openly_is_read_if_it_can_be(openly, left):
    assert len(fit(grid_of(4, lying("openly", openly)), "fed-ts", secure=True).report()["fitted_by"]) == left


@pytest.mark.filterwarnings("ignore:privacy")  # whatever the noise makes of the fit
def test_a_private_measurement_beyond_all_samples_is_refused():
    """One node adds to its masked vector what no samples give: nothing may be computed from that total."""
    privacy, inner = Privacy(300.0, where="distributed", nodes=3), node_app()

    def app(message, context):
        phase = message.content["fedcal.request"]["phase"]
        reply = inner(message, context)
        record = reply.content["fedcal.reply"]
        if context.node_config["i"] == 1 and phase == "measure" and record["data"]:
            vector = np.frombuffer(record["data"], "<u8").reshape(2, -1)
            added = encode(np.eye(1, vector.shape[1], 4)[0] * 1e17, 2)
            record["data"] = add(vector, added).astype("<u8").tobytes()
        return reply

    with pytest.raises(FedCalError, match="beyond all that 3 samples can add up to"):
        fit(grid_of(3, app), "fed-ts", secure=True, privacy=privacy)


def test_where_no_node_goes_on_the_error_says_why():
    with pytest.raises(FedCalError, match=r"0 nodes are left.*\(error: .*give the server privacy too"):
        fit(grid_of(3, node_app(privacy=Privacy(1.0, where="local"))), "fed-ts", secure=True)


def test_a_total_that_no_samples_give_is_refused():
    """One node lies about its sums: it cannot be named, but the total is refused where no samples can give it."""

    def app(message, context):
        liar = context.node_config["i"] == 1
        mod = calibration_mod(lambda a, c, split: samples(c.node_config["i"])[split])
        if not liar or "fedcal.request" not in message.content:
            return mod(message, context, None)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fedcal.transport.flower.node.Client.reply", _lie)
            return mod(message, context, None)

    with pytest.raises(FedCalError, match="all nodes's reply: 'n' holds a negative count"):
        fit(grid_of(4, app), "fed-bias", secure=True)


def _lie(self, request):
    from fedcal.protocol import Reply

    content = self.method.reply(request.query, self.samples, {}).content
    return Reply({name: value - 1000 for name, value in content.items()}, 40, request.digest)


# --- nodes that fall away ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "method"), [("mask", "fedcal-plus"), ("unmask", "fed-hist")])
def test_a_node_killed_in_the_middle_of_a_round_is_survived(stage, method):
    """The round that is on ends without it, or with it where its vector was there; later ones go on without it."""
    secure = fit(grid_of(6, lose("n02", stage, after=2)), method, secure=True)
    report = secure.report()
    assert [(fault["name"], fault["round"]) for fault in report["faults"]] == [("n02", 3)]
    assert report["fitted_by"] == report["measured_by"] == ["n00", "n01", "n03", "n04", "n05"]
    assert report["secure"]["aggregations"] == report["calibration_rounds"] + 1  # no round was run again
    assert report["restarts"] == 0 and secure.server.ledger.dropped == ["n02"]
    assert secure.metrics()["global"]["nll"] < secure.metrics()["uncal"]["nll"]


def test_a_node_killed_while_it_measures():
    alive = fit(grid_of(6), "fed-ts", secure=True)
    rounds = alive.report()["calibration_rounds"]
    secure = fit(grid_of(6, lose("n02", "mask", after=rounds)), "fed-ts", secure=True)
    assert distance(alive.scaler.params, secure.scaler.params) < 1e-9
    assert len(secure.report()["fitted_by"]) == 6 and len(secure.report()["measured_by"]) == 5
    assert secure.measured.pooled("uncal").n == 5 * 40


def test_the_fit_of_those_who_are_left_equals_theirs():
    """A temperature has no memory of earlier rounds: without the node from round 2 on it becomes that of the others."""
    secure = fit(grid_of(6, lose("n02", "mask", after=1)), "fed-ts", secure=True)
    five = LocalGrid(node_app(), [{"i": i, "name": f"n{i:02d}"} for i in (0, 1, 3, 4, 5)])
    assert distance(fit(five, "fed-ts").scaler.params, secure.scaler.params) < 1e-6


def test_where_too_many_die_the_round_is_run_again_and_with_fewer_than_three_it_ends():
    first, second = lose("n01", "mask", after=1), lose("n02", "mask", after=1)

    def app(message, context):
        return (first if context.node_config["name"] == "n01" else second)(message, context)

    secure = fit(grid_of(5, app), "fed-ts", secure=True)
    assert secure.report()["fitted_by"] == ["n00", "n03", "n04"]
    assert secure.report()["secure"]["aggregations"] == secure.report()["calibration_rounds"] + 2
    with pytest.raises(FedCalError, match="2 nodes are left, and secure aggregation needs 3"):
        fit(grid_of(4, app), "fed-ts", secure=True)


@pytest.mark.filterwarnings("ignore:privacy")  # whatever the noise makes of the fit
@pytest.mark.parametrize(("lost", "has_scaler"), [(4, True), (7, False)])
def test_a_total_that_is_lost_costs_privacy(tmp_path, lost, has_scaler):
    """Two nodes of six fall away while a total is unmasked: the others pay twice, and cannot measure, or end the fit."""
    privacy = Privacy(300.0, where="distributed", nodes=3)
    inner, gone = node_app(privacy=privacy), Counter[str]()

    def app(message, context):
        stages = json.loads(message.content["fedcal.request"].get("stages", "[]"))
        name = context.node_config["name"]
        gone[name] += name < "n02" and any(part["stage"] == "unmask" for part in stages)
        return None if gone[name] >= lost else inner(message, context)

    with pytest.raises(FedCalError, match=r"0 nodes are left.*privacy budget of ε = 300 is used up"):
        fit(grid_of(6, app), "fed-bias", secure=True, privacy=privacy, folder=tmp_path)
    assert (tmp_path / "scaler.safetensors").exists() == has_scaler


def test_a_node_that_loses_the_models_logits_is_sent_the_model_again():
    app, forgot = node_app(), []

    def forgetful(message, context):
        if context.node_config["name"] == "n02" and not forgot:
            forgot.extend(filter(None, [context.state.config_records.pop("fedcal.state", None)]))
        return app(message, context)

    secure = fit(grid_of(4, forgetful), "fed-bias", secure=True)
    assert forgot and secure.report()["faults"] == [] and len(secure.report()["fitted_by"]) == 4


def test_nodes_with_identities_take_no_stranger(tmp_path):
    """A server that adds a node of its own is refused by all others; without it the same nodes aggregate."""
    for i in range(4):
        key = Ed25519PrivateKey.generate()
        folder = tmp_path / ("peers" if i < 3 else "elsewhere")
        folder.mkdir(exist_ok=True)
        (tmp_path / str(i)).write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"{i}.pub").write_bytes(public)
    nodes = [
        {"i": i, "name": f"n{i:02d}", "fedcal-key": str(tmp_path / str(i)), "fedcal-peers": str(tmp_path / "peers")}
        for i in range(4)
    ]
    assert fit(LocalGrid(node_app(), nodes[:3]), "fed-ts", secure=True).report()["faults"] == []
    with pytest.raises(FedCalError, match="nodes are left"):
        fit(LocalGrid(node_app(), nodes), "fed-ts", secure=True)


def test_a_node_that_loses_its_secrets_is_left_out():
    app, forgot = node_app(), []

    def forgetful(message, context):
        stages = json.loads(message.content["fedcal.request"]["stages"])
        if context.node_config["name"] == "n02" and stages[0]["stage"] == "unmask" and not forgot:
            forgot.append(context.state.config_records.pop("fedcal.secrets"))
        return app(message, context)

    report = fit(grid_of(6, forgetful), "fed-ts", secure=True).report()
    assert "this node lost its part of a secure aggregation" in report["faults"][0]["reason"]
    assert len(report["fitted_by"]) == 5


def test_a_group_that_becomes_too_small_is_left_out(monkeypatch):
    """Eight nodes in two groups of four: of one, all but two die."""
    monkeypatch.setattr("fedcal.transport.flower.secure.divide", partial(divide, most=4))
    inner = node_app()

    def app(message, context):
        dead = context.node_config["i"] % 2 and context.node_config["i"] > 3
        stage = json.loads(message.content["fedcal.request"]["stages"])[0]["stage"]
        return None if dead and stage == "mask" else inner(message, context)

    report = fit(grid_of(8, app), "fed-ts", secure=True).report()
    assert report["secure"]["groups"] == [4] and report["fitted_by"] == ["n00", "n02", "n04", "n06"]
    assert sum("fewer than three nodes" in fault["reason"] for fault in report["faults"]) == 2


def grid_with_a_killed_server():
    """Four nodes whose server is killed at the 30th message, and how many messages there were."""
    inner, count = node_app(), {"n": 0}

    def app(message, context):
        count["n"] += 1
        if count["n"] == 30:
            raise KeyboardInterrupt
        return inner(message, context)

    return grid_of(4, app), count


def test_a_killed_server_goes_on_from_its_checkpoint(tmp_path):
    grid, _ = grid_with_a_killed_server()
    with pytest.raises(KeyboardInterrupt):
        fit(grid, "fed-bias", secure=True, folder=tmp_path)
    secure = fit(grid, "fed-bias", secure=True, folder=tmp_path)
    assert distance(fit(grid_of(4), "fed-bias").scaler.params, secure.scaler.params) < 1e-9
    assert secure.report()["faults"] == []


@pytest.mark.parametrize("secure", [True, False])
def test_a_run_goes_on_with_secure_aggregation_as_it_began(tmp_path, secure):
    """Without it, nodes would send openly what they have masked before; with it, masked what they have sent openly."""
    grid, count = grid_with_a_killed_server()
    with pytest.raises(KeyboardInterrupt):
        fit(grid, "fedcal-plus", secure=secure, folder=tmp_path)
    sent = count["n"]
    with pytest.raises(FedCalError, match=f"the run began {'with' if secure else 'without'} secure aggregation"):
        fit(grid, "fedcal-plus", secure=not secure, folder=tmp_path)
    assert count["n"] == sent


# --- what leaves a node -----------------------------------------------------------------------------------------------------


def test_what_leaves_a_node_is_masked():
    """Its bytes hold neither its sums nor its tallies, in any encoding of ours; the same runs give unrelated bytes."""
    app, runs = node_app(), []

    def listening(message, context):
        reply = app(message, context)
        record = reply.content["fedcal.reply"]
        if context.node_config["i"] == 0:
            runs[-1].append((record["data"], record["stages"].encode(), record.get("openly", b"")))
        return reply

    for _ in range(2):
        runs.append([])
        fit(grid_of(4, listening), "fed-bias", secure=True)
    logits, labels = samples(0)["held-out"]
    counts = np.bincount(labels, minlength=K).astype(float)
    tally = Tally.of(*samples(0)["test"])
    secrets = [counts.tobytes(), (logits**2).sum().tobytes(), tally.reliability.count.astype("<i8").tobytes()]
    sent = b"".join(part for message in runs[0] for part in message)
    assert not any(secret in sent for secret in secrets)
    first, second = ([data for data, _, _ in run if data] for run in runs)
    assert len(first) == len(second) > 5 and all(len(a) == len(b) for a, b in zip(first, second, strict=True))
    for a, b in zip(first, second, strict=True):
        x, y = (np.unpackbits(np.frombuffer(data, np.uint8)) for data in (a, b))
        error = 6 * 0.5 / math.sqrt(len(x))
        assert abs(x.mean() - 0.5) < error and abs((x ^ y).mean() - 0.5) < error
