"""Metrics against netcal, torchmetrics, scikit-learn, and by hand at the edges."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from netcal.metrics import ECE, MCE
from sklearn.metrics import log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from fedcal import FedCalError
from fedcal.measure import metrics


def sample(n, k, seed, sharpness=3.0, distort=1.5):
    rng = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, k, generator=rng, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=rng)[:, 0]
    return (distort * logits).softmax(1), labels


@given(st.integers(1, 400), st.integers(2, 12), st.integers(1, 30), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_ece_and_mce_equal_netcal(n, k, n_bins, seed):
    probs, labels = sample(n, k, seed)
    assume(k == 2 or len(labels.unique()) > 2)  # else netcal takes the problem for a binary one, and refuses
    # netcal reads (N, 2) as two independent binary outputs unless only the second is given
    given_probs = probs[:, 1].numpy() if k == 2 else probs.numpy()
    if k == 2:  # and then bins P(y = 1), not the top label: compare the binary reading
        ours = metrics.classwise(probs, labels, n_bins)[1]
        assert ours.ece() == pytest.approx(ECE(n_bins).measure(given_probs, labels.numpy()), abs=1e-12)
        return
    assert metrics.ece(probs, labels, n_bins) == pytest.approx(
        ECE(n_bins).measure(given_probs, labels.numpy()), abs=1e-12
    )
    assert metrics.mce(probs, labels, n_bins) == pytest.approx(
        MCE(n_bins).measure(given_probs, labels.numpy()), abs=1e-12
    )


@pytest.mark.parametrize("k", [2, 10, 100])
def test_ece_equals_torchmetrics_on_small_sets(k):
    probs, labels = sample(500, k, seed=k)
    theirs = multiclass_calibration_error(probs, labels, k, n_bins=15)
    assert metrics.ece(probs, labels) == pytest.approx(float(theirs), abs=1e-6)


def test_edges_by_hand():
    certain = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert metrics.ece(certain, [0, 0, 1, 1]) == pytest.approx(0.25)  # confidence exactly 1: the last bin, acc ¾
    assert metrics.ece([[0.7, 0.3]], [0]) == pytest.approx(0.3)  # N = 1, fourteen empty bins
    assert metrics.ece([[0.7, 0.3]], [1]) == pytest.approx(0.7)
    # bins are (lo, hi]: with 5 bins 0.6 lies in (0.4, 0.6], beside 0.5 and apart from 0.61
    probs = [[0.6, 0.4], [0.5, 0.5], [0.61, 0.39]]
    assert metrics.ece(probs, [0, 1, 0], n_bins=5) == pytest.approx((abs(1.1 - 1) + abs(0.61 - 1)) / 3)


@given(st.integers(1, 40), st.data())
def test_confidence_on_an_edge_belongs_to_the_lower_bin(n_bins, data):
    edges = metrics.equal_width(n_bins)
    m = data.draw(st.integers(0, n_bins))
    near = np.array([edges[m], np.nextafter(edges[m], 0), np.nextafter(edges[m], 1)]).clip(0, 1)
    found = metrics.Reliability.of_top(near, np.zeros(3), edges)
    expected = np.searchsorted(edges[1:-1], near, side="left")
    assert np.array_equal(found.count, np.bincount(expected, minlength=n_bins))


def test_ties_go_to_the_first_class():
    half = [[0.5, 0.5], [0.5, 0.5]]
    assert metrics.accuracy(half, [0, 1]) == 0.5
    assert metrics.ece(half, [0, 0]) == pytest.approx(0.5)
    assert metrics.ece(half, [1, 1]) == pytest.approx(0.5)
    assert metrics.top_k([[1.0, 1.0, 1.0, 0.0]], [2], k=2) == 0.0


def test_nll_and_brier_against_scikit_learn():
    probs, labels = sample(300, 7, seed=1)
    assert metrics.nll(probs, labels) == pytest.approx(log_loss(labels, probs.numpy(), labels=range(7)), rel=1e-12)
    by_hand = (probs - torch.nn.functional.one_hot(labels, 7)).square().sum(1).mean()
    assert metrics.brier(probs, labels) == pytest.approx(float(by_hand), rel=1e-12)
    assert np.isfinite(metrics.nll([[1.0, 0.0]], [1]))


def test_classwise_and_equal_mass_by_hand():
    probs, labels = [[0.8, 0.2], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1]
    # class 0: |0.8 + 0.8 − 1| / 3 and |0.3 − 0| / 3; class 1: |0.2 + 0.2 − 1| / 3 and |0.7 − 1| / 3
    assert metrics.classwise_ece(probs, labels) == pytest.approx((0.6 + 0.3) / 3)
    assert metrics.equal_mass_ece(probs, labels, n_bins=1) == pytest.approx(abs(2.3 - 2) / 3)
    assert metrics.equal_mass_ece(probs, labels, n_bins=3) == pytest.approx((0.3 + 0.2 + 0.8) / 3)


def test_float32_input_is_summed_in_float64():
    probs = torch.full((300_000, 2), 0.5)
    probs[:, 0], probs[:, 1] = 0.9, 0.1
    labels = (torch.arange(300_000) % 10 == 0).long()
    assert metrics.ece(probs, labels) == pytest.approx(abs(float(probs[0, 0]) - 0.9), abs=1e-12)


@pytest.mark.parametrize("metric", [metrics.ece, metrics.accuracy, metrics.nll, metrics.brier, metrics.classwise_ece])
def test_an_empty_set_is_an_error(metric):
    with pytest.raises(FedCalError, match="no samples"):
        metric(torch.empty(0, 3), torch.empty(0, dtype=torch.long))
