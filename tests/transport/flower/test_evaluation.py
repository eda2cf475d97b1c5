"""An evaluation over Flower's nodes is that of their test samples in one place; nodes that do not share are left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedcal
from fedcal import FedCalError, Scaler
from fedcal.base.codec import pack, unpack
from fedcal.methods import get_method
from fedcal.protocol import Plan, Policy, Privacy
from fedcal.transport.flower import CalibratedStrategy, LocalGrid, calibration_mod
from fedcal.transport.flower.evaluation import asked_of, pack_evaluation, read_node
from fedcal.transport.flower.records import MODEL, REPLY, REQUEST, fingerprint, record_of


def samples(name: str, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A node's logits, too confident, and its labels."""
    rng = torch.Generator().manual_seed(sum(map(ord, name + split)))
    z = torch.randn(200, generator=rng, dtype=torch.float64)
    return torch.stack([0 * z, 3 * z], dim=1), (torch.rand(200, generator=rng) < z.sigmoid()).long()


def groups(context: Context) -> dict[str, list[str]]:
    return {"half": ["first"] * 100 + ["second"] * 100}


def logits(arrays: ArrayRecord, context: Context, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    return samples(str(context.node_config["name"]), split)


def app_of(**options):
    app = ClientApp(mods=[calibration_mod(logits, **options)])
    app.train()(lambda message, context: message)  # Flower wants one; nothing is trained here
    return app


def test_the_same_as_in_one_place(tmp_path):
    sharing, silent = app_of(share_scores=True, groups=groups), app_of()

    def app(message, context):
        return (silent if context.node_config["name"] == "c" else sharing)(message, context)

    grid = LocalGrid(app, [{"partition-id": i, "name": name} for i, name in enumerate("abc")], {})
    options = {"n_classes": 2, "timeout": 5.0, "patience": 0.0, "folder": tmp_path, "thresholds": (0.3,)}
    strategy = CalibratedStrategy(FedAvg(fraction_evaluate=0.0), "fed-ts", **options)
    strategy.start(grid, ArrayRecord({"w": torch.zeros(1)}), num_rounds=0)
    found = strategy.evaluation
    assert found is not None and list(found.sites) == ["a", "b"]
    sites = {name: samples(name, "test") for name in "ab"}
    expected = fedcal.evaluate(sites, strategy.scaler, {name: groups(None) for name in "ab"}, thresholds=(0.3,))
    assert found.to_json() == expected.to_json() and list(found.groups) == ["half=first", "half=second"]
    assert (tmp_path / "evaluation.json").exists()
    assert [fault["name"] for fault in strategy.report()["faults"]] == ["c"]
    assert "does not share its scores" in strategy.report()["faults"][0]["reason"]


REFUSING = {  # what the app says, and what the node's config says
    "nothing": ({}, {}),
    "a policy": ({"policy": Policy()}, {}),
    "secure": ({"secure": True}, {}),
    "the config": ({"share_scores": True}, {"fedcal-share-scores": False}),
    "secure by the config": ({"share_scores": True}, {"fedcal-secure": True}),
    "privacy": ({"share_scores": True, "privacy": Privacy(5.0, where="local")}, {}),
}
SHARING = {
    "secure": ({"secure": True, "share_scores": True}, {}),
    "secure by the config": ({}, {"fedcal-secure": True, "fedcal-share-scores": True}),
    "the config": ({}, {"fedcal-share-scores": True}),
}


def asked_alone(options, config, change=lambda about: about, min_count=5):
    """What a node says that is asked for an evaluation, without any other round."""
    plan = Plan(get_method("fed-ts"), 2, 0, (), "f")
    scaler = Scaler(plan.method, {"temperature": np.array(2.0)}, 2)
    model = ArrayRecord({"w": torch.zeros(1)})
    about = {"phase": "evaluate", "model": fingerprint(model), "bins": 15}
    record = record_of(pack_evaluation(plan, scaler, (0.3,)), **change(about))
    grid = LocalGrid(app_of(**options), [{"name": "a", "fedcal-min-count": min_count, **config}], {})
    (reply,) = grid.send_and_receive([Message(RecordDict({REQUEST: record, MODEL: model}), 1, "train")])
    return reply, asked_of(plan, (0.3,))


@pytest.mark.parametrize(("options", "config"), REFUSING.values(), ids=REFUSING.keys())
def test_a_node_shares_nothing_unless_it_says_so(options, config):
    reply, _ = asked_alone(options, config)
    assert reply.has_error() and "does not share its scores" in reply.error.reason
    reply, _ = asked_alone(options, config, lambda about: about | {"stages": "{}"})
    assert reply.has_error()


@pytest.mark.parametrize(("options", "config"), SHARING.values(), ids=SHARING.keys())
def test_a_node_shares_where_it_says_so(options, config):
    reply, asked = asked_alone(options, config)
    assert not reply.has_error(), reply.error
    data = reply.content[REPLY]["data"]
    assert read_node("a", data, asked).sums.total.n == 200
    with pytest.raises(FedCalError, match="another node"):
        read_node("b", data, asked)


def test_a_node_of_few_samples_says_that_it_has_none():
    reply, asked = asked_alone({"share_scores": True, "groups": groups}, {}, min_count=201)
    found = read_node("a", reply.content[REPLY]["data"], asked).sums
    assert found.total.n == 0 and not found.groups


@pytest.mark.parametrize("lie", ["bytes", "another's", "a far loss"])
def test_the_evaluation_goes_on_without_a_node_that_lies(lie):
    sharing, other = app_of(share_scores=True), {}

    def app(message, context):
        phase = message.content[REQUEST]["phase"]
        reply = sharing(message, context)
        name = context.node_config["name"]
        if phase == "evaluate" and name == "b":
            other["b"] = reply.content[REPLY]["data"]
        if phase == "evaluate" and name == "c":
            tensors, about = unpack(reply.content[REPLY]["data"])
            far = tensors["total/samples"].copy()
            far[2:5] *= [1e9, 1e18, 1e27]
            lies = {
                "bytes": b"nonsense",
                "another's": other.get("b", b""),
                "a far loss": pack(tensors | {"total/samples": far}, about),
            }
            reply.content[REPLY]["data"] = lies[lie]
        return reply

    grid = LocalGrid(app, [{"name": name} for name in "abc"], {})
    strategy = CalibratedStrategy(
        FedAvg(fraction_evaluate=0.0), "fed-ts", n_classes=2, timeout=5.0, patience=0.0, thresholds=(0.3,)
    )
    strategy.start(grid, ArrayRecord({"w": torch.zeros(1)}), num_rounds=0)
    assert strategy.evaluation is not None and list(strategy.evaluation.sites) == ["a", "b"]
    assert [fault["name"] for fault in strategy.report()["faults"]] == ["c"]
