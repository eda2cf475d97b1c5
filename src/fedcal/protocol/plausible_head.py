"""Conditions that sums over features satisfy: what no samples can give is refused (see plausible.py).

HeadStart       whole counts of training samples; a second moment that is positive semi-definite and counts all samples
HeadSums        losses ≥ 0; gradients within Cauchy–Schwarz, those of intercepts adding up to 0; curvature of the right sign
HeadScales      losses ≥ 0
"""

from __future__ import annotations

import math

import numpy as np

from fedcal.base.store import unnest
from fedcal.exact.head import HEAD_ALL
from fedcal.exact.head_queries import HeadSums
from fedcal.exact.linear import unpack_symmetric
from fedcal.protocol.claim import RELATIVE, TINY, Claim, has_root


def check_head_start(claim: Claim) -> None:
    """The second moment of features, and the training samples of each class."""
    trained = claim.content["trained"]
    claim.require((trained >= 0).all() & (trained == np.rint(trained)).all(), "trained", "holds no whole counts")
    moment = unpack_symmetric(claim.content["moment"])
    found, expected = float(moment[-1, -1]), claim.n + float(trained.sum())
    claim.require(found == expected, "moment", f"is of {found:g} samples, but {expected:g} are declared")
    own = moment.diagonal()
    claim.require((own >= 0).all(), "moment", "has a negative square")
    unit = np.maximum(np.sqrt(np.maximum(own, 0)), TINY)
    scaled = moment / unit / unit[:, None]
    claim.require((np.abs(scaled) <= 1 + RELATIVE).all(), "moment", "is not positive semi-definite")
    size = len(moment)
    if size <= 600:
        definite = has_root(scaled + size * RELATIVE * np.eye(size))
        claim.require(definite, "moment", "is not positive semi-definite")


def check_head_sums(claim: Claim) -> None:
    """Losses, gradients and curvature of heads."""
    assert isinstance(claim.query, HeadSums)
    k = claim.n_classes
    for i, of in enumerate(claim.query.points):
        sums = unnest(str(i), claim.content)
        n = claim.n + (claim.known.trained if of.family == HEAD_ALL else 0.0)
        claim.require((sums["loss"] >= 0).all(), f"{i}/loss", "is negative")
        rows = sums["grad"][:, 1:].reshape(len(of.at), k, -1)
        if claim.known.features is not None:  # Σ |x| ≤ √n · √Σ x²; the 1 beside the features is counted among them
            bound = 2 * math.sqrt(n) * math.sqrt(claim.known.features)
            claim.require(
                (np.abs(rows) <= bound).all(), f"{i}/grad", f"is more than {n:g} samples of such features can give"
            )
        drift = rows[:, :, -1].sum(1)
        claim.require((np.abs(drift) <= RELATIVE * n).all(), f"{i}/grad", "has intercepts that do not add up to 0")
        if "hess" not in sums:
            continue
        claim.require(sums["scale"] >= 0, f"{i}/scale", "is negative")
        within = (sums["mass"] >= 0) & (sums["mass"] <= (1 + RELATIVE) * n / 4)
        claim.require(within.all(), f"{i}/mass", f"is not what {n:g} samples can give")
        own = unpack_symmetric(sums["hess"]).diagonal(axis1=1, axis2=2)
        sign = -1.0 if of.curvature == "full" else 1.0  # two different classes, or one with itself
        claim.require((sign * own >= 0).all(), f"{i}/hess", "has a curvature of the wrong sign")


def check_head_scales(claim: Claim) -> None:
    """Losses of heads at several scales."""
    claim.require((claim.content["loss"] >= 0).all(), "loss", "is negative")
