"""The choice among refitted last layers."""

from __future__ import annotations

import numpy as np
import pytest

from fedcal.exact.head_choice import rescale
from fedcal.exact.head_fit import RIDGES, finish_heads, fit_heads
from fedcal.exact.head_queries import HeadStart
from fedcal.exact.head_units import Units
from heads import clients_of, drive, whole


@pytest.mark.parametrize(("k", "d"), [(3, 60), (4, 400)])
def test_a_head_is_judged_without_the_samples_that_it_was_fitted_on(k, d):
    """Labels that have nothing to do with the features, and more features than samples: no head can tell any of them."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(150, d)), rng.integers(k, size=150)
    samples, clients = whole(x, y, (rng.normal(size=(k, d)) / d**0.5, np.zeros(k))), clients_of(k, 150)

    def program():
        units = Units.of((yield HeadStart()), clients)
        tried = yield from fit_heads(tuple(d * ridge for ridge in RIDGES), units, clients)
        first = yield from rescale(tried)
        yield from finish_heads(tried[-1:])
        return [*first, *(yield from rescale(tried[-1:]))]

    losses, _ = drive(program(), samples)
    assert min(losses) > 0.95 * 150 * np.log(k)
