"""The command line in ordinary use. What it says to bad input is in test_bad_input.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

import fedcal
from fedcal.cli.main import main
from fedcal.cli.methods import CHOICES
from fedcal.data import DATASETS
from fedcal.methods import DEFAULT, get_method
from fedcal.methods.spec import options_offered, sets_offered

RUN = ["run", "--model", "logistic", "--clients", "4", "--rounds", "2", "--method", "uncal", "--method", "avg-t"]
FILES = [
    "config.json",
    "model.safetensors",
    "report.html",
    "results.json",
    "rounds.jsonl",
    "scalers/avg-t.safetensors",
    "scalers/uncal.safetensors",
]

Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`fedcal` in a folder of its own: what it prints; it ends with 0 and leaves stderr empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDCAL_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert (ended.value.code, err.strip()) == (0, "")
        return out

    return call


def files(folder: str) -> list[str]:
    root = Path(folder)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_field_of_the_config(flag: str, command: Command) -> None:
    options = set(re.findall(r"--[a-z][a-z-]*", command("run", flag)))
    assert {f"--{field.name.replace('_', '-')}" for field in fields(fedcal.Config)} <= options
    assert {"--out", "--resume", "--overwrite", "--quiet", "--table"} <= options


def test_help_lists_the_commands(command: Command) -> None:
    text = command("--help")
    assert all(f" {name} " in text for name in ("run", "report", "methods", "data"))


def test_version(command: Command) -> None:
    assert command("--version") == f"fedcal {fedcal.__version__}\n"


def test_methods_are_all_listed(command: Command) -> None:
    named = re.findall(r"^\W*([a-z-]+) ", command("methods"), flags=re.MULTILINE)
    assert set(fedcal.METHODS) <= set(named)


def test_methods_recommends_one(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = command("methods")
    assert text.startswith(f"If in doubt, use {DEFAULT}") and "…" not in text
    for _, spec in CHOICES:
        assert get_method(spec) and f" {spec} " in text


@pytest.mark.parametrize("name", fedcal.METHODS)
def test_the_options_of_each_method_are_shown(name: str, command: Command) -> None:
    text = command("methods", name)
    shown = re.findall(r"^│ ([a-z_]+) ", text, flags=re.MULTILINE)
    method = fedcal.METHODS[name]
    assert sorted(shown) == sorted(options_offered(method) | sets_offered(method))
    assert ("It has no options." in text) == (not shown)


def test_defaults_and_choices_are_shown(command: Command) -> None:
    rows = {row[0]: row[1:] for row in re.findall(r"^│ (\w+) +│ (.+?) +│ (\S+) ", command("methods", "fedcal"), re.M)}
    assert rows["start"] == ("matched, own or global", "global") and rows["lr"] == ("a number", "0.001")
    assert rows["shared_init"] == ("true or false", "true") and rows["steps"] == ("a whole number", "50")


def test_data_sets_are_all_listed(command: Command) -> None:
    text = command("data", "list", "--data-dir", "here")
    assert all(f" {name} " in text for name in DATASETS)
    assert "missing" in text
    assert text.endswith("Files are looked for in here; get missing ones with: fedcal data fetch NAME\n")


def test_an_embedded_set_needs_no_files(command: Command) -> None:
    assert command("data", "verify", "digits").endswith("digits: all files are intact\n")
    assert "nothing to fetch" in command("data", "fetch", "heart")


def test_run_then_report(command: Command) -> None:
    text = command(*RUN, "--out", "one")
    assert files("one") == FILES
    assert text.startswith("digits: 4 clients (β = 0.5, G = ")
    assert re.search(r"^round 2/2  loss \d\.\d+  accuracy \d+\.\d%  ECE \d+\.\d%  \d+(\.\d)? s$", text, re.MULTILINE)
    assert re.search(r"^calibrating 0/2  uncal", text, re.MULTILINE), "what comes after training is shown too"
    assert " avg-t " in text and text.endswith("\nReport: one/report.html\n")
    results = json.loads(Path("one/results.json").read_text())
    assert sorted(results["methods"]) == ["avg-t", "uncal"]

    page = Path("one/report.html").read_bytes()
    Path("one/report.html").unlink()
    again = command("report", "one")
    assert text.endswith(again), "the same table, of the same folder"
    assert Path("one/report.html").read_bytes() == page

    figures = command("report", "one", "--figures", "figures", "--figure-format", "svg", "--format", "markdown")
    drawn = files("figures")
    assert "ece.svg" in drawn and all(f"figures/{name}\n" in figures for name in drawn)


def test_a_finished_run_is_left_as_it_is(command: Command) -> None:
    first = command(*RUN, "--out", "one", "--table", "markdown", "--quiet")
    before = {name: Path("one", name).read_bytes() for name in FILES}
    assert command("run", "--out", "one", "--resume", "--table", "markdown", "--quiet") == first
    assert {name: Path("one", name).read_bytes() for name in files("one")} == before


def test_overwrite_leaves_nothing_of_the_earlier_run(command: Command) -> None:
    command(*RUN, "--out", "one", "--quiet")
    command("run", "--model", "logistic", "--clients", "3", "--rounds", "1", "--method", "uncal", "--out", "one",
            "--overwrite", "--quiet")  # fmt: skip
    assert files("one") == [name for name in FILES if "avg-t" not in name]
    assert len(Path("one/rounds.jsonl").read_text().splitlines()) == 1
    assert json.loads(Path("one/config.json").read_text())["clients"] == 3


def test_quiet_is_silent_and_the_folder_is_numbered(command: Command) -> None:
    short = ["run", "--model", "logistic", "--clients", "2", "--rounds", "1", "--method", "uncal", "--quiet"]
    assert command(*short) == command(*short) == ""
    assert files("runs/digits-1") == files("runs/digits-2")


@pytest.mark.parametrize(("form", "start"), [("markdown", "| Method |"), ("latex", "\\begin{t")])
def test_tables(form: str, start: str, command: Command) -> None:
    table = command(*RUN, "--out", "one", "--quiet", "--table", form)
    assert start in table and "avg-t" in table
    assert command("report", "one", "--format", form) == table
