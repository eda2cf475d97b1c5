"""The Flower apps in examples/ run, and FedCal is a few lines' change to an app that exists."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from flwr.app import Context, RecordDict

from fedcal import Scaler
from fedcal.base.store import read_json
from fedcal.federate.plan import ENVIRONMENT
from fedcal.transport.flower import LocalGrid

EXAMPLES = Path(__file__).parents[3] / "examples"


def run_app(folder, package, nodes, config, monkeypatch):
    """The app's ServerApp over its ClientApp, as `flwr run` has them, in this process."""
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        del sys.modules[name]
    client, server = (importlib.import_module(f"{package}.{part}_app").app for part in ("client", "server"))
    grid = LocalGrid(client, nodes, config)
    server(grid, Context(0, 0, {}, RecordDict(), config))


def test_hospitals(tmp_path, monkeypatch, capsys):
    nodes = [{"partition-id": i, "num-partitions": 4, "name": name} for i, name in enumerate(HOSPITALS)]
    config = {"rounds": 3, "method": "fedcal-plus", "out": str(tmp_path)}
    run_app(EXAMPLES / "hospitals", "hospitals", nodes, config, monkeypatch)
    about = read_json(tmp_path / "federation.json")
    assert about["measured_by"] == list(HOSPITALS) and about["faults"] == []
    assert about["metrics"]["global"]["nll"] < about["metrics"]["uncal"]["nll"]
    assert "personal scalers" in capsys.readouterr().out


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def test_hospitals_is_an_app_that_flower_takes(tmp_path):
    """`flwr build` checks the app's metadata and components, as `flwr run` does before it sends it off."""
    folder = tmp_path / "hospitals"
    shutil.copytree(EXAMPLES / "hospitals", folder)
    flwr = str(Path(sys.executable).parent / "flwr")
    subprocess.run([flwr, "build"], cwd=folder, check=True, capture_output=True, env=quiet(tmp_path))
    assert len(list(folder.glob("*.fab"))) == 1


def quiet(home):
    return {**os.environ, "FLWR_HOME": str(home / "home"), **ENVIRONMENT}


@pytest.fixture
def quickstart(tmp_path, monkeypatch):
    folder = tmp_path / "app"
    shutil.copytree(EXAMPLES / "quickstart", folder)
    monkeypatch.chdir(folder)
    return folder


def test_quickstart_before(quickstart, monkeypatch, capsys):
    nodes = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
    run_app(quickstart, "quickstart", nodes, {"num-server-rounds": 2, "lr": 0.1}, monkeypatch)
    assert "eval_acc" in capsys.readouterr().out


def test_quickstart_with_the_diff(quickstart, monkeypatch, capsys):
    lines = (quickstart / "fedcal.diff").read_text().splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    assert len(changed) <= 6
    subprocess.run(["git", "apply", "fedcal.diff"], cwd=quickstart, check=True)
    nodes = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
    run_app(quickstart, "quickstart", nodes, {"num-server-rounds": 2, "lr": 0.1}, monkeypatch)
    printed = capsys.readouterr().out
    assert "eval_acc" in printed and "fedcal-ece" in printed
    scaler = Scaler.load(quickstart / "calibrated" / "scaler.safetensors")
    assert scaler.method.name == "fedcal-plus" and scaler.n_classes == 10
    assert read_json(quickstart / "calibrated" / "federation.json")["faults"] == []
