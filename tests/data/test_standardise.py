from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal.data.standardise import standardise, statistics
from fedcal.errors import FedCalError

nan = float("nan")


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), seed=st.integers(0, 999), image=st.booleans())
def test_sums_over_clients_are_the_pooled_statistics(sizes, seed, image):
    rng = torch.Generator().manual_seed(seed)
    if image:
        pool = torch.randint(0, 256, (sum(sizes), 3, 4, 5), generator=rng, dtype=torch.uint8)
        pooled = pool.double().transpose(0, 1).flatten(1)
    else:
        pool = torch.randn(sum(sizes), 3, generator=rng) + 100
        pooled = pool.double().T
    mean, std = statistics(pool.split(sizes))
    assert torch.allclose(mean, pooled.mean(1))
    if sum(sizes) > 1:
        assert torch.allclose(std, pooled.std(1, correction=0), rtol=1e-5)
    z = standardise(pool, mean, std)
    assert z.dtype == torch.float32 and z.shape == pool.shape
    assert z.transpose(0, 1).flatten(1).mean(1).abs().max() < 1e-4


def test_missing_values_are_left_out_and_become_zero():
    x = torch.tensor([[1.0, nan, nan], [3.0, 5.0, nan], [nan, 7.0, nan]])
    mean, std = statistics([x])
    assert mean.tolist() == [2, 6, 0] and std.tolist() == [1, 1, 1]
    assert standardise(x, mean, std).tolist() == [[-1, 0, 0], [1, -1, 0], [0, 1, 0]]
    assert x.isnan().sum() == 5, "the input is left alone"


def test_a_constant_feature_is_not_divided_by_its_rounding():
    x = torch.full((7, 1), 0.1)
    mean, std = statistics([x[:3], x[3:]])
    assert std.tolist() == [1] and standardise(x, mean, std).abs().max() < 1e-6


def test_float64_input_is_not_changed_in_place():
    x = torch.tensor([[1.0, nan], [2.0, 3.0]], dtype=torch.float64)
    before = x.clone()
    standardise(x, *statistics([x]))
    assert torch.equal(x.nan_to_num(-1), before.nan_to_num(-1))


def test_infinite_training_values_are_refused():
    with pytest.raises(FedCalError, match="infinite"):
        statistics([torch.tensor([[1.0], [float("inf")]])])
