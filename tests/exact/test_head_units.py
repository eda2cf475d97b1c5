"""Sums over features and their reading in standard units, against autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedcal.exact.head import head_curvature, head_sums
from fedcal.exact.head_units import Bend, Units
from heads import federation, whole


def test_gradient_and_curvature_are_those_of_autograd():
    x, y, head = federation(60, 3, 4)
    samples = whole(x, y, head, trained=20)
    rng = np.random.default_rng(0)
    t = torch.from_numpy(0.3 * rng.normal(size=(1 + 3 * 5)))
    z = torch.from_numpy(samples.logits - samples.logits.mean(1, keepdims=True))

    def loss(t):
        rows = t[1:].view(3, 5)
        u = t[0] * z + torch.from_numpy(samples.features) @ rows[:, :4].T + rows[:, 4]
        return nn.functional.cross_entropy(u, torch.from_numpy(samples.labels), reduction="sum")

    value, grad = head_sums(t[None].numpy(), np.array([-1]), samples.held_out_blocks())
    whole_t = t.clone().requires_grad_()
    loss(whole_t).backward()
    assert value[0] == pytest.approx(float(loss(t)), rel=1e-12)
    assert np.allclose(grad[0], whole_t.grad.numpy(), atol=1e-10)
    hessian = torch.autograd.functional.hessian(loss, t).numpy()
    units = Units(np.eye(5), np.ones(5), 3, 40.0, 0.0)
    found = head_curvature(t.numpy(), -1, "full", np.eye(5), samples.held_out_blocks())
    bend = Bend.of(found, units)
    assert np.allclose(bend.inside, hessian, atol=1e-9)
    blocks = head_curvature(t.numpy(), -1, "blocks", np.eye(5), samples.held_out_blocks())
    first = np.zeros((5, 5))
    first[np.triu_indices(5)] = blocks["hess"][0]
    assert np.allclose(np.triu(first), np.triu(hessian[1:6, 1:6]), atol=1e-9)
