import numpy as np

from fedcal.base.bins import equal_mass


def test_every_joined_bin_holds_its_share():
    count = np.array([5, 5, 0, 10, 10, 10, 0, 20])
    starts = equal_mass(count, 3)
    assert starts.tolist() == [0, 4, 6]
    assert np.add.reduceat(count, starts).tolist() == [20, 20, 20]


def test_a_crowded_bin_leaves_fewer():
    assert equal_mass(np.array([1, 98, 1]), 15).tolist() == [0, 2]
    assert equal_mass(np.zeros(4), 2).tolist() == [0]
    assert equal_mass(np.array([3, 3]), 1).tolist() == [0]
