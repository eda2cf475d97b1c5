"""Probabilities keep the order of the logits that they are made of."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal.base.logits import keep_order, ordered_softmax


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(st.integers(0, 10**6), st.sampled_from([1e-300, 1e-17, 1.0, 50.0, 1e4]), st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_probabilities_keep_the_order_of_the_logits(dtype, seed, scale, k):
    """Of all classes, strictly, also where a softmax ties them or lets them vanish; ties stay ties."""
    rng = torch.Generator().manual_seed(seed)
    u = scale * torch.randn(20, k, generator=rng, dtype=torch.float64)
    u[:, 0] = u[:, -1]
    p = ordered_softmax(u, dtype)
    assert p.dtype == dtype and torch.equal(
        p.argsort(dim=1, stable=True, descending=True), u.argsort(dim=1, stable=True, descending=True)
    )
    assert float((p.sum(1) - 1).abs().max()) < (1e-12 if dtype == torch.float64 else 1e-5) and float(p.min()) >= 0
    assert torch.equal(p[:, 0], p[:, -1])


def test_the_order_is_kept_with_gradients_too():
    u = (1e-18 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).requires_grad_()
    p = ordered_softmax(u)
    assert torch.equal(p.argmax(1), u.argmax(1)) and torch.equal(p, ordered_softmax(u.detach()))
    p[:, 0].sum().backward()
    assert u.grad is not None and float(u.grad[:, 0].min()) == pytest.approx(0.1875)
    tied = keep_order(u * 0, u.detach())
    assert tied.requires_grad and torch.equal(tied.argmax(1), u.argmax(1))
