"""`fedcal run --data my.npz --model mymodels:build`: the user's own files and functions, and what is wrong with them."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fedcal.cli.main import main
from own_models import patients

MODEL = """
from torch import nn

def build(shape, n_classes):
    return nn.Sequential(nn.Linear(shape[0], 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, n_classes))

number = 3
"""
SHORT = "--rounds 2 --epochs 1 --method uncal --method fed-ts --quiet"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a user's data and models, and nothing of it left in Python afterwards."""
    monkeypatch.chdir(tmp_path)
    np.savez("my data.npz", **patients(80))
    Path("mymodels_.py").write_text(MODEL)
    Path("broken_.py").write_text("import nothing_of_this_name\n")
    Path("raises_.py").write_text("raise RuntimeError('first\\nsecond')\n")
    Path("exits_.py").write_text("import sys; sys.exit('bye')\n")
    before, known = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - known:
        if name.endswith("_") and "." not in name:
            del sys.modules[name]


def call(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        main(shlex.split(words))
    code = end.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err.strip()


def test_own_data_and_model_and_going_on_with_them(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "--data 'my data.npz' --model mymodels_:build"
    assert call(f"run {own} {SHORT} --out whole", capsys) == (0, "")
    config = json.loads(Path("whole/config.json").read_text())
    assert config["model"] == "mymodels_:build" and config["data"].startswith("my_data@")
    assert str(folder) not in Path("whole/config.json").read_text(), "the run folder names no path"

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedcal.simulate.federation.finish", interrupted)
        code, said = call(f"run {own} {SHORT} --out parts", capsys)
    command = said.split("`")[1]
    assert code == 130 and command.startswith("fedcal run --resume --out parts --data")
    code, said = call("run --resume --out parts --quiet", capsys)
    assert code == 2 and "on data of your own" in said
    assert call(command.removeprefix("fedcal ") + " --quiet", capsys) == (0, "")
    assert Path("parts/results.json").read_bytes() == Path("whole/results.json").read_bytes()
    np.savez("my data.npz", **patients(80, seed=5))
    code, said = call(command.removeprefix("fedcal "), capsys)
    assert code == 2 and "was run on other data" in said and "\n" not in said
    assert call("report whole", capsys) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--model nothing_:build", "there is no module nothing_, neither installed nor here"),
        ("--model mymodels_:nothing", "mymodels_ has no nothing; it was found in"),
        ("--model mymodels_:number", "number is int, not a function"),
        ("--model broken_:build", "broken_ needs nothing_of_this_name, which is not installed"),
        ("--model raises_:build", "raises_ cannot be imported (RuntimeError: first)"),
        ("--model exits_:build", "exits_ cannot be imported (SystemExit: bye)"),
        ("--model mymodels_.py:build", "there is no module mymodels_.py"),
        ("--model ../mymodels_:build", "write MODULE:FUNCTION"),
        ("--model mymodels_:", "write MODULE:FUNCTION"),
        ("--model mymodels_", "unknown model 'mymodels_'"),
        ("--data none.npz", "none.npz: no such file"),
        ("--data none.txt", "unknown data set 'none.txt'"),
        ("--data x@0123456789abcdef", "on data of your own, x@0123456789abcdef"),
        ("--data 'my data.npz' --partition iid --clients 99", "the number of clients must lie in 1..64"),
        ("--data 'my data.npz' --clients 3", "has 4 natural clients, not 3"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = call(f"run {words} --out here", capsys)
    assert code == 2 and said in text and "\n" not in text and not Path("here/config.json").exists()


def test_a_file_here_does_not_take_the_place_of_an_installed_module(folder: Path) -> None:
    """`secrets.py` in the current folder, and a model that imports the standard library's: in a process of its own."""
    (folder / "secrets.py").write_text("raise SystemExit('shadowed')\n")
    (folder / "honest_.py").write_text("import secrets\n" + MODEL)
    script = "import sys; sys.path = [p for p in sys.path if p]; from fedcal.cli.entry import main; main(sys.argv[1:])"
    words = shlex.split(f"run --data 'my data.npz' --model honest_:build {SHORT} --out fine")
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_federate_says_that_it_takes_none(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")
    code, text = call("federate --model mymodels_:build --out here", capsys)
    assert code == 2 and "fedcal federate trains fedcal's models on its data sets" in text
