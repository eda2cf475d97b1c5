"""The order-preserving nets: what they keep, and what they start as."""

import pytest
import torch

from fedcal.base.arrays import tensors
from fedcal.methods import get_method
from fedcal.nets.mlp import IDENTITY, init_mlp, order_preserving


def far_from_start(method, k, seed):
    """A net's parameters, far from the identity that it starts as."""
    rng = torch.Generator().manual_seed(seed)
    start = tensors(method.init(k, lambda: torch.Generator().manual_seed(0)))
    return {
        name: value + 2 * torch.randn(value.shape, generator=rng, dtype=value.dtype) for name, value in start.items()
    }


def test_the_appendix_example():
    """x = [3, 4, 2, 2] keeps x2 > x1 > x3 = x4 (Appendix B)."""
    x = torch.tensor([[3.0, 4.0, 2.0, 2.0]], dtype=torch.float64)
    for name in ("fedcal", "fedcal-small"):
        for net in ("raw", "sorted"):
            method = get_method(name, net=net)
            out = method.apply(far_from_start(method, 4, 1), x)[0]
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
    out = method.apply(tensors(method.init(k, lambda: torch.Generator().manual_seed(1))), logits)
    assert torch.allclose(out.softmax(1), logits.softmax(1), atol=0.02)


def test_the_sorted_net_is_blind_to_class_identity():
    method = get_method("fedcal", net="sorted")
    params = far_from_start(method, 6, 3)
    logits = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    assert torch.allclose(method.apply(params, logits)[:, order], method.apply(params, logits[:, order]))
