"""Ctrl-C in any command: one line that says what is kept and how to go on, and exit status 130."""

import shlex
import signal
import subprocess
import sys

import pytest

from fedcal.cli.main import main


def interrupted(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("words", "where", "kept"),
    [
        ("run --data digits --out {} --quiet", "fedcal.simulate.runs.run", "no round is kept yet: start again"),
        (
            "federate --data digits --out {} --quiet",
            "fedcal.federate.launch.federate",
            "kept in {}: continue with the same",
        ),
        ("calibrate a.npz --out {}", "fedcal.data.logit_files.read_sites", "run the same command again"),
        ("evaluate a.npz", "fedcal.data.logit_files.read_sites", "run the same command again"),
        ("methods fed-ts", "fedcal.methods.get_method", "nothing was written"),
        ("server receive {}", "fedcal.transport.files.receive", "`fedcal server status DIR` shows the state"),
        (
            "client reply r.safetensors {}",
            "fedcal.transport.files.read_request",
            "the same command gives the same file",
        ),
        ("data verify mnist --data-dir {}", "fedcal.data.files.verify", "complete files are kept"),
    ],
)
def test_it_says_what_is_kept(tmp_path, monkeypatch, capsys, words, where, kept):
    if words.startswith("federate"):
        pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")
    monkeypatch.setattr(where, interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as stop:
            main(words.format(tmp_path / "out").split())
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr().err.strip()
    assert stop.value.code == 130 and said.startswith("fedcal: stopped; ") and "\n" not in said
    assert kept.format(tmp_path / "out") in said


def test_what_run_keeps_can_be_gone_on_with(tmp_path, monkeypatch, capsys):
    """Stopped in the fits, after all training rounds: the words name a command, which finishes the run."""
    out = tmp_path / "a run"
    words = ["run", "--data", "digits", "--model", "logistic", "--clients", "2", "--rounds", "2", "--method", "avg-t"]
    before = signal.getsignal(signal.SIGINT)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("fedcal.simulate.federation.finish", interrupted)
            with pytest.raises(SystemExit) as stop:
                main([*words, "--out", str(out), "--quiet"])
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr().err
    assert stop.value.code == 130 and "finished rounds are kept" in said
    command = shlex.split(said.split("`")[1])
    assert command[0] == "fedcal" and not (out / "results.json").exists()
    with pytest.raises(SystemExit) as end:
        main([*command[1:], "--quiet"])
    assert end.value.code == 0 and (out / "results.json").exists()


@pytest.mark.parametrize("module", ["typer", "numpy"])
def test_from_the_first_moment_on(module):
    """While modules are still being imported: those of the command line, and NumPy."""
    script = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "NAME":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Stop())
from fedcal.cli.entry import main
main(["methods"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script.replace("NAME", module)], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == "fedcal: stopped; nothing was written\n" and done.returncode == 130
