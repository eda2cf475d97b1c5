"""The Flower apps in examples/ run, and FedCal is a few lines' change to an app that exists."""

import difflib
import importlib
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
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


@pytest.mark.parametrize("example", ["hospitals", "quickstart", "quickstart-calibrated"])
def test_examples_are_apps_that_flower_takes(example, tmp_path):
    """`flwr build` checks the app's metadata and components, as `flwr run` does before it sends it off."""
    folder = tmp_path / example
    shutil.copytree(EXAMPLES / example, folder)
    flwr = str(Path(sys.executable).parent / "flwr")
    subprocess.run([flwr, "build"], cwd=folder, check=True, capture_output=True, env=quiet(tmp_path))
    assert len(list(folder.glob("*.fab"))) == 1


def quiet(home):
    return {**os.environ, "FLWR_HOME": str(home / "home"), **ENVIRONMENT}


NODES = [{"partition-id": i, "num-partitions": 3} for i in range(3)]
CONFIG = {"num-server-rounds": 2, "lr": 0.1}


def test_quickstart_without_fedcal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_app(EXAMPLES / "quickstart", "quickstart", NODES, CONFIG, monkeypatch)
    assert "eval_acc" in capsys.readouterr().out
    assert not any("import fedcal" in path.read_text() for path in (EXAMPLES / "quickstart").rglob("*.py"))


def test_quickstart_with_fedcal_says_before_and_after(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_app(EXAMPLES / "quickstart-calibrated", "quickstart", NODES, CONFIG, monkeypatch)
    printed = capsys.readouterr().out
    assert "eval_acc" in printed and "before calibration" in printed and "one scaler for all" in printed
    scaler = Scaler.load(tmp_path / "calibrated" / "scaler.safetensors")
    assert scaler.method.name == "fedcal-plus" and scaler.n_classes == 10
    assert read_json(tmp_path / "calibrated" / "federation.json")["faults"] == []


def test_the_difference_is_what_the_readme_shows():
    """A few lines of two files; everything else is the same."""
    before, after = EXAMPLES / "quickstart", EXAMPLES / "quickstart-calibrated"
    assert (before / "quickstart" / "task.py").read_bytes() == (after / "quickstart" / "task.py").read_bytes()
    lines = []
    for name in ("client_app.py", "server_app.py"):
        old, new = ((folder / "quickstart" / name).read_text().splitlines(keepends=True) for folder in (before, after))
        lines += difflib.unified_diff(old, new, f"quickstart/{name}", f"quickstart/{name}", n=1)
    assert "".join(lines) in (before / "README.md").read_text(encoding="utf-8")
    assert sum(line[:1] == "+" and line[:3] != "+++" for line in lines) <= 5


def test_flower_brings_no_pytorch():
    """The extra's packages, and what they need themselves, leave the installed PyTorch alone."""
    extra = [
        need for need in metadata.requires("fedcal") or [] if 'extra == "flower"' in need or "extra == 'flower'" in need
    ]
    names = [re.match(r"[\w-]+", need)[0] for need in extra]
    assert sorted(names) == ["dp-accounting", "flwr"]
    for name in names:
        needs = [need for need in metadata.requires(name) or [] if "extra ==" not in need]
        assert not any(need.startswith(("torch", "nvidia")) for need in needs), needs
