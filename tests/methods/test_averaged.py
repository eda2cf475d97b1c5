"""Averaging methods: their scalers keep the ranking of the classes, and are what their formulas say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from fedcal.methods import METHODS

ORDER_KEEPING = ["uncal", "val-ts", "ens", "avg-t", "lr-ts", "fedcal", "fedcal-no-wm", "fedcal-small"]


def wild(params, seed, scale=2.0):
    """Parameters far from the identity start."""
    rng = np.random.default_rng(seed)
    if "temperature" in params:
        return {"temperature": np.array(1.7)}
    if "temperatures" in params:
        return {"temperatures": np.array([0.3, 1.0, 4.0])}
    return {name: value + scale * rng.normal(size=value.shape).astype(value.dtype) for name, value in params.items()}


def ranks(values: np.ndarray) -> np.ndarray:
    """For each pair of classes, which is higher: −1, 0 (a tie) or 1."""
    return np.sign(values[:, :, None] - values[:, None, :])


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
    method, logits = METHODS[name], logits.astype(float)
    params = method.init(logits.shape[1], lambda: torch.Generator().manual_seed(seed))
    for candidate in (params, wild(params, seed)):
        out = method.apply(candidate, logits)
        assert np.isfinite(out).all()
        assert np.array_equal(ranks(out), ranks(logits))


def test_ensemble_is_the_mean_of_probabilities():
    logits = torch.randn(20, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    temperatures = torch.tensor([0.5, 1.0, 3.0], dtype=torch.float64)
    mean = torch.stack([(logits / t).softmax(1) for t in temperatures]).mean(0)
    assert torch.allclose(METHODS["ens"].apply({"temperatures": temperatures}, logits).softmax(1), mean)


def test_linear_temperature_by_hand():
    params = {"weight": torch.tensor([1.0, 0.0]), "bias": torch.tensor(1.0)}
    out = METHODS["lr-ts"].apply(params, torch.tensor([[1.0, 4.0], [-5.0, 1.0]]))
    assert torch.allclose(out, torch.tensor([[0.5, 2.0], [-5.0 / 0.05, 1.0 / 0.05]]))  # T = 2, and −4 held at its bound
