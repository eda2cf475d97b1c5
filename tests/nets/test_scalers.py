"""Scalers keep what they promise to keep."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedcal.base.logits import keep_order, ordered_softmax
from fedcal.methods import METHODS, get_method
from fedcal.methods.ens import ensemble
from fedcal.methods.lr_ts import linear_temperature
from fedcal.nets.mlp import IDENTITY, init_mlp, order_preserving

ORDER_KEEPING = ["uncal", "val-ts", "ens", "avg-t", "lr-ts", "fedcal", "fedcal-no-wm", "fedcal-small"]


def wild(params, seed, scale=2.0):
    """Parameters far from the identity start."""
    rng = torch.Generator().manual_seed(seed)
    if "temperature" in params:
        return {"temperature": torch.tensor(1.7, dtype=torch.float64)}
    if "temperatures" in params:
        return {"temperatures": torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)}
    return {
        name: value + scale * torch.randn(value.shape, generator=rng, dtype=value.dtype)
        for name, value in params.items()
    }


def ranks(values: torch.Tensor) -> torch.Tensor:
    """For each pair of classes, which is higher: −1, 0 (a tie) or 1."""
    return (values[:, :, None] - values[:, None, :]).sign()


logit_arrays = array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=8).flatmap(
    lambda shape: st.one_of(
        arrays(np.float32, shape, elements=st.floats(-1e4, 1e4, width=32)),
        arrays(np.float32, shape, elements=st.sampled_from([-1e4, -1.0, 0.0, 1e-30, 0.5, 0.5000001, 1e4])),
        arrays(np.float64, shape, elements=st.floats(-1e4, 1e4)),
    )
)


@pytest.mark.parametrize("name", ORDER_KEEPING)
@given(logits=logit_arrays, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_ranking_is_kept_ties_and_all(name, logits, seed):
    method, logits = METHODS[name], torch.as_tensor(logits).double()
    params = method.init(logits.shape[1], torch.Generator().manual_seed(seed))
    for candidate in (params, wild(params, seed)):
        out = method.apply(candidate, logits)
        assert torch.isfinite(out).all()
        assert torch.equal(ranks(out), ranks(logits))


def test_the_appendix_example():
    """x = [3, 4, 2, 2] keeps x2 > x1 > x3 = x4 (Appendix B)."""
    x = torch.tensor([[3.0, 4.0, 2.0, 2.0]], dtype=torch.float64)
    for name in ("fedcal", "fedcal-small"):
        for net in ("raw", "sorted"):
            method = get_method(name, net=net)
            out = method.apply(wild(method.init(4, torch.Generator().manual_seed(0)), 1), x)[0]
            assert out[1] > out[0] > out[2] and out[2] == out[3]
    # by hand: with every stretch softplus(ln(e−1)) = 1 and no weights, the gaps are the input's own
    params = {name: torch.zeros_like(v) for name, v in init_mlp(4, 8, torch.Generator()).items()}
    params["b3"] = torch.full((4,), IDENTITY, dtype=torch.float64)
    assert torch.allclose(order_preserving(params, x), torch.tensor([[-1.0, 0, -2, -2]], dtype=torch.float64))


@pytest.mark.parametrize("net", ["raw", "sorted", "plain"])
@pytest.mark.parametrize("k", [2, 10, 100])
def test_nets_start_as_the_identity(net, k):
    method = get_method("fedcal", net=net)
    logits = 3 * torch.randn(50, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = method.apply(method.init(k, torch.Generator().manual_seed(1)), logits)
    assert torch.allclose(out.softmax(1), logits.softmax(1), atol=0.02)


def test_the_sorted_net_is_blind_to_class_identity():
    method = get_method("fedcal", net="sorted")
    params = wild(method.init(6, torch.Generator().manual_seed(0)), 3)
    logits = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.allclose(method.apply(params, logits)[:, order], method.apply(params, logits[:, order]))


def test_ensemble_is_the_mean_of_probabilities():
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    temperatures = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    mean = torch.stack([(logits / t).softmax(1) for t in temperatures]).mean(0)
    assert torch.allclose(ensemble({"temperatures": temperatures}, logits).softmax(1), mean)


def test_linear_temperature_by_hand():
    params = {"weight": torch.tensor([1.0, 0.0]), "bias": torch.tensor(1.0)}
    out = linear_temperature(params, torch.tensor([[1.0, 4.0], [-5.0, 1.0]]))
    assert torch.allclose(out, torch.tensor([[0.5, 2.0], [-5.0 / 0.05, 1.0 / 0.05]]))  # T = 2, and −4 held at its bound


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
