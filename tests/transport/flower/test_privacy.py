"""Differential privacy of additive methods."""

import math
import secrets

import numpy as np
import pytest

from transport.flower.help import config_of, flower, grid_of

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")
pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedcal[privacy]'")

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedcal
from fedcal import FedCalError, FedCalWarning
from fedcal.cli.federate import tell
from fedcal.exact.prior_shift import without_release
from fedcal.federate import task
from fedcal.methods import get_method
from fedcal.protocol import Server
from fedcal.protocol.policy import private_rounds
from fedcal.protocol.wire import pack_request, unpack_reply
from fedcal.transport.flower import CalibratedStrategy, LocalGrid, Privacy, calibration_mod
from fedcal.transport.flower.records import data_of, pack_scaler, record_of

K = 10


def clients(sizes=(60, 80, 120, 200, 50, 90)):
    rng = np.random.default_rng(0)
    found = []
    for n in sizes:
        y = rng.choice(K, size=n, p=rng.dirichlet(np.full(K, 0.5)))
        z = 3 * (rng.normal(size=(n, K)) + 1.5 * np.eye(K)[y])
        found.append((z, y))
    return found


def nodes_with(privacy):
    app = ClientApp(mods=[calibration_mod(task.logits, privacy=privacy)])
    app.train()(task.train)
    return app


@pytest.mark.parametrize("where", ["central", "local", "distributed"])
def test_a_private_federation_is_fitted_and_measured_within_its_budget(where):
    config = config_of("digits", "fedcal-plus")
    privacy = Privacy(300.0, where=where, nodes=3)  # metrics are noised too: at 30, noise now and then hides the gain
    own = None if where == "central" else privacy
    secure = where == "distributed"
    strategy, _ = flower(config, grid_of(config, nodes_with(own)), privacy=privacy, secure=secure)
    report = strategy.report()
    assert (
        report["faults"] == []
        and len(report["fitted_by"]) == 3
        and 8 <= report["calibration_rounds"] <= private_rounds(get_method("fedcal-plus"))
    )
    assert report["privacy"]["epsilon"] == pytest.approx(300.0, rel=1e-3) and report["privacy"]["where"] == where
    assert all(list(tallies) == ["all nodes"] for tallies in strategy.measured.tallies.values())  # no single node's
    assert report["metrics"]["global"]["nll"] < report["metrics"]["uncal"]["nll"]
    told_by = {"central": set(), "local": set(report["fitted_by"]), "distributed": {"all nodes"}}
    assert set(report["node_privacy"]) == told_by[where]


def test_a_fit_that_changes_nothing_says_so(tmp_path, capsys):
    """Before and after are the same probabilities, and have the same metrics, though each view has its own noise."""
    config = config_of("digits", "fed-ts")
    with pytest.warns(FedCalWarning, match="probabilities stay as they are"):
        strategy, _ = flower(config, grid_of(config), privacy=Privacy(0.05), folder=tmp_path)
    report = strategy.report()
    assert report["privacy"]["fallback"] and np.isnan(report["metrics"]["uncal"]["nll"])
    assert repr(report["metrics"]["global"]) == repr(report["metrics"]["uncal"])
    assert "changes nothing" in strategy.before_and_after()

    tell(tmp_path)
    said = capsys.readouterr().out
    assert report["privacy"]["epsilon"] < 0.03 and "ε = 0.05, δ" in said  # noise decided to end early: only this holds
    assert "\nafter" not in said and "before and after too few samples to tell" in said and "stay as they are" in said


def test_a_noised_nll_comes_with_its_noise(tmp_path, capsys):
    config = config_of("digits", "fed-ts")
    strategy, _ = flower(config, grid_of(config), privacy=Privacy(100.0), folder=tmp_path)
    noise = strategy.report()["privacy"]["nll_noise"]
    assert 0 < noise < 0.5 and f"standard deviation of {noise:.3g}" in strategy.before_and_after()
    tell(tmp_path)
    assert capsys.readouterr().out.count(f" ± {noise:.3f}  ECE") == 2


def test_a_node_keeps_its_own_budget():
    """The whole budget is spent, and a node in that state joins no other federation: its budget would begin again."""
    config, privacy = config_of("digits", "fed-ts"), Privacy(30.0, where="local")
    grid = grid_of(config, nodes_with(privacy))
    strategy, _ = flower(config, grid, privacy=privacy)
    report = strategy.report()
    assert report["faults"] == [] and len(report["node_privacy"]) == 3
    assert all(20 < told["epsilon"] < 30 for told in report["node_privacy"].values())  # the rest was for measuring
    with pytest.raises(FedCalError, match="this site has joined federation"):
        flower(config, grid, privacy=privacy)
    grid.app = nodes_with(other := Privacy(10.0, where="local"))  # a share of ε = 30 is none of ε = 10
    with pytest.raises(FedCalError, match=r"was spent under Privacy\(epsilon=30.0"):
        flower(config, grid, privacy=other)


@pytest.mark.parametrize("kept", [False, True])
def test_messages_that_come_at_once_do_not_spend_a_budget_twice(tmp_path, kept):
    """Flower gives both the same context: each would draw noise of its own, and many of them would average it away."""
    privacy = Privacy(4.0, where="local")
    server = Server("fed-ts", K, privacy=privacy)
    mod = calibration_mod(lambda arrays, context, split: clients()[0], privacy=privacy)
    record = record_of(pack_request(server.plan, server.request), phase="reply", model="", bins=15)
    config = {"name": "n", **({"fedcal-state": str(tmp_path)} if kept else {})}
    found, run = [], secrets.randbits(63)
    for _ in range(2):
        content = RecordDict({"fedcal.request": record_of(**record), "fedcal.model": ArrayRecord({})})
        try:
            reply = mod(Message(content, 1, "train"), Context(run, 1, config, RecordDict(), {}), lambda m, c: m)
            found.append(data_of(reply.content["fedcal.reply"]))
        except FedCalError as error:
            found.append(str(error))
    assert found[1] == found[0] if kept else "another message has gone on" in found[1]


def test_a_calibration_sample_does_not_show_in_what_test_samples_measure():
    """A personal scaler is made of calibration samples without noise: under it, one of them would move all test samples."""
    (z, y), privacy = clients((60,))[0], Privacy(1e12, where="local")  # next to no noise
    scaler = fedcal.Scaler(get_method("fedcal-plus"), {"temperature": np.ones(1)} | without_release(np.ones(K), 1.0), K)
    plan = Server("fedcal-plus", K).plan
    asked = record_of(pack_scaler(plan, scaler, privacy), phase="measure", model="", bins=15)

    def measured(calibrated_on):
        def logits(arrays, context, split):
            return (z[:calibrated_on], y[:calibrated_on]) if split == "held-out" else (z, y)

        mod = calibration_mod(logits, privacy)
        grid = LocalGrid(lambda message, context: mod(message, context, None), [{"name": "a"}])
        content = RecordDict({"fedcal.request": asked, "fedcal.model": ArrayRecord({})})
        (reply,) = grid.send_and_receive([Message(content, min(grid.get_node_ids()), "train")], timeout=5)
        assert not reply.has_error(), reply.error
        return unpack_reply(data_of(reply.content["fedcal.reply"]))[1].content["values"]

    assert measured(6).any() and np.allclose(measured(6), measured(7), atol=0.01)


@pytest.mark.parametrize("missing", ["", "alpha", "strengths"])
@pytest.mark.parametrize("classes", [1, 2, K - 1, K, K + 1])
def test_a_refusal_to_measure_does_not_depend_on_the_samples(classes, missing):
    """A prior of fewer classes failed only where there were samples, and the error told how many and their highest label."""
    (z, y), privacy, plan = clients((60,))[0], Privacy(4.0, where="local"), Server("fedcal-plus", K).plan
    params = {"temperature": np.ones(1)} | without_release(np.ones(classes), 1.0)
    params.pop(missing, None)
    replies = refusals(privacy, pack_scaler(plan, fedcal.Scaler(plan.method, params, K), privacy), "measure", z, y)
    assert len(set(replies)) == 1 and (replies[0] == "") == (classes == K and not missing)


@pytest.mark.parametrize("classes", [2, K - 1, K, K + 1])
def test_a_refusal_of_a_request_does_not_depend_on_the_samples(classes):
    (z, y), privacy = clients((60,))[0], Privacy(4.0, where="local")
    server = Server("fed-bias", classes, privacy=privacy)
    replies = refusals(privacy, pack_request(server.plan, server.request), "reply", z, y)
    assert len(set(replies)) == 1 and (replies[0] == "") == (classes == K)


def refusals(privacy, data, phase, z, y):
    """What a node with these samples, with some of them or with none says, in order to refuse; "" if it replies."""
    asked, found = record_of(data, phase=phase, model="", bins=15), []
    for chosen in (y >= 0, y == 0, y == 9, np.arange(60) < 1, np.arange(60) < 5, y < 0):
        mod = calibration_mod(lambda arrays, context, split, chosen=chosen: (z[chosen], y[chosen]), privacy)
        grid = LocalGrid(lambda message, context, mod=mod: mod(message, context, None), [{"name": "a"}])
        content = RecordDict({"fedcal.request": asked, "fedcal.model": ArrayRecord({})})
        (reply,) = grid.send_and_receive([Message(content, min(grid.get_node_ids()), "train")], timeout=5)
        found.append(reply.error.reason if reply.has_error() else "")
    return found


@pytest.mark.filterwarnings("ignore:privacy")  # whatever the noise makes of the fit
def test_nodes_with_a_privacy_of_their_own_are_measured_too():
    """Their replies to the request that measures were refused: it was not the server's, but one of their own ε."""
    config, strict = config_of("digits", "fed-ts"), Privacy(40.0, where="local")
    strategy, _ = flower(config, grid_of(config, nodes_with(strict)), privacy=Privacy(300.0, where="local"))
    report = strategy.report()
    assert report["faults"] == [] and len(report["measured_by"]) == 3
    assert {told["of_epsilon"] for told in report["node_privacy"].values()} == {40.0}


@pytest.mark.parametrize(
    ("privacy", "words"),
    [
        (Privacy(math.inf), "epsilon is infinite"),
        (Privacy(4.0, measure=0.0), "measure=0 leaves no budget"),
        (Privacy(4.0, where="distributed"), "needs nodes=…"),
    ],
)
def test_what_could_not_be_sent_or_measured_is_refused_at_once(privacy, words):
    with pytest.raises(FedCalError, match=words):
        CalibratedStrategy(FedAvg(), "fed-ts", n_classes=K, privacy=privacy, secure=True)


def test_a_private_node_refuses_a_server_without_privacy():
    config = config_of("digits", "fed-ts")
    with pytest.raises(FedCalError, match="private requests only"):
        flower(config, grid_of(config, nodes_with(Privacy(8.0, where="local"))))
