"""`fedcal monitor` from start to alarm: exit status 0, 3 and 2; everything is taken, or nothing."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import fedcal
from fedcal.cli.main import main


def run(*words):
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return stop.value.code


def write(path, rng, odds=0.0, labelled=True, n=300):
    logits = rng.normal(size=n)
    labels = rng.random(n) < 1 / (1 + np.exp(-logits - odds))
    lines = [f"{z},{'sick' if y else 'healthy'}" if labelled else f"{z}" for z, y in zip(logits, labels, strict=True)]
    path.write_text("\n".join(["logit,label" if labelled else "logit", *lines]))
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    files = [write(tmp_path / f"{site}.csv", rng, odds) for site, odds in (("north", 0.5), ("south", -0.5))]
    assert run("calibrate", *files, "--out", "fit", "-q") == 0
    assert run("monitor", "start", "fit/scaler.safetensors", "--out", "state") == 0
    return rng


def sums(rng, site, batch, odds, labelled=True, *more):
    file = write(Path(f"{batch}.csv"), rng, odds, labelled)
    scaler = ("--scaler", "fit/scaler.safetensors")
    assert run("monitor", "sums", file, *scaler, "--name", site, "--out", f"{site}-{batch}.sums", *more) == 0
    return f"{site}-{batch}.sums"


def test_from_start_to_alarm(folder, capsys):
    first = [sums(folder, site, f"w{w}", odds) for w in range(3) for site, odds in (("north", 0.5), ("south", -0.5))]
    assert run("monitor", "check", "state", *first) == 0
    assert "No drift found in 1800 samples." in capsys.readouterr().out
    later = [sums(folder, "south", f"v{w}", 1.5) for w in range(4)]
    assert run("monitor", "check", "state", *first, *later, "--json", "out.json", "--report", "out.html") == 3
    said = capsys.readouterr().out
    assert "4 of 10 batches are new." in said and "no longer right at south" in said and "sick" in said
    found = json.loads(Path("out.json").read_text())
    assert found["drifted"] and found["actions"]["south"] == "new offset"
    page = Path("out.html").read_text()
    assert "no longer right at south" in page and page.count("<svg") == 3 and "<script" not in page
    assert run("monitor", "check", "state") == 3  # it stays an alarm
    unlabelled = sums(folder, "north", "u0", 0.5, False)
    assert run("monitor", "check", "state", unlabelled) == 3
    assert not [one for one in fedcal.Monitor.load("state").verdict().findings if one.site == "north" and one.drifted]


def test_other_samples_with_the_same_sums_are_added_on_request(folder, capsys):
    for week in ("w0", "w1"):
        Path(f"{week}.csv").write_text("logit,label\n" + "2,sick\n-2,healthy\n" * 10)
        scaler = ("--scaler", "fit/scaler.safetensors")
        assert run("monitor", "sums", f"{week}.csv", *scaler, "--name", "north", "--out", f"{week}.sums") == 0
    both = ("w0.sums", "w1.sums")
    assert run("monitor", "check", "state", *both) == 2
    said = capsys.readouterr().err
    assert "w1.sums: north: batch 'w1' has the sums of batch 'w0'" in said and "--same-sums" in said
    for expected in ("2 of 2", "0 of 2"):
        assert run("monitor", "check", "state", *both, "--same-sums") == 0
        assert f"{expected} batches are new." in capsys.readouterr().out


def test_a_folder_may_name_the_reference_last(folder, capsys):
    week = sums(folder, "north", "2025-W07", 0.5)
    reference = sums(folder, "north", "reference", 0.5, True, "--reference")
    assert sorted([reference, week]) == [week, reference]
    assert run("monitor", "check", "state", week, reference) == 0
    assert "2 of 2 batches are new." in capsys.readouterr().out


def test_a_bad_batch_takes_nothing_and_is_one_line(folder, capsys):
    good = sums(folder, "north", "w0", 0.5)
    other = sums(folder, "south", "w0", -0.5, True, "--tolerance", "0.5")
    before = Path("state").read_bytes()
    Path("torn").write_bytes(Path(good).read_bytes()[:-9])
    for words, expected in (
        (("check", "state", good, other), "tolerance 0.5"),
        (("check", "state", good, "torn"), "torn"),
        (("check", "state", "w0.csv"), "w0.csv"),
        (("check", "state", "nothing.sums"), "nothing.sums"),
        (("check", "missing"), "fedcal monitor start"),
        (("check", "fit/scaler.safetensors"), "not a monitor's"),
        (("check", "state", good, "--json", "state"), "which is read"),
        (("start", "fit/scaler.safetensors", "--out", "state"), "--overwrite"),
        (("start", "fit/scaler.safetensors", "--out", "new", "--alpha", "2"), "alpha 2"),
        (
            ("sums", "w0.csv", "--scaler", "fit/scaler.safetensors", "--out", "x", "--min-count", "1000"),
            "wait for more",
        ),
    ):
        capsys.readouterr()
        assert run("monitor", *words) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and re.search(re.escape(expected), error), error
    assert Path("state").read_bytes() == before
