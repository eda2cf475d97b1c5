"""The Triton kernels in Triton's interpreter (a process of its own: the switch is read at import), without a GPU."""

import importlib.util
import subprocess
import sys

import pytest

NORM_RELU = """
import copy, torch
from fedcal.learn.batch_norm import norm_relu
from fedcal.learn.models import NormReLU
torch.manual_seed(0)
for c, size, short in ((16, 4, False), (16, 4, True), (5, 3, False), (5, 3, True)):
    x, s = ((2 * torch.randn(6, c, size, size) + 1).to(memory_format=torch.channels_last) for _ in range(2))
    ours = NormReLU(c)
    torch.nn.init.uniform_(ours.weight), torch.nn.init.uniform_(ours.bias)
    theirs = copy.deepcopy(ours)
    for rows in (6, 4):
        a, b, p, q = (v.clone().requires_grad_() for v in (x, x[:rows], s, s[:rows]))
        out = norm_relu(ours, a, p if short else None, torch.tensor([rows], dtype=torch.int32))
        expected = theirs(b, q if short else None)
        ours.num_batches_tracked.add_(1)
        slope = torch.randn_like(out)
        slope[rows:] = 0
        mine = torch.autograd.grad(out, (a, ours.weight, ours.bias, *((p,) if short else ())), slope)
        known = torch.autograd.grad(expected, (b, theirs.weight, theirs.bias, *((q,) if short else ())), slope[:rows])
        assert 0.1 < (out == 0).double().mean() < 0.9
        assert torch.allclose(out[:rows], expected, atol=1e-5)
        for m, k in zip(mine, known):
            whole = m.ndim == 4
            assert torch.allclose(m[:rows] if whole else m, k, atol=1e-4) and not (whole and m[rows:].any())
        for name, value in theirs.state_dict().items():
            assert torch.allclose(ours.state_dict()[name], value, atol=1e-6), name
print("equal")
"""

POOL_RELU = """
import torch
from fedcal.learn.pool import pool_relu
torch.manual_seed(0)
for c, h, w in ((16, 4, 6), (5, 7, 4), (3, 2, 2)):
    x = torch.randint(-3, 4, (3, c, h, w)).float().to(memory_format=torch.channels_last)  # many draws
    a, b = (x.clone().requires_grad_() for _ in range(2))
    out, expected = pool_relu(a), torch.relu(torch.nn.functional.max_pool2d(b, 2))
    slope = torch.randn_like(out)
    assert torch.equal(out, expected)
    assert torch.equal(torch.autograd.grad(out, a, slope)[0], torch.autograd.grad(expected, b, slope)[0])
print("equal")
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (CPU builds of PyTorch)"
)
@pytest.mark.parametrize("check", [NORM_RELU, POOL_RELU], ids=["norm-relu", "pool-relu"])
def test_a_kernel_equals_its_layer_also_where_rows_do_not_count(check, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=300)
    assert found.stdout.strip() == "equal", found.stderr
