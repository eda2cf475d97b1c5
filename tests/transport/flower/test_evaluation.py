"""An evaluation over Flower's nodes is that of their test samples in one place; nodes that do not share are left out."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import ArrayRecord, Context
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

import fedcal
from fedcal.transport.flower import CalibratedStrategy, LocalGrid, calibration_mod


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
