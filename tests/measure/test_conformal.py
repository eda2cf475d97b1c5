"""Coverage and size of sets add over clients."""

import math

import numpy as np
import pytest
import torch

from fedcal.measure.conformal import SetTally


def test_coverage_and_size_add():
    rng = np.random.default_rng(0)
    sets, labels = torch.from_numpy(rng.random((100, 4)) < 0.6), rng.integers(4, size=100)
    whole, parts = SetTally.of(sets, labels), SetTally.of(sets[:30], labels[:30]) + SetTally.of(sets[30:], labels[30:])
    assert whole == parts
    assert whole.mean_size == pytest.approx(float(sets.sum(1).double().mean()))
    assert whole.coverage == float(sets[torch.arange(100), torch.from_numpy(labels)].double().mean())
    assert math.isnan(SetTally.of(sets[:0], labels[:0]).coverage)
