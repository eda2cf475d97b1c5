"""Secret sharing: enough shares give the secret back, one fewer leaves every secret possible."""

import secrets

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcal.secure.messages import DoesNotAddUp
from fedcal.secure.shamir import PRIME, combine, split, threshold


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 63), st.randoms(use_true_random=False))
def test_any_threshold_of_shares_gives_the_secret(nodes, random):
    secret, least = secrets.token_bytes(32), threshold(nodes)
    shares = dict(enumerate(split(secret, least, nodes), start=1))
    assert combine({i: shares[i] for i in random.sample(sorted(shares), least)}) == secret


def test_one_share_fewer_fits_every_secret():
    """To threshold − 1 shares and any other secret there is a last share that makes them fit: they say nothing."""
    shares = dict(enumerate(split(secrets.token_bytes(32), 5, 6), start=1))
    known = {i: shares[i] for i in (1, 2, 3, 4)}
    base, one = ({**known, 5: value.to_bytes(33)} for value in (0, 1))
    other = int.from_bytes(secrets.token_bytes(32))
    at_0, at_1 = (_value(shares) for shares in (base, one))
    last = (other - at_0) * pow(at_1 - at_0, -1, PRIME) % PRIME  # the secret is linear in a share
    assert combine({**known, 5: last.to_bytes(33)}) == other.to_bytes(32)


def _value(shares):
    found = 0
    for x, share in shares.items():
        above = below = 1
        for other in shares:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        found += int.from_bytes(share) * above * pow(below, -1, PRIME)
    return found % PRIME


def test_the_modulus_is_prime():
    """Miller–Rabin with 20 random bases."""
    odd, twos = PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for _ in range(20):
        x = pow(2 + secrets.randbelow(PRIME - 3), odd, PRIME)
        assert x == 1 or any(pow(x, 2**i, PRIME) == PRIME - 1 for i in range(twos))


def test_shares_that_do_not_belong_together():
    with pytest.raises(DoesNotAddUp, match="do not belong together"):
        combine({1: (PRIME - 1).to_bytes(33)})


@pytest.mark.parametrize(("nodes", "least"), [(3, 3), (4, 3), (6, 5), (9, 7), (63, 43)])
def test_more_than_two_thirds_are_needed(nodes, least):
    """So that a server that lies about who fell away would need more than a third of the nodes on its side."""
    assert threshold(nodes) == least and 3 * least > 2 * nodes and 2 * least > nodes + nodes // 3
