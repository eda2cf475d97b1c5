"""Tables and figures made of small trained cells: what they print is what was measured."""

import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer

import paper
from fedcal import Config, FedCalError
from paper import cells, ensemble, figure1, figure2, figure4, momentum, plan, table1, table2, table3
from paper.__main__ import app, main
from paper.present import Table, by, metric, over_seeds
from paper.results import read

SMALL = Config(data="digits", model="mlp", clients=5, rounds=3, epochs=1, momentum=0.9)
CELLS = [replace(SMALL, beta=beta, seed=seed) for beta, seed in ((1.0, 0), (1.0, 1), (0.1, 0))]
NAMES = ("uncal", "val-ts", "ens", "avg-t", "lr-ts", "fedcal", "fedcal-literal", "fedcal-plus", "fedcal-plus-keep")
FITTED = {
    **{name: cells.FITTED[name] for name in NAMES},
    "fedcal": "fedcal:rounds=2",
}  # two: enough to see it work


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    where = tmp_path_factory.mktemp("paper")
    wanted = [*CELLS, replace(SMALL, partition="iid")]
    folders = list(cells.train(wanted, where / "runs", lambda text: None, tune=True))
    return where, folders, cells.fit(folders, where / "cells", lambda text: None, FITTED, workers=1)


def test_table1_prints_means_and_the_paper_s_ratio(made, pictures):
    where, _, results = made
    results = results[:3]
    table1.present(results, where)
    text, found = (where / "table1.md").read_text(), read(where / "tables.json")["table1"]
    eces = {name: [r["methods"][name]["global"]["ece"] for r in results] for name in ("fedcal", "ens", "fedcal-plus")}
    assert f"{100 * np.mean(eces['fedcal-plus'][:2]):.2f} ± {100 * np.std(eces['fedcal-plus'][:2], ddof=1):.2f}" in text
    sums = {name: np.mean(found[:2]) + found[2] for name, found in eces.items()}  # a cell's seeds count once
    expected = 100 * (sums["fedcal"] / sums["ens"] - 1)
    assert found["ratios"]["fedcal / ens"] == {"change": pytest.approx(expected), "cells": 2, "seeds": 2}
    assert f"{expected:+.1f}" in text
    assert "\\begin{tabular}" in (where / "table1.tex").read_text()
    (panel,) = pictures["table1.png"].axes
    assert (panel.get_title(loc="left"), panel.get_ylabel()) == ("digits", "global ECE, %")
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "0.1"]
    drawn = {bar.get_label(): bar.lines[0].get_ydata(orig=False) for bar in panel.containers}
    ours = eces["fedcal-plus"]
    np.testing.assert_allclose(drawn["fedcal-plus"], [100 * np.mean(ours[:2]), 100 * ours[2]])


def test_the_paper_s_own_headline_follows_from_its_table():
    sums = np.sum(list(table1.PAPER.values()), axis=0)
    assert 100 * (1 - sums[6] / sums[3]) == pytest.approx(47.66, abs=0.01)
    assert 100 * (1 - sums[6] / sums[1]) == pytest.approx(63.06, abs=0.01)


@pytest.mark.parametrize("module", [table2, table3, momentum, figure1, figure4])
def test_the_others_are_written(made, module, pictures):
    where, _, results = made
    name = module.__name__.rsplit(".", 1)[1]
    module.present(results[:3], where)
    assert all((where / f"{name}.{ending}").exists() for ending in ("md", "tex"))
    assert read(where / "tables.json")[name]["cells"] == sorted(result["name"] for result in results[:3])
    assert list(pictures) == ([f"{name}.png"] if name.startswith("figure") else [])
    for figure in pictures.values():
        labels = [f"{ax.get_title(loc='left')} {ax.get_ylabel()}" for ax in figure.axes]
        assert any("ECE, %" in label for label in labels) and all(ax.lines for ax in figure.axes)
    ece = 100 * np.mean([r["methods"]["uncal"]["global"]["ece"] for r in results[2:3]])
    assert f"{ece:.2f}" in (where / f"{name}.md").read_text()


def test_figure2_draws_clients_and_server(made, pictures):
    where, _, results = made
    figure2.present([results[3], results[2]], where, where / "runs")
    bars, *diagrams = pictures["figure2.png"].axes
    heights = [patch.get_height() for patch in bars.patches]  # five clients and the server, twice
    errors = [r["methods"]["uncal"]["global"]["ece"] for r in (results[3], results[2])]
    np.testing.assert_allclose([heights[5], heights[11]], 100 * np.array(errors))
    assert len(heights) == 12 and [ax.get_xlabel() for ax in diagrams] == ["confidence"] * 2


def test_an_ensemble_of_two_equal_models_is_that_model(made):
    where, folders, _ = made
    found = ensemble.measure(folders[0])
    assert found["training"]["commit"] and found["config"]["data"] == "digits"
    ensemble.present([found], where)
    assert "accuracy: ensemble" in (where / "ensemble.md").read_text()
    from fedcal.base.store import write_tensors
    from paper.recording import Recording

    test = Recording(folders[0]).samples("test")
    import torch

    everything = torch.cat([logits for logits, _ in test.values()])
    write_tensors(folders[0] / "tuned.safetensors", dict.fromkeys(test, everything), {})
    found = ensemble.measure(folders[0])
    for where_ in ("own", "everyone"):
        for kind in ("local", "ensemble"):
            for key, value in found[where_]["global"].items():
                assert found[where_][kind][key] == pytest.approx(value, abs=1e-6)


def test_a_recorded_cell_is_tuned_later(made):
    where, folders, _ = made
    path = folders[1] / "tuned.safetensors"
    before = path.read_bytes()
    path.unlink()
    assert list(cells.train([CELLS[1]], where / "runs", lambda text: None, tune=True)) == [folders[1]]
    assert path.read_bytes() == before


def test_a_fit_that_fails_is_told_at_once(made, tmp_path, monkeypatch):
    _, folders, _ = made
    monkeypatch.setattr(cells, "fit_cell", lambda *a: 1 / 0)
    seen = []

    def some():
        for folder in folders:
            seen.append(folder)
            yield folder

    with pytest.raises(ZeroDivisionError):
        cells.fit(some(), tmp_path, print, FITTED, workers=1)
    assert len(seen) == 1


def test_spreads_and_groups():
    results = [{"config": {"beta": 1.0}, "methods": {"a": {"global": {"ece": x}}}} for x in (0.1, 0.3)]
    spread = over_seeds(results, metric("a"))
    assert spread is not None and str(spread) == "20.00 ± 14.14"
    assert over_seeds(results, metric("b")) is None
    assert list(by(results, "beta")) == [(1.0,)]
    assert Table("t", ["β", "x"], [["1 %", None]]).latex().count("$\\beta$") == 1


def test_every_plan_names_each_cell_once():
    for make in (plan.table1, plan.table2, plan.table3, plan.figure1, plan.figure2, plan.momentum):
        for quick in (False, True):
            names = [cells.name_of(cell.resolve()) for cell in make((0, 1), "cpu", quick)]
            assert len(names) == len(set(names)) > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table9"], "'table9' is not one of 'table1', "),
        ([], "Missing argument 'NAME'"),
        (
            ["table1", "--quick", "--data", "cifar10"],
            "table1 --quick has no federations of cifar10, only of mnist: leave --data out",
        ),
        (["table2", "--data", "heart"], "table2 has no federations of heart, only of mnist: leave --data out"),
        (["theory", "--quick", "--data", "mnist"], "theory has no federations of mnist: leave --data out"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    error = capsys.readouterr().err
    assert (
        stopped.value.code == 2 and error.startswith("python -m paper: ") and words in error and error.count("\n") == 1
    )


def test_the_command_measures_prints_and_goes_on_where_it_stopped(tmp_path, capsys):
    for said in ("theory: seed 0 (1 of 1)", ""):
        with pytest.raises(SystemExit) as stopped:
            main(["theory", "--quick", "--out", str(tmp_path)])
        printed = capsys.readouterr().out
        assert stopped.value.code == 0 and said in printed and "# Theorem 4.4" in printed
        assert ("theory: seed" in printed) == bool(said)
    assert sorted(p.name for p in (tmp_path / "quick").iterdir()) == ["theory.json", "theory.md", "theory.png"]


@pytest.mark.parametrize("page", ["README.md", "paper/PAPER.md"])
def test_the_commands_that_the_pages_show_parse(page):
    text = (Path(paper.__file__).parents[1] / page).read_text(encoding="utf-8")
    lines = re.findall(r"^ *python -m paper (.*)$", text, re.MULTILINE)
    assert len(lines) > 1
    for line in lines:
        words = shlex.split(line.replace("$what", "table1"), comments=True)
        typer.main.get_command(app).make_context("paper", words)


def test_data_that_a_table_does_not_have(tmp_path):
    with pytest.raises(FedCalError, match="has no federations of heart"):
        paper.reproduce("table2", tmp_path, tmp_path, (0,), True, "cpu", print, ["heart"])


@pytest.mark.skipif("FEDCAL_DATA" not in os.environ, reason="needs MNIST's files (FEDCAL_DATA)")
def test_a_small_table1_on_real_mnist(tmp_path, monkeypatch):
    names = ("uncal", "val-ts", "ens", "fedcal", "fedcal-plus")
    small = plan.paper_cells("mnist", (1.0, 0.1), (0,), limit=600, rounds=2, clients=4, epochs=1, method=names)
    monkeypatch.setattr(table1, "cells", lambda *a: small)
    said = []
    args = ("table1", tmp_path, tmp_path / "runs", (0,), True, "cpu", said.append)
    first = paper.reproduce(*args).read_bytes()
    assert b"mnist" in first and any("trained in" in text for text in said)
    said.clear()
    assert paper.reproduce(*args).read_bytes() == first
    assert not any("trained" in text for text in said)  # everything was there
