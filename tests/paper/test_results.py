"""The results in the repository: their format, and the tables that are made of them."""

from pathlib import Path

import pytest

from paper import cells, ensemble, figure1, figure4, figure5, head, momentum, results, table1, table2, table3, theory
from paper.by_seed import origin

RESULTS = Path(results.__file__).parent / "results"
DEPTHS = dict.fromkeys(("figure5", "theory", "hospitals"), 2)  # of JSON, if not 1
DEPTHS |= dict.fromkeys(("conformal", "conformal-coverage", "conformal-table1", "conformal-table1-again"), 2)
DEPTHS |= dict.fromkeys(("monitor", "monitor-real", "monitor-small"), 3)
CONTENT = {
    "b": {"x": 0.1 + 0.2, "list": [1, 2.5e-300, None], "text": 'β "quoted" \n', "empty": {}},
    "a": {"nested": {"deep": [{"y": True}]}},
    "number": -0.0,
}


@pytest.mark.parametrize(("depth", "lines"), [(0, 1), (1, 5), (2, 12)])
def test_what_is_read_is_what_was_written(tmp_path, depth, lines):
    path = tmp_path / "some.json"
    assert results.read(path) == {}
    results.write(path, CONTENT, depth)
    assert repr(results.read(path)) == repr(CONTENT)  # also the order of the keys, and the sign of zero
    assert len(path.read_text().splitlines()) == lines


def test_nan_becomes_null_and_entries_are_sorted(tmp_path):
    path = tmp_path / "some.json"
    results.add(path, "b", {"ece": float("nan")})
    results.add(path, "a", {"ece": 0.5})
    results.add(path, "b", {"ece": float("inf")})
    assert path.read_text() == '{\n"a": {"ece":0.5},\n"b": {"ece":null}\n}\n'


def test_every_result_in_the_repository_is_in_this_format(tmp_path):
    files = sorted(RESULTS.rglob("*.json"))
    assert len(files) > 10
    for path in files:
        results.write(tmp_path / path.name, results.read(path), DEPTHS.get(path.stem, 1))
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path


@pytest.mark.parametrize("module", [table1, table2, table3, figure1, figure4, momentum, head])
def test_a_table_in_the_repository_follows_from_the_results(tmp_path, module):
    name, known = module.__name__.rsplit(".", 1)[1], {}
    for path in (RESULTS / ("head" if module is head else "cells")).glob("*.json"):  # head fits methods of its own
        known |= results.read(path)
    measured = results.read(RESULTS / "tables.json")[name]["cells"]
    names = [cells.name_of(cell.resolve()) for cell in module.cells((0, 1, 2), "cpu", False)]
    assert set(measured) <= set(names)
    module.present([known[name] for name in names if name in measured], tmp_path)
    for ending in ("md", "tex"):
        assert (tmp_path / f"{name}.{ending}").read_bytes() == (RESULTS / f"{name}.{ending}").read_bytes()
    assert results.read(tmp_path / "tables.json") == {name: results.read(RESULTS / "tables.json")[name]}


def test_the_other_pages_follow_from_the_results(tmp_path):
    known = results.read(RESULTS / "ensemble.json")
    names = [cells.name_of(cell.resolve()) for cell in ensemble.cells((0, 1, 2), "cpu", False)]
    ensemble.present([known[name] for name in names], tmp_path)
    assert (tmp_path / "ensemble.md").read_bytes() == (RESULTS / "ensemble.md").read_bytes()
    for module, weights in ((figure5, "lambda"), (theory, None)):
        path = RESULTS / f"{module.__name__.rsplit('.', 1)[1]}.json"
        about = results.read(path)
        found = [about["data"][str(seed)] for seed in about["seeds"]]
        page = module.markdown(found, about["config"][weights] if weights else about["config"], origin(path))
        assert page == path.with_suffix(".md").read_text(encoding="utf-8")
