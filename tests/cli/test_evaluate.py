"""`fedcal evaluate` with groups, JSON and tables; the same by files of sums; and what bad input meets with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import fedcal
from commands import command
from scores import draw


@pytest.fixture
def place(tmp_path, monkeypatch):
    rows = ["p,label,site,sex"]
    for site, seed in (("a", 1), ("b", 2)):
        x, y = draw(120, seed)
        sex = np.random.default_rng(seed).choice(["f", "m"], 120)
        rows += [f"{1 / (1 + np.exp(-z)):.9f},{label},{site},{s}" for z, label, s in zip(x, y, sex, strict=True)]
    (tmp_path / "x.csv").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_nothing_is_printed_of_few_samples(place, capsys):
    command(capsys, "calibrate x.csv --out cal --no-report --quiet")
    Path("few.csv").write_text("p,label\n0.2,0\n0.7,1\n0.6,1\n")
    told = command(capsys, "evaluate few.csv --scaler cal/scaler.safetensors")
    assert told.strip() == "Too few samples to say anything."


def test_discrimination_and_calibration_are_printed_with_intervals(place, capsys):
    told = command(capsys, "evaluate x.csv --group sex --json one.json")
    one = json.loads(Path("one.json").read_text())
    for estimate in (
        one["pooled"]["auroc"],
        one["sites"]["b"]["calibration_slope"],
        one["groups"]["sex=f"]["oe_ratio"],
    ):
        assert f"({estimate['low']:z.2f} to {estimate['high']:z.2f})" in told
    for site in "ab":
        command(capsys, f"client evaluate x.csv --name {site} --group sex --out {site}.sums")
    of_sums = command(capsys, "server evaluate a.sums b.sums").split("Brackets")[0]
    assert len(of_sums) > 500 and of_sums in told  # the same table

    command(capsys, "client evaluate x.csv --name a --out alone.sums")
    table = command(capsys, "server evaluate alone.sums").split("Brackets")[0]
    assert "All sites" in table and " a " not in table


def test_in_one_place_and_by_files_of_sums(place, capsys):
    text = command(capsys, "evaluate x.csv --group sex --threshold 0.2 --json one.json --report r.html --tables t.md")
    assert "On average a probability is" in text and "Results: one.json" in text
    one = json.loads(Path("one.json").read_text())
    assert one["thresholds"] == [0.2] and list(one["groups"]) == ["sex=f", "sex=m"] and one["classes"] == ["0", "1"]
    assert Path("r.html").exists() and "AUROC" in Path("t.md").read_text()
    for site in "ab":
        told = command(capsys, f"client evaluate x.csv --name {site} --group sex --threshold 0.2 --out {site}.sums")
        assert "sums of 120 samples" in told
    command(capsys, "server evaluate b.sums a.sums --json two.json")
    two = json.loads(Path("two.json").read_text())
    for name in ("pooled", "sites", "groups", "site_groups", "spread"):
        assert one[name] == two[name], name

    Path("c.csv").write_text("p,label,site,sex\n0.3,1,c,f\n")
    told = command(capsys, "evaluate x.csv c.csv")
    table = told.split("95 %: interval")[0]
    assert "pooled" in table and " c " not in table and "2 of 3 sites are hidden" in told

    Path("bad.sums").write_bytes(Path("a.sums").read_bytes()[:-9])
    command(capsys, "client evaluate x.csv --name a --out other.sums")
    for line, expected in {
        "server evaluate bad.sums": "bad.sums: the message cannot be read",
        "server evaluate x.csv": "x.csv: the message cannot be read",
        "server evaluate none.sums": "fedcal: none.sums cannot be read: No such file",
        "server evaluate a.sums a.sums": "two sites have the name 'a'",
        "server evaluate b.sums other.sums": "differ in classes or thresholds",
        "client evaluate x.csv --out y.sums": "2 sites: choose one with --name",
        "client evaluate x.csv --name z --out y.sums": "unknown site 'z'",
        "evaluate x.csv --group age": "unknown column 'age'",
        "evaluate x.csv ./x.csv": "x.csv: given twice",
        "evaluate x.csv --threshold 1.5": "must lie between 0 and 1, not 1.5",
        "evaluate x.csv --tables t.pdf": "tables are written as",
        "evaluate x.csv --own": "needs --scaler",
        "evaluate x.csv --min-count -1": "min_count must be a whole number",
        "client evaluate x.csv --name a --min-count -1 --out y.sums": "min_count must be a whole number",
        "client evaluate c.csv --out y.sums": "c.csv: 1 sample, and sums of fewer than 5 would reveal them",
    }.items():
        error = command(capsys, line, code=2)
        assert expected in error.replace("\n", " ") and error.count("\n") <= 3, line
    assert not Path("y.sums").exists()


def test_files_hold_no_features(place, capsys):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    fedcal.calibrate([(x, rng.integers(2, size=60))], "fed-head", head=(x[:2], np.zeros(2))).save("head.safetensors")
    for line in ("evaluate x.csv --scaler", "client evaluate x.csv --name a --out a.sums --scaler"):
        assert "takes features, and files hold logits" in command(capsys, f"{line} head.safetensors", code=2).replace(
            "\n", " "
        )
