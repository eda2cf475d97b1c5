"""`fedcal federate`: what it would start, and what it refuses."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from fedcal.base.lock import locked
from fedcal.cli.federate import follow
from fedcal.cli.main import main
from fedcal.cli.progress import Parts
from fedcal.federate import launch
from fedcal.federate.app.client_app import app as client_app
from transport.flower.help import config_of, flower, grid_of


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main(["federate", *map(str, words)])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_without_flower_one_line_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['flwr'] = None\n"
        "from fedcal.cli.main import main; main(['federate', '--data', 'heart', '--out', sys.argv[1]])"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "fedcal: fedcal.transport.flower needs Flower: pip install 'fedcal[flower]'\n"


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


def test_secure_aggregation_is_an_option_of_the_run(tmp_path, capsys, monkeypatch):
    found = []
    monkeypatch.setattr("fedcal.federate.launch.federate", lambda plan, *rest: found.append(plan.options["secure"]))
    for words in (["--secure"], []):
        assert run(capsys, "--data", "heart", "--out", tmp_path / "run", "--quiet", *words)[0] == 0
    assert found == [True, False]


def test_insecure_is_said_and_then_so(tmp_path, capsys):
    _, out, _ = run(capsys, "--data", "digits", "--clients", 2, "--out", tmp_path / "run", "--insecure", "--dry-run")
    lines = [line for line in out.splitlines() if line.startswith("flower-")]
    assert len(lines) == 3 and all("--insecure" in line and "ssl" not in line for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "hearts"], "did you mean 'heart'"),
        (["--method", "val-ts"], "cannot run on nodes"),
        (["--method", "uncal"], "cannot run on nodes"),
        (["--method", "fedcal-pls"], "did you mean 'fedcal-plus'"),
        (["--method", "fed-ts", "--robust", "median"], "no median"),
        (["--rounds", "0"], "rounds must be at least 1"),
        (["--method", "fedcal-plus:accuracy=raise"], "unknown accuracy 'raise'"),
        (["--data", "cifar10"], "--data-dir"),
        (["--timeout", "-1"], "timeout"),
        (["--method", "fedcal", "--secure"], "does not only add"),
        (["--timeout", "nan"], "timeout must be above 0"),
        (["--limit", "0"], "limit must be above 0"),
        (["--noise", "local"], "--noise and --delta belong to --epsilon"),
        (["--delta", "1e-6"], "--noise and --delta belong to --epsilon"),
        (["--epsilon", "inf"], "epsilon is infinite"),
        (["--epsilon", "1e-3", "--delta", "1e-300"], "give a larger ε"),
        (["--data", "digits", "--clients", "2", "--secure"], "needs 3 to 63 nodes in a group, not 2"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.delenv("FEDCAL_DATA", raising=False)
    code, out, err = run(capsys, "--out", tmp_path / "run", *words)
    assert code == 2 and out == "" and message in err and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_second_one_in_a_folder_says_who_holds_it(tmp_path, capsys):
    with locked(tmp_path / "run", "fedcal federate"):
        code, _, err = run(capsys, "--out", tmp_path / "run")
    assert code == 2 and f"run is in use by process {os.getpid()} on " in err and "(fedcal federate, since " in err
    (tmp_path / "file").touch()
    code, _, err = run(capsys, "--out", tmp_path / "file")
    assert code == 2 and "choose a folder" in err and err.count("\n") == 1


def test_a_folder_with_a_run_is_refused(tmp_path, capsys):
    (tmp_path / "results.json").write_text("{}")
    code, _, err = run(capsys, "--out", tmp_path)
    assert code == 2 and "holds a run already" in err


def test_nodes_get_the_policy(tmp_path, capsys):
    """A file of what nodes tell at most; a method that it does not allow is refused before anything is started."""
    policy = tmp_path / "policy.json"
    policy.write_text('{"methods": ["fed-ts"]}')
    for method, code in (("fed-ts", 0), ("fed-bias", 2)):
        line = ["federate", "--data", "heart", "--method", method, "--out", str(tmp_path / "run"), "--dry-run"]
        with pytest.raises(SystemExit) as ended:
            main([*line, "--policy", str(policy)])
        assert (ended.value.code or 0) == code
    said = capsys.readouterr()
    assert said.out.count(f'fedcal-policy="{policy}"') == 4 and "takes part in fed-ts only" in said.err


def test_progress_names_what_the_federation_does(tmp_path):
    """Also while nodes measure and the report is written, when no round is counted."""
    text = io.StringIO()
    steps = [
        ("starting", 0),
        ("training", 3),
        ("calibration", 1),
        ("calibration", 9),
        ("measuring", 0),
        ("reporting", 0),
    ]
    with Parts(Console(file=text), quiet=False, every=0.0, clock=lambda: 0.0) as parts:
        on_progress = follow(parts, {"training": 3, "calibration": None})
        for phase, done in steps:
            on_progress(phase, done)
    assert [line.removesuffix("  0.0 s") for line in text.getvalue().splitlines()] == [
        "starting nodes",
        "training round 3/3",
        "calibration round 1",
        "calibration round 9",
        "measuring",
        "writing the report",
    ]


def test_a_private_fit_says_how_many_rounds_it_has_at_most():
    text = io.StringIO()
    with Parts(Console(file=text), quiet=False, every=0.0, clock=lambda: 0.0) as parts:
        on_progress = follow(parts, {"training": 3, "calibration": None}, 12)
        on_progress("calibration", 7)
        on_progress("measuring", 0)
    assert text.getvalue().splitlines() == ["calibration round 7  of at most 12  0.0 s", "measuring  0.0 s"]


def test_progress_is_read_from_the_run_folder(tmp_path):
    seen = []

    def app(message, context):
        seen.append(launch.progress(tmp_path))
        return client_app(message, context)

    config = config_of("heart", "fed-ts")
    assert launch.progress(tmp_path) == ("starting", 0)
    flower(config, grid_of(config, app), folder=tmp_path)
    assert launch.progress(tmp_path) == ("reporting", 0)
    rounds = [one for one in dict.fromkeys(seen) if one[0] == "calibration"]
    assert list(dict.fromkeys(seen)) == [
        ("starting", 0), ("training", 1), ("training", 2), ("training", 3), *rounds, ("measuring", 0)
    ]  # fmt: skip
    assert rounds == [("calibration", n + 1) for n in range(len(rounds))] and len(rounds) > 2
