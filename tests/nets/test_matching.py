"""Weight matching: planted permutations are found, and permuting never changes the function."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal import FedCalError, match
from fedcal.nets.matching import permute, permuted_share
from fedcal.nets.mlp import init_mlp, mlp


def net(seed, n_classes=10, hidden=64, last=0.3):
    rng = torch.Generator().manual_seed(seed)
    params = init_mlp(n_classes, hidden, rng)
    return {**params, "w3": last * torch.randn(n_classes, hidden, generator=rng)}


def shuffled(params, seed):
    rng = np.random.default_rng(seed)
    perms = [rng.permutation(len(params[f"b{k}"])) for k in (1, 2)]
    return permute(params, perms), perms


def test_a_planted_permutation_is_recovered_in_100_of_100_seeds():
    recovered = 0
    for seed in range(100):
        original = net(seed)
        moved, _ = shuffled(original, seed)
        back = permute(moved, match(moved, to=original))
        recovered += all(torch.equal(back[name], original[name]) for name in original)
    assert recovered == 100


@given(st.integers(0, 10**6), st.integers(2, 12), st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_permuting_keeps_the_function_and_inverts(seed, n_classes, hidden):
    params = net(seed, n_classes, hidden)
    moved, perms = shuffled(params, seed)
    x = torch.randn(16, n_classes, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(mlp(moved, x), mlp(params, x), atol=1e-5)
    back = permute(moved, [np.argsort(perm) for perm in perms])
    assert all(torch.equal(back[name], params[name]) for name in params)


def inner(a, b):
    return sum(float((a[name].double() * b[name].double()).sum()) for name in a)


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_matching_never_lowers_the_inner_product(seed):
    a, b = net(seed), net(seed + 1)
    assert inner(a, permute(b, match(b, to=a))) >= inner(a, b) - 1e-9


def test_a_net_matches_itself_without_moving_a_unit():
    assert permuted_share(match(net(0), to=net(0))) == 0
    assert permuted_share([np.array([1, 0, 2, 3])]) == 0.5


def test_nets_of_other_shapes_are_refused():
    with pytest.raises(FedCalError, match="one shape"):
        match(net(0), to=net(0, hidden=8))
    with pytest.raises(FedCalError, match="w1, b1"):
        match({"temperature": torch.ones(1)}, to=net(0))
