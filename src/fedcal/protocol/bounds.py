"""Bounds of what a server may ask about: parameters that no honest fit reaches are refused by a client with a policy.

    Slope                       1/T within the search's own limits
    maps of logits              a scale times the size of the client's own logits, and every intercept, at most FURTHEST
    Hessians                    only of families that are small enough for one to be sent
    maps of features            the logits that a head gives on the client's own samples, at most FURTHEST
    temperatures to start from  within the limits of a fit
    all other numbers           at most FURTHEST, in units of the client's logits where these are small
    private queries             if the client adds no noise of its own: as the method's other queries

A scale is measured by the client's own logits, so that logits of any size are legal. Far beyond, a softmax becomes a knife
that cuts samples out of a sum, one at a time.
"""

from __future__ import annotations

import math

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.query import Query, leaves, magnitude, parts
from fedcal.errors import FedCalError
from fedcal.exact.head import HEAD, HEAD_ALL, n_head_parameters
from fedcal.exact.head_queries import HeadSums
from fedcal.exact.head_samples import HeadSamples
from fedcal.exact.head_units import head_curvature_of, n_directions
from fedcal.exact.linear import FAMILIES, centre, is_scale, n_parameters
from fedcal.exact.prepared import FoldMap, Prepared
from fedcal.exact.private import whole_hessian
from fedcal.exact.private_queries import Confidences, Gains, MatrixSums, Scales, ScaleSums
from fedcal.exact.private_query import FEATURE, PrivateQuery
from fedcal.exact.queries import Points, Slope, Start
from fedcal.exact.stages import curvature_of
from fedcal.exact.temperature import T_MAX, T_MIN
from fedcal.methods import Method
from fedcal.methods.fit import FitScaler
from fedcal.methods.sets import COUNTS, SetScores, SiteSpread

FURTHEST = 1e4  # a calibrated logit, for a logit of the client's usual size
MOST = 2.0**53  # samples
ROUNDING = 1 + 1e-9
ROWS = 1 << 14


def logit_size(logits: Array) -> float:
    """The root mean square of a client's row-centred logits."""
    blocks = (centre(logits[start : start + ROWS]) for start in range(0, len(logits), ROWS))
    return math.sqrt(sum(float(np.vdot(block, block)) for block in blocks) / max(logits.size, 1))


def usual_logit_size(logits: Array) -> float:
    """The median over samples of the root mean square of their row-centred logits; constant rows are left out.

    Unlike `logit_size`, a single sample changes it little, however large its logits are.
    """
    starts = range(0, len(logits), ROWS)
    sizes = [np.sqrt((centre(logits[start : start + ROWS]) ** 2).mean(1)) for start in starts]
    varied = [size[size > 0] for size in sizes]
    return float(np.median(np.concatenate(varied))) if any(map(len, varied)) else 0.0


def check_bounds(query: Query, size: float, n_classes: int, samples: Prepared | None = None) -> None:
    """Refuse a query at parameters that an honest fit does not reach.

    Args:
        query: what the server asks.
        size: of the client's logits (`logit_size`).
        n_classes: K of its logits.
        samples: the client's, where the method takes features.

    Raises:
        FedCalError: which says what is out of bounds.
    """
    unit = 1 / size if size > 0 else math.inf
    heads = [part for part in parts(query) if isinstance(part, Points | FoldMap) and part.family in (HEAD, HEAD_ALL)]
    if heads or isinstance(query, HeadSums):
        _check_heads(query, heads, n_classes, samples)
    elsewhere = _check_scaler(query.params, n_classes, samples) if isinstance(query, SetScores | SiteSpread) else []
    for name, leaf in leaves(query) if not heads else ():
        if any(leaf is one for one in elsewhere):
            continue
        largest = magnitude(leaf)
        _require(largest <= FURTHEST * max(1.0, unit), f"a number of size {largest:.3g} in {name!r}")
    for part in parts(query):
        if any(part is head for head in heads):
            continue
        if isinstance(part, Points | FoldMap):
            for t in part.at.values() if isinstance(part, FoldMap) else part.at:
                _check_map(part.family, t, unit, n_classes)
            if isinstance(part, Points):
                whole = curvature_of(part.family, n_classes)
                _require(part.curvature in ("none", whole), f"a Hessian of a {part.family} map")
        elif isinstance(part, Slope):
            _require(_within(part.b, 1 / T_MAX, 1 / T_MIN), f"a temperature of {1 / part.b if part.b else math.inf:g}")
        elif isinstance(part, FitScaler):
            for name in ("temperature", "temperatures"):
                for value in part.params.get(name, np.ones(1)).ravel().tolist():
                    _require(_within(value, T_MIN, T_MAX), f"a temperature of {value:g}")
        elif isinstance(part, SetScores | SiteSpread):
            for family in set(part.params) & set(FAMILIES):
                if family != "temperature" or part.params[family].ndim:  # a single temperature is no map of logits
                    _check_map(family, part.params[family], unit, n_classes)


def check_private_bounds(query: PrivateQuery, size: float, method: Method) -> None:
    """Refuse a private query that asks for more than the method does without privacy.

    For a client that adds no noise of its own: nothing else then protects its sums from the server.

    Args:
        query: what the server asks.
        size: of the client's logits (`usual_logit_size`: one sample must not decide whether the client takes part).
        method: the client's.

    Raises:
        FedCalError: which says what is out of bounds.
    """
    _require(query.fits, "parameters of another shape")
    unit, k = 1 / size if size > 0 else math.inf, query.k
    if isinstance(query, Scales):
        _require(not query.labels or Start in method.may_ask, "label counts")
        return
    if Slope in method.may_ask:  # then temperatures have limits of their own, whatever the size of the logits
        for b in _inverse_temperatures(query):
            _require(_within(b, 1 / T_MAX, 1 / T_MIN), f"a temperature of {1 / b if b else math.inf:g}")
        return
    # A clipped logit has a norm of FEATURE at most, whatever its size was.
    of_features = min(1.0, size / query.clip) * FEATURE if isinstance(query, ScaleSums | MatrixSums) else size
    if isinstance(query, ScaleSums):
        _require(query.full == whole_hessian(k, len(query.t) > 1), "a Hessian of a bias map")
        _check_steepness(query.t[:1], query.t[1:], of_features)
    elif isinstance(query, MatrixSums):
        scales = query.w[:, :k]
        _require(query.family == "matrix" or not (scales - np.diag(scales.diagonal())).any(), "a vector map")
        _check_steepness(scales, query.w[:, k], of_features)
    elif isinstance(query, Gains):
        for one in query.maps:
            for family, t in one.items():
                _check_map(family, t, unit, k)
    elif isinstance(query, Confidences):
        _check_steepness(np.array([query.scale]), np.zeros(0), size)


def _inverse_temperatures(query: PrivateQuery) -> list[float]:
    """1/T of each temperature in a private query."""
    if isinstance(query, ScaleSums):
        return [float(query.t[0]) * FEATURE / query.clip]
    maps = query.maps if isinstance(query, Gains) else ()
    return [float(one["temperature"][0]) for one in maps if "temperature" in one]


def _check_steepness(scales: Array, intercepts: Array, size: float) -> None:
    """Refuse a map that makes logits larger than FURTHEST of logits of this size."""
    steep = max(magnitude(scales) * size, magnitude(intercepts))
    _require(steep <= FURTHEST, f"a map that makes logits larger than {FURTHEST:g}")


def _check_heads(query: Query, heads: list[Points | FoldMap], n_classes: int, samples: Prepared | None) -> None:
    for part in heads:
        for t in part.at.values() if isinstance(part, FoldMap) else part.at:
            _check_head(t, n_classes, samples)
        if isinstance(part, Points):
            _require(part.curvature in ("none", head_curvature_of(n_classes)), "a Hessian of a head")
    if isinstance(query, HeadSums):
        d = _with_features(samples).d
        _require(len(query.basis) <= n_directions(n_classes, d), "a Hessian in more directions")


def _check_scaler(params: Params, n_classes: int, samples: Prepared | None) -> list[Array]:
    """Check and return those of a scaler's arrays whose numbers may be large: a head's, and counts of samples."""
    found = [params[name] for name in (HEAD, COUNTS) if name in params]
    if HEAD in params:
        _check_head(params[HEAD], n_classes, samples)
    if COUNTS in params:
        _require(bool(((params[COUNTS] >= 0) & (params[COUNTS] <= MOST)).all()), "numbers of samples")
    return found


def _check_head(t: Array, n_classes: int, samples: Prepared | None) -> None:
    """A head is measured by what it makes of the client's samples: features may be of any size, and far from 0."""
    here = _with_features(samples)
    _require(t.shape == (n_head_parameters(n_classes, here.d),), f"head parameters of shape {tuple(t.shape)}")
    _require(here.largest(t) <= FURTHEST, f"a head that makes logits larger than {FURTHEST:g}")


def _with_features(samples: Prepared | None) -> HeadSamples:
    _require(isinstance(samples, HeadSamples), "a map of features")
    assert isinstance(samples, HeadSamples)
    return samples


def _check_map(family: str, t: Array, unit: float, n_classes: int) -> None:
    _require(family in FAMILIES, f"{family!r}, a family")
    _require(t.shape == (n_parameters(family, n_classes),), f"{family} parameters of shape {tuple(t.shape)}")
    most = np.where(is_scale(family, n_classes), FURTHEST * unit, FURTHEST)
    _require(bool((np.abs(t) <= most).all()), f"a {family} map that makes logits larger than {FURTHEST:g}")


def _within(value: float, low: float, high: float) -> bool:
    return low / ROUNDING <= value <= high * ROUNDING


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise FedCalError(f"the server asks about {what}, which no fit comes to: do not reply to this server")
