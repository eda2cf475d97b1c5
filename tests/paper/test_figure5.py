"""Figure 5 in its quick form, and the properties that its curves rest on."""

import json

import numpy as np
import torch

from fedcal.nets.matching import match, permute
from fedcal.nets.mlp import init_mlp, order_preserving
from paper import figure5

FIRST = figure5.HIDDEN[0], figure5.STARTS[0]  # the net and the start of the first column


def nets(hidden=8):
    found = []
    for seed in (0, 1):
        rng = torch.Generator().manual_seed(seed)
        found.append({**init_mlp(10, hidden, rng), "w3": 0.3 * torch.randn(10, hidden, generator=rng)})
    return found


def test_the_ends_of_a_curve_are_the_clients_own_scalers_and_matching_leaves_them_alone():
    (first, second), logits = nets(), torch.randn(50, 10, dtype=torch.float64)
    perms = match(second, to=first)
    matched = permute(second, perms)
    assert any((perm != range(len(perm))).any() for perm in perms), "nothing to test: no unit moved"
    for other in (second, matched):
        assert all(torch.equal(figure5.mix(first, other, 1.0)[name], first[name]) for name in first)
        end = order_preserving(figure5.mix(first, other, 0.0), logits)
        assert torch.allclose(end, order_preserving(second, logits), atol=1e-5)
    halves = [order_preserving(figure5.mix(first, other, 0.5), logits) for other in (second, matched)]
    assert not torch.allclose(*halves, atol=1e-2)


def test_quick_run_writes_its_files_and_resumes(tmp_path, pictures):
    said = []
    figure5.run(tmp_path, [0], True, said.append)
    about = json.loads((tmp_path / "figure5.json").read_text())
    assert about["seeds"] == [0] and len(about["data"]["0"]["curves"]) == 8
    for curve in about["data"]["0"]["curves"]:
        assert 0 <= curve["permuted_share"] <= 1
        for view in figure5.VIEWS:
            assert len(curve[view]["ece"]) == len(about["config"]["lambda"]) == 5
    # Two clients, one start: their ends differ, and matching is the same function there.
    plain, matched = (c for c in about["data"]["0"]["curves"] if (c["hidden"], c["start"]) == (64, "independent"))
    for end in (0, -1):
        assert abs(plain["global"]["nll"][end] - matched["global"]["nll"][end]) < 1e-4
    assert plain["global"]["nll"][0] != plain["global"]["nll"][-1]
    assert (tmp_path / "figure5.md").read_text().count("\n| 8 |") == 4
    axes = pictures["figure5.png"].axes
    assert len(axes) == 4 * len(figure5.VIEWS) and axes[0].get_ylabel() == f"{figure5.VIEWS[0]}: ECE, %"
    curve = next(c for c in about["data"]["0"]["curves"] if (c["hidden"], c["start"]) == FIRST)
    drawn = [line.get_ydata() for line in axes[0].lines]
    assert any(np.allclose(y, 100 * np.array(curve[figure5.VIEWS[0]]["ece"])) for y in drawn if len(y) == 5)

    said.clear()
    before = (tmp_path / "figure5.json").read_bytes()
    figure5.run(tmp_path, [0], True, said.append)
    assert said == [] and (tmp_path / "figure5.json").read_bytes() == before
