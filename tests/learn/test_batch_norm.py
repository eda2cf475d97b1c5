"""The Triton kernels in Triton's interpreter (a process of its own: the switch is read at import), without a GPU."""

import importlib.util
import subprocess
import sys

import pytest

CHECK = """
import copy, torch
from fedcal.learn.batch_norm import batch_norm
torch.manual_seed(0)
for c, size in ((16, 4), (5, 3)):
    x = (2 * torch.randn(6, c, size, size) + 1).to(memory_format=torch.channels_last)
    ours = torch.nn.BatchNorm2d(c)
    torch.nn.init.uniform_(ours.weight), torch.nn.init.uniform_(ours.bias)
    theirs = copy.deepcopy(ours)
    for rows in (6, 4):
        a, b = x.clone().requires_grad_(), x[:rows].clone().requires_grad_()
        out, expected = batch_norm(ours, a, torch.tensor([rows], dtype=torch.int32)), theirs(b)
        slope = torch.randn_like(out)
        slope[rows:] = 0
        mine = torch.autograd.grad(out, (a, ours.weight, ours.bias), slope)
        known = torch.autograd.grad(expected, (b, theirs.weight, theirs.bias), slope[:rows])
        assert torch.allclose(out[:rows], expected, atol=1e-5)
        assert torch.allclose(mine[0][:rows], known[0], atol=1e-5) and not mine[0][rows:].any()
        assert torch.allclose(mine[1], known[1], atol=1e-4) and torch.allclose(mine[2], known[2], atol=1e-4)
        for name, value in theirs.state_dict().items():
            assert torch.allclose(ours.state_dict()[name], value, atol=1e-6), name
print("equal")
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (CPU builds of PyTorch)"
)
def test_rows_that_do_not_count_are_as_if_they_were_not_there(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    found = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, timeout=300)
    assert found.stdout.strip() == "equal", found.stderr
