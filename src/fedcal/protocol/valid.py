"""What stored scalers and states must hold, declared once: headers, and the arrays of every method's scaler.

A file's digest finds accidents. This finds the rest: a file of another version, one that was changed on purpose, and what
no fit gives, such as a temperature of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedcal.base.arrays import Array, Params, softmax
from fedcal.base.codec import check_finite
from fedcal.base.conformal import LEVELS
from fedcal.base.query import Query, magnitude
from fedcal.base.schema import (
    COUNT,
    NAME,
    NUMBER,
    Anything,
    Exactly,
    ListOf,
    MapOf,
    Maybe,
    Number,
    Record,
    Shape,
    Text,
    Truth,
    Tuple,
    check,
)
from fedcal.base.site_sets import CONCENTRATIONS
from fedcal.errors import FedCalError
from fedcal.exact.head import n_head_parameters
from fedcal.exact.linear import FAMILIES, n_parameters
from fedcal.exact.prior_shift import STRENGTHS
from fedcal.exact.temperature import T_MAX, T_MIN
from fedcal.methods import Method
from fedcal.methods.method import Averaged
from fedcal.methods.sets import COUNTS, GLOBAL, NAMES, PERSONAL, SPREAD, SetScores, SiteSpread, WithSets
from fedcal.protocol.messages import MOST_CLASSES

SCALER = 2  # schema of scaler files
LARGEST = 1e150  # a parameter that logits or features are multiplied with: times the largest one it is still a number
LARGEST_IN_NET = 1e60  # the same of a net, whose three layers are multiplied with one another
PRIOR_SHIFT = {"prior", "alpha", "strengths"}  # what clients shift by
CLIENT = Text(any=True)
SHARE = Number(0, 1.001)  # of a privacy budget; shares are added up with rounding
CLASSES = Number(2, MOST_CLASSES, whole=True)
METHOD: dict[str, Shape] = {"method": NAME, "options": MapOf(Anything())}  # `method_from_json` checks them

SCALER_HEADER = Record(
    {
        "schema": Exactly((SCALER,)),
        **METHOD,
        "n_classes": CLASSES,
        "classes": ListOf(Anything()),  # `check_classes` checks them
        "probs": Maybe(Truth()),
        "clients": ListOf(NAME),
    },
    optional={"federation": NAME},
)
LEDGER = Record(
    dict.fromkeys(("rounds", "updates", "bytes_up", "bytes_down", "total_up", "total_down", "restarts"), COUNT)
    | {"spent": SHARE, "dropped": ListOf(CLIENT), "took_part": ListOf(CLIENT), "notes": MapOf(NUMBER)},
    open=True,
)
FIT = Record({"received": COUNT}, optional={"latest": ListOf(Anything()), "order": ListOf(Text())})
LATEST = Tuple((CLIENT, COUNT, ListOf(Text())))  # an averaged client: its name, its samples, the names of its tensors
SERVER_STATE = Record(
    {
        **METHOD,
        "federation": NAME,
        "rounds": COUNT,
        "fit": FIT,
        "ledger": LEDGER,
        "known": MapOf(Tuple((Maybe(COUNT), Maybe(Number(0)), Truth())), any=True),
        "private": MapOf(Record({}, open=True), any=True),
    },
    optional={"features": MapOf(Tuple((Number(0), Number(0))), any=True)},
    open=True,
)
CLIENT_STATE = Record(
    {"federation": Text(1000), "round": COUNT, "spent": SHARE, "order": ListOf(ListOf(Text()), length=2)},
    open=True,
)


def check_client_state(state: Mapping[str, Any]) -> None:
    """Refuse a client's state that no client has left.

    Raises:
        FedCalError: which says what is wrong.
    """
    check(state["about"], CLIENT_STATE, "the client's state is damaged")
    check_finite(state["tensors"])


def check_server_state(state: Mapping[str, Any]) -> None:
    """Refuse a server's state that no server has left.

    Raises:
        FedCalError: which says what is wrong.
    """
    about = state["about"]
    check(about, SERVER_STATE, "the state is damaged")
    for one in about["fit"].get("latest", ()):
        check(one, LATEST, "the state is damaged")
    check_finite(state["tensors"])


def check_alike(found: Params, like: Params) -> None:
    """Refuse tensors of other names, types or shapes than these.

    Raises:
        FedCalError: which names the first one.
    """
    if odd := sorted(set(found) ^ set(like)):
        raise FedCalError(f"{odd[0]!r} {'is missing' if odd[0] in like else 'does not belong there'}")
    for name, value in found.items():
        if value.shape != like[name].shape or value.dtype != like[name].dtype:
            raise FedCalError(f"{name!r} is {value.dtype} of shape {tuple(value.shape)}, not that of a reply")


# --- scalers -----------------------------------------------------------------------------------------------------------


def _rising(value: Array) -> bool:
    return bool((np.diff(value, axis=1) >= 0).all())


def _of_size(most: float) -> Callable[[Array], bool]:
    return lambda value: magnitude(value) <= most


def _distribution(value: Array) -> bool:
    return bool((value >= 0).all()) and abs(float(value.sum()) - 1) < 1e-6


BOUNDS: dict[str, Callable[[Array], bool]] = {  # what holds of a tensor of this name, in every method that has one
    "temperatures": lambda value: value.ndim == 1 and bool(((value >= T_MIN) & (value <= T_MAX)).all()),
    "beta": lambda value: bool((value[:2] >= 0).all()),
    "hist": _rising,
    "prior": _distribution,
    "strengths": _distribution,
    "alpha": lambda value: bool(value > 0),
    "least": lambda value: bool((value >= 0) & (value <= 1)),
    **dict.fromkeys((*FAMILIES, "weight", "head", "model_weight", "model_bias"), _of_size(LARGEST)),
    **dict.fromkeys(("w1", "b1", "w2", "b2", "w3", "b3"), _of_size(LARGEST_IN_NET)),
}


def _no_stream() -> Any:
    raise AssertionError("a scaler without a net draws nothing")


def _shapes(method: Method, k: int) -> dict[str, tuple[int | None, ...]]:
    """The shapes of a scaler's tensors, by name; None stands for any length."""
    if (h := getattr(method, "hidden", None)) is not None:
        net: dict[str, tuple[int | None, ...]] = {
            "w1": (h, k), "b1": (h,), "w2": (h, h), "b2": (h,), "w3": (k, h), "b3": (k,)
        }  # fmt: skip
        return net if isinstance(method, Averaged) else {**net, "fallback": ()}
    if isinstance(method, Averaged):
        known = {name: tuple(value.shape) for name, value in method.init(k, _no_stream).items()}
        return {name: (None,) if name == "temperatures" else shape for name, shape in known.items()}
    linear: dict[str, tuple[int | None, ...]] = {family: (n_parameters(family, k),) for family in FAMILIES}
    if method.name == "fed-ts":
        linear["temperature"] = ()
    if method.takes == "features":
        d = method.width(k) - k - 1
        linear |= {"head": (n_head_parameters(k, d),), "model_weight": (k, d), "model_bias": (k,), "trained": ()}
    maps = {"beta": (3,), "hist": (2, None), "order": (1,), "least": (), "fallback": ()}
    return {**linear, **maps, "prior": (k,), "alpha": (), "strengths": (len(STRENGTHS),)}


def check_params(method: Method, params: Params, n_classes: int) -> None:
    """Refuse parameters that are none of this method's scaler for so many classes.

    Raises:
        FedCalError: which names the first one that is wrong.
    """
    _check_tensors(params)
    _check_sets(method, {name: value for name, value in params.items() if name in NAMES}, n_classes)
    if ("model_weight" in params) != ("model_bias" in params):
        raise FedCalError("it has one of 'model_weight' and 'model_bias': a last layer is both")
    if 0 < len(PRIOR_SHIFT & params.keys()) < len(PRIOR_SHIFT):
        raise FedCalError("it has some of 'prior', 'alpha' and 'strengths': a prior shift needs all three")
    shapes = _shapes(method, n_classes)
    for name, value in params.items():
        shape = shapes.get(name)
        if shape is None and isinstance(method, Averaged):
            raise FedCalError(f"{method.name} has no {name!r}")
        if shape is not None and not _has_shape(value, shape):
            raise FedCalError(f"{name!r} has the shape {tuple(value.shape)}, not {shape}")
        if name == "temperature" and value.ndim == 0 and not T_MIN <= float(value) <= T_MAX:
            raise FedCalError(f"a temperature of {float(value):g}: it must lie within {T_MIN} and {T_MAX}")
        if name in BOUNDS and not BOUNDS[name](value):
            raise FedCalError(f"{name!r} holds numbers that no fit gives")
    _probe(method, params, n_classes)


def _has_shape(value: Array, shape: tuple[int | None, ...]) -> bool:
    return value.ndim == len(shape) and all(b in (None, a) and a for a, b in zip(value.shape, shape, strict=True))


def check_personal(method: Method, personal: Params, params: Params, n_classes: int) -> None:
    """Refuse a client's personal part that does not belong to this scaler.

    Raises:
        FedCalError: which says what is wrong.
    """
    _check_tensors(personal)
    if isinstance(method, WithSets) and method.sets.coverage == "site" and GLOBAL in personal:
        _check_curve(method, GLOBAL, personal[GLOBAL], n_classes)
        personal = {name: value for name, value in personal.items() if name != GLOBAL}
    if personal and isinstance(method, Averaged):
        check_params(method, personal, n_classes)
    elif personal and (set(personal) != {"shift"} or personal["shift"].shape != (n_classes,) or "prior" not in params):
        raise FedCalError(f"{method.name} gives a client no {', '.join(sorted(personal))} of that shape")


def _check_sets(method: Method, found: Params, n_classes: int) -> None:
    """Refuse thresholds of conformal sets that no federation comes to."""
    if not isinstance(method, WithSets):
        if found:
            raise FedCalError(f"{method.name} was fitted without sets and has no {min(found)!r}")
        return
    needed = {GLOBAL, COUNTS, *([SPREAD] if method.sets.coverage == "site" else [])}
    if odd := sorted((needed - set(found)) | (set(found) - needed - {PERSONAL})):
        raise FedCalError(f"{odd[0]!r} {'is missing' if odd[0] in needed else 'does not belong there'}")
    kinds = n_classes + 1 if method.sets.coverage == "class" else 1  # the last: classes that clients did not show
    counts = found[COUNTS]
    if counts.shape != (kinds,) or not bool(((counts >= 0) & (counts == counts.round())).all()):
        raise FedCalError(f"{COUNTS!r} does not count the held-out samples")
    for name in {GLOBAL, PERSONAL} & set(found):
        _check_curve(method, name, found[name], n_classes)
    if SPREAD in found:
        weights = found[SPREAD]
        sums = weights.sum(-1)
        right = weights.shape == (len(LEVELS), len(CONCENTRATIONS)) and bool((weights >= 0).all())
        if not right or not bool((np.abs(sums - 1) < 1e-6).all()):
            raise FedCalError(f"{SPREAD!r} holds no weights")


def check_set_query(method: Method, query: Query, n_classes: int) -> None:
    """Refuse a request for held-out scores under a scaler, or thresholds, that no fit gives.

    Raises:
        FedCalError: which says what is wrong with it.
    """
    if not isinstance(method, WithSets) or not isinstance(query, SetScores | SiteSpread):
        return
    params, curves = query.params, (GLOBAL, PERSONAL) if isinstance(query, SiteSpread) else ()
    try:
        for name in curves:
            if name in params:
                _check_curve(method, name, params[name], n_classes)
        if isinstance(query, SiteSpread) and not (GLOBAL in params and COUNTS in params and params[COUNTS].size == 1):
            raise FedCalError("the federation's thresholds are missing")
        check_params(method.inner, {name: value for name, value in params.items() if name not in NAMES}, n_classes)
    except FedCalError as error:
        raise FedCalError(
            f"the server asks for scores under no scaler ({error}): do not reply to this server"
        ) from None


def _check_curve(method: WithSets, name: str, curve: Array, n_classes: int) -> None:
    """Thresholds lie within the score's range, and do not grow with α."""
    shape, most = (len(LEVELS), n_classes if method.sets.coverage == "class" else 1), method.sets.edges(n_classes)[-1]
    if curve.shape != shape or curve.dtype != np.float64:
        raise FedCalError(f"{name!r} is {curve.dtype} of shape {tuple(curve.shape)}, not float64 of {shape}")
    if not bool(((curve >= 0) & (curve <= most)).all()) or bool((np.diff(curve, axis=0) > 0).any()):
        raise FedCalError(f"{name!r} holds no thresholds of {method.sets.score} scores")


def _check_tensors(params: Params) -> None:
    for name, value in params.items():
        if value.dtype not in (np.float32, np.float64):
            raise FedCalError(f"{name!r} is {value.dtype}: it must be float32 or float64")
    check_finite(params)


def _probe(method: Method, params: Params, n_classes: int) -> None:
    """Whether the scaler gives probabilities for some logits: it then has all that its method needs."""
    logits = np.zeros((3, method.width(n_classes)))
    logits[0, 0], logits[1, -1], logits[2, 1] = 1.0, 20.0, -3.0
    try:
        with np.errstate(all="ignore"):
            probs = softmax(method.apply(params, logits), 1)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise FedCalError(f"{method.name} cannot use these tensors ({type(error).__name__})") from None
    if probs.shape != (3, n_classes) or not bool(np.isfinite(probs).all()):
        raise FedCalError(f"what {method.name} makes of some logits is not finite")
