from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal.data import deal

rngs = st.integers(0, 10_000).map(np.random.default_rng)


@settings(max_examples=60, deadline=None)
@given(rng=rngs, n=st.integers(0, 300), clients=st.integers(1, 30), beta=st.floats(1e-12, 1e6))
def test_each_class_is_dealt_in_its_shares(rng, n, clients, beta):
    labels = rng.integers(0, 4, n)
    shares = deal.dirichlet_shares(4, clients, beta, rng)
    owners = deal.by_shares(labels, shares, rng)
    for k in range(4):
        got = np.bincount(owners[labels == k], minlength=clients)
        assert got.sum() == (labels == k).sum()
        assert np.abs(got - shares[k] * got.sum()).max() <= 1 + 1e-9, "a share is missed by rounding only"


@settings(max_examples=40, deadline=None)
@given(rng=rngs, n=st.integers(0, 300), clients=st.integers(1, 30))
def test_iid_sizes_differ_by_at_most_one(rng, n, clients):
    sizes = np.bincount(deal.iid(np.zeros(n, np.int64), clients, rng), minlength=clients)
    assert sizes.sum() == n and np.ptp(sizes) <= 1


@settings(max_examples=40, deadline=None)
@given(rng=rngs, clients=st.integers(1, 40), classes=st.integers(1, 20), data=st.data())
def test_shards_use_all_classes_evenly(rng, clients, classes, data):
    each = data.draw(st.integers(-(-classes // clients), classes))
    holds = deal.shard_shares(classes, clients, each, rng) > 0
    assert (holds.sum(0) == each).all()
    assert np.ptp(holds.sum(1)) <= 1 and holds.sum(1).min() >= 1


@settings(max_examples=60, deadline=None)
@given(rng=rngs, clients=st.integers(1, 20), spare=st.integers(0, 200), least=st.integers(1, 50))
def test_top_up_feeds_everyone_and_takes_only_from_the_rich(rng, clients, spare, least):
    before = rng.integers(0, clients, clients + spare) ** 3 // clients**2  # many starve
    after = deal.top_up(before, clients, least, rng)
    floor = min(least, len(before) // clients)
    old, new = (np.bincount(owners, minlength=clients) for owners in (before, after))
    assert new.min() >= floor >= 1 and new.sum() == old.sum()
    assert (new[old <= floor] == floor).all() and (new <= np.maximum(old, floor)).all()
