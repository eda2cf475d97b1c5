"""A run folder is checked when it is read; two methods are compared as far as their samples allow."""

from __future__ import annotations

import json

import pytest

from fedcal.base.codec import seal
from fedcal.base.store import read_json, write_json
from fedcal.errors import FedCalError
from fedcal.report import load
from fedcal.report.results import compare

ROUND = {"loss": 1.0, "accuracy": 0.5, "ece": None}


def test_the_references_come_first(run_dir, digits):
    _change(run_dir, methods={name: digits["methods"][name] for name in ("fedcal-plus", "ens", "val-ts", "uncal")})
    assert list(load(run_dir).results["methods"]) == ["uncal", "val-ts", "ens", "fedcal-plus"]


def _change(run, **fields):
    path = run / "results.json"
    write_json(path, read_json(path) | fields)


def _change_round(run, *lines):
    (run / "rounds.jsonl").write_text("".join(f"{json.dumps(seal(line))}\n" for line in lines))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "results.json").unlink(), "results.json: no such file"),
        (lambda run: (run / "rounds.jsonl").unlink(), "rounds.jsonl: no such file"),
        (lambda run: (run / "results.json").write_text('{"schema": 1, "met'), "results.json cannot be read as JSON"),
        (lambda run: (run / "results.json").write_text("[1]"), "not a FedCal result"),
        (lambda run: (run / "results.json").write_bytes(b"\xff\xfe"), "results.json cannot be read as JSON"),
        (lambda run: _change(run, schema=7), "results.json: schema 7, this fedcal reads 2: "),
        (lambda run: _change(run, methods={}), "'methods' or 'config' is empty"),
        (lambda run: _change(run, methods={"ens": {"global": {}}}), "methods.ens has no 'local'"),
        (lambda run: _change(run, methods=5), "methods should be an object, not 5"),
        (
            lambda run: (run / "results.json").write_text((run / "results.json").read_text().replace("0.1", "0.2", 1)),
            "results.json is damaged, or was changed by hand",
        ),
        (
            lambda run: (run / "rounds.jsonl").write_text('{"round": 1'),
            "rounds.jsonl, line 1 cannot be read as JSON",
        ),
        (lambda run: (run / "rounds.jsonl").write_text('{"round": 1}'), "rounds.jsonl, line 1 is damaged"),
        (lambda run: _change_round(run, {"round": 1}), "rounds.jsonl, line 1: the content has no 'loss'"),
        (lambda run: _change_round(run, {"round": 2, **ROUND}), "rounds.jsonl, line 1: it is of round 2"),
        (lambda run: (run / "rounds.jsonl").write_text("3"), "rounds.jsonl, line 1 should hold a JSON object, not int"),
    ],
)
def test_bad_files_are_named_in_one_line(run_dir, spoil, said):
    spoil(run_dir)
    with pytest.raises(FedCalError) as error:
        load(run_dir)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_methods_are_compared_by_their_difference_where_it_was_measured(digits):
    ens, uncal = (digits["methods"][name]["global"] for name in ("ens", "uncal"))
    for change, verdict in (
        ([-0.1, -0.2, -0.05], "lower"),
        ([0.1, 0.05, 0.2], "higher"),
        ([0.1, -0.1, 0.2], "unclear"),
    ):
        ens["ece_against"]["uncal"] = change
        assert compare(digits, "ens", "uncal") == verdict
    ens["ece_against"] = {}
    ens.update(ece_low=0.1, ece_high=0.2)
    for low, high, verdict in (
        (0.25, 0.3, "lower"),
        (0.01, 0.05, "higher"),
        (0.15, 0.3, "unclear"),
        (None, None, "unclear"),
    ):
        uncal.update(ece_low=low, ece_high=high)
        assert compare(digits, "ens", "uncal") == verdict
