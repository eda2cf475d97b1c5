"""`fedcal federate`: what it would start, and what it refuses."""

import re

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from fedcal.cli.main import main


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main(["federate", *map(str, words)])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_dry_run_prints_commands_and_writes_nothing(tmp_path, capsys):
    code, out, _ = run(capsys, "--data", "heart", "--out", tmp_path / "run", "--dry-run")
    lines = out.splitlines()
    assert code == 0 and not (tmp_path / "run").exists()
    assert sum(line.startswith("flower-supernode") for line in lines) == 4
    assert sum(line.startswith("flwr supernode register") for line in lines) == 4
    assert all("--root-certificates" in line for line in lines if line.startswith("flower-supernode"))
    (superlink,) = (line for line in lines if line.startswith("flower-superlink"))
    assert "--enable-supernode-auth" in superlink and "--insecure" not in superlink
    ports = re.findall(r"--port (\d+)", out)
    assert len(ports) == len(set(ports)) == 5
    assert "0.0.0.0" not in out and lines[-1].startswith("flwr run ")


def test_insecure_is_said_and_then_so(tmp_path, capsys):
    _, out, _ = run(capsys, "--data", "digits", "--clients", 2, "--out", tmp_path / "run", "--insecure", "--dry-run")
    lines = [line for line in out.splitlines() if line.startswith("flower-")]
    assert len(lines) == 3 and all("--insecure" in line and "ssl" not in line for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "hearts"], "did you mean 'heart'"),
        (["--method", "val-ts"], "nothing that nodes do"),
        (["--method", "uncal"], "nothing that nodes do"),
        (["--method", "fedcal-pls"], "did you mean 'fedcal-plus'"),
        (["--method", "fed-ts", "--robust", "median"], "no median"),
        (["--rounds", "0"], "rounds must be at least 1"),
        (["--method", "fedcal-plus:accuracy=raise"], "unknown accuracy 'raise'"),
        (["--data", "cifar10"], "--data-dir"),
        (["--timeout", "-1"], "timeout"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.delenv("FEDCAL_DATA", raising=False)
    code, out, err = run(capsys, "--out", tmp_path / "run", *words)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_is_refused(tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    code, _, err = run(capsys, "--out", tmp_path)
    assert code == 2 and "holds a run already" in err
