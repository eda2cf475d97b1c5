"""The theorem's experiment in its quick form, and the parts that it is made of, by hand."""

import json
import math

import numpy as np
import pytest
import torch

from paper import theory


def test_the_bound_by_hand():
    assert theory.bound(2.0, 0.5, 1) == 2.0  # √1 / 0.5
    assert theory.bound(2.0, 0.5, 4) == 0.125
    assert theory.bound(8.0, 0.1, 10) == pytest.approx(0.2)


def test_slopes_are_powers():
    x = [1, 2, 4, 8]
    assert theory.slope(x, [3 * v**-2.0 for v in x]) == pytest.approx(-2)
    assert theory.slope(x, [0.1 * math.sqrt(v) for v in x]) == pytest.approx(0.5)
    assert theory.slope(x, [0, 0, 1, 4]) == pytest.approx(2)  # points at zero have no logarithm
    assert math.isnan(theory.slope([1], [1]))


@pytest.mark.parametrize("shift", [0.1, 0.7, 1.0])
def test_pooled_labels_are_uniform_and_G_is_as_computed(shift):
    _, y, clients = theory.deal(500, shift, seed=0)
    counts = np.stack([np.bincount(y[rows], minlength=10) for rows in clients])
    assert (counts.sum(0) == counts.sum(0)[0]).all() and (counts.sum(1) == counts.sum(1)[0]).all()
    assert sorted(torch.cat(clients).tolist()) == list(range(len(y)))
    own, rest = (1 - shift) / 10 + shift / 2, (1 - shift) / 10
    by_hand = 2 * own * math.log(10 * own) + (8 * rest * math.log(10 * rest) if rest else 0)
    shares = counts[0] / counts[0].sum()
    found = sum(p * math.log(10 * p) for p in shares if p)
    assert found == pytest.approx(by_hand, rel=0.02)


def test_the_minimiser_is_one():
    x, y, _ = theory.deal(100, 0.5, seed=1)
    best = theory.minimiser(x, y, 0.01)
    at = {name: value.clone().requires_grad_() for name, value in best.items()}
    theory.objective(at, x, y, 0.01).backward()
    assert all(value.grad.abs().max() < 1e-6 for value in at.values())


def test_quick_run_writes_its_files_and_resumes(tmp_path, pictures):
    said = []
    theory.run(tmp_path, [0], True, said.append)
    about = json.loads((tmp_path / "theory.json").read_text())
    for run in about["data"]["0"]["by_rate"].values():
        assert all(a > b > 0 for a, b in zip(run["excess"], run["excess"][1:], strict=False))  # the first rounds help
    assert len(said) == 1 and "theory" in said[0]
    words = (tmp_path / "theory.md").read_text()
    assert "Does the error fall as 1/R²?" in words and "nan" not in words
    distance, ece, by_skew = pictures["theory.png"].axes
    assert [ax.get_xlabel() for ax in (distance, ece, by_skew)] == ["R", "R", "G"]
    runs = about["data"]["0"]["by_rate"]
    for ax, name in ((distance, "distance"), (ece, "ece")):
        for line, run in zip(ax.lines, runs.values(), strict=False):  # a line per step size, then bounds
            np.testing.assert_allclose(line.get_ydata(), run[name])
    before = (tmp_path / "theory.json").read_bytes()
    theory.run(tmp_path, [0], True, said.append)
    assert len(said) == 1 and (tmp_path / "theory.json").read_bytes() == before
