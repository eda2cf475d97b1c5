"""Replies that samples give pass; replies that no samples can give are refused, with the client and the field named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conversations import ADDITIVE, Samples, converse, make_samples
from fedcal import METHODS, FedCalError
from fedcal.base.query import Query
from fedcal.exact import queries, stages
from fedcal.exact.head_queries import HeadScales, HeadStart, HeadSums
from fedcal.methods.fed_op import NetGradient
from fedcal.methods.fit import FitScaler
from fedcal.methods.sets import SET_QUERIES, SetScores, SiteSpread
from fedcal.protocol import plausible
from fedcal.protocol.claim import Claim, Known
from fedcal.protocol.plausible import CHECKS, check_plausible, check_size

SITES = "fedcal-plus:coverage=site"


def claims(spec: str, samples: Samples) -> Iterator[Claim]:
    """Every client's claims in every round of a fit."""
    known: dict[str, Known] = {}
    for server, request, replies in converse(spec, samples):
        for name, reply in replies.items():
            known[name] = known.get(name, Known()).after(reply)
            if reply.content:
                yield Claim(name, request.query, reply.content, reply.n, server.plan.n_classes, known[name])


def check(claim: Claim) -> None:
    check_size(claim)
    check_plausible(claim)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=3),
    k=st.integers(2, 6),
    exponent=st.sampled_from([-300, -100, -8, -2, 0, 1, 5, 8]),
    seed=st.integers(0, 99),
)
@pytest.mark.filterwarnings("ignore:fed-ts. the fit ended")
@pytest.mark.parametrize("name", ADDITIVE)
def test_honest_replies_pass(name: str, sizes: list[int], k: int, exponent: int, seed: int) -> None:
    """Of every additive method, at any scale of the logits."""
    for claim in claims(name, make_samples(sizes, k, 10.0**exponent, seed)):
        check(claim)


@pytest.mark.filterwarnings("ignore:fed-ts. the fit ended")
@pytest.mark.parametrize("scale", [1e5, 1e8])
@pytest.mark.parametrize("name", ["fed-ts", "fed-bias", "fed-vector", "fed-matrix"])
def test_large_logits_are_honest(name: str, scale: float) -> None:
    """Also where no sample is near a tie: sums of such samples are rounding errors of large numbers."""
    z, y = make_samples([200], 5, scale)[0]
    sure = z + 50 * scale * np.eye(5)[y]
    for samples in ([(z, y)], [(sure, y)], [(z, y), (sure, y)]):
        for claim in claims(name, samples):
            check(claim)


@pytest.mark.parametrize("name", ["fed-bias", "fed-vector", "fed-matrix"])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_honest_replies_about_many_classes_pass(name: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the Hessian, only what couples a class with itself."""
    for limit in ("NEWTON_MAX", "MATRIX_NEWTON_MAX", "BLOCKS_MAX"):
        monkeypatch.setattr(stages, limit, 0)
    found = list(claims(name, make_samples([70, 40], 5, scale)))
    assert any(field.endswith("/diag") for claim in found for field in claim.content)
    for claim in found:
        check(claim)


# --- what is refused -------------------------------------------------------------------------------------------------------


@cache
def honest() -> list[Claim]:
    """Claims of every kind, of one client among three."""
    small = make_samples([80, 90, 100], 3)
    names = ("fedcal-plus", "fed-vector", "fed-ts", "fed-op:rounds=3", "avg-t", "fed-head:features=4", SITES)
    found = [c for name in names for c in claims(name, small)]
    with pytest.MonkeyPatch.context() as patch:  # as with many classes
        patch.setattr(stages, "NEWTON_MAX", 0)
        patch.setattr(stages, "MATRIX_NEWTON_MAX", 0)
        found += [c for name in ("fed-vector", "fed-matrix") for c in claims(name, small)]
    return [claim for claim in found if claim.client == "site1"]


Where = tuple[type[Query], tuple[str, str] | None, str]  # the query's type, family and curvature, the name in the reply


def claim_with(where: Where) -> tuple[Claim, str]:
    """The first honest claim about such a query, and the name of such a field in it."""
    kind, wanted, name = where
    for claim in honest():
        if type(claim.query) is not kind:
            continue
        if not isinstance(claim.query, queries.LinearSums | HeadSums):
            if name in claim.content:
                return claim, name
            continue
        for i, of in enumerate(claim.query.points):
            if (of.family, of.curvature) == wanted and f"{i}/{name}" in claim.content:
                return claim, f"{i}/{name}"
    raise AssertionError(f"no reply holds {where}")


def put(value: float, *at: int) -> Callable[[np.ndarray, Claim], None]:
    """Set one entry (all of a scalar)."""
    return lambda array, _: array.__setitem__(at, value)


def plus(value: float, *at: int) -> Callable[[np.ndarray, Claim], None]:
    return lambda array, _: array.__setitem__(at, array[at] + value)


def times(value: float) -> Callable[[np.ndarray, Claim], None]:
    return lambda array, _: np.multiply(array, value, out=array)


def move(value: float, here: int, there: int) -> Callable[[np.ndarray, Claim], None]:
    """From one entry to another: the sum stays."""

    def change(tensor: np.ndarray, _: Claim) -> None:
        tensor[here] += value
        tensor[there] -= value

    return change


def indefinite(tensor: np.ndarray, _: Claim) -> None:
    """An off-diagonal entry of each triangle beyond the geometric mean of its diagonal ones; these stay as they are."""
    size = round((2 * tensor.shape[-1]) ** 0.5 - 0.5)
    tensor[..., size - 1] = 1.5 * np.sqrt(tensor[..., 0] * tensor[..., -1])


def histogram(row: int, change: Callable[[float], float]) -> Callable[[np.ndarray, Claim], None]:
    """In the fullest bin of the first fold: counts, hits, confidences, log p and −log(1 − p) are its rows."""

    def apply(tensor: np.ndarray, _: Claim) -> None:
        at = 0, row, int(tensor[0, 0].argmax())
        tensor[at] = change(tensor[at])

    return apply


Damage = tuple[Where, Callable[[np.ndarray, Claim], object], str]


def of(
    kind: type[Query],
    *damages: tuple[str, Callable[[np.ndarray, Claim], object], str],
    linear: tuple[str, str] | None = None,
) -> list[Damage]:
    """Damages of replies to queries of one type; of linear sums, of one family and curvature."""
    return [((kind, linear, name), change, words) for name, change, words in damages]


LOSSES = [
    ("sum", times(-1), "negative loss"),
    ("sum", times(10), "'gram' does not fit"),
    ("gram", times(0.01), "does not fit"),
    ("gram", times(100), "does not fit"),
    ("hits", plus(0.5, 0), "no whole number"),
    ("hits", put(91, 0), "more hits than the 90 samples"),
    ("hits", put(-1, 0), "negative count"),
]
DAMAGES: list[Damage] = [
    *of(
        HeadStart,
        ("trained", plus(0.5, 0), "no whole counts"),
        ("trained", plus(-1000, 0), "no whole counts"),
        ("trained", plus(1, 0), "samples, but"),
        ("moment", plus(1, -1), "samples, but"),
        ("moment", times(-1), "samples, but"),
        ("moment", put(-1.0, 0), "has a negative square"),
        ("moment", put(1e9, 1), "is not positive semi-definite"),
    ),
    *of(
        HeadSums,
        ("loss", times(-1), "is negative"),
        ("grad", put(1e6, 0, 1), "is more than 60 samples of such features can give"),
        ("grad", plus(1, 0, -1), "intercepts that do not add up to 0"),
        ("hess", times(-1), "curvature of the wrong sign"),
        ("mass", put(-1.0, 0), "is not what 60 samples can give"),
        ("mass", put(1e3, 0), "is not what 60 samples can give"),
        ("scale", times(-1), "is negative"),
        linear=("head", "full"),
    ),
    *of(HeadScales, ("loss", times(-1), "is negative")),
    *of(
        queries.Start,
        ("n", plus(1), "samples"),
        ("n", plus(-1), "samples"),
        ("n", plus(0.5), "no whole number"),
        ("n", times(-1), "negative count"),
        ("labels", plus(1, 0), "counts 91 samples, but 90"),
        ("labels", move(1000, 0, 1), "negative count"),
        ("labels", move(0.5, 0, 1), "no whole number"),
        ("squares", times(-1), "is negative"),
        ("agreement", times(1e3), "these squares allow"),
        ("agreement", times(-1e3), "these squares allow"),
        ("folds", plus(1, 0), "counts 91 samples"),
        ("folds", move(1000, 0, 1), "negative count"),
        ("folds", move(0.5, 0, 1), "no whole number"),
    ),
    *of(queries.Slope, ("slope", put(-1, 1), "negative curvature")),
    *of(
        queries.LinearSums,
        ("loss", times(-1), "is negative"),
        ("grad", put(1e6, 0, 0), "can give"),
        ("grad", put(-1e6, 0, 0), "can give"),
        ("grad", plus(1, 0, -1), "add up to 0"),
        ("hess", times(-1), "negative second derivative"),
        ("hess", put(-1, 0), "negative second derivative"),
        ("hess", put(1e6, 0), "can give"),
        ("hess", indefinite, "not positive semi-definite"),
        linear=("vector", "full"),
    ),
    *of(queries.LinearSums, ("hess", times(-1), "negative second derivative"), linear=("temperature", "full")),
    *of(queries.LinearSums, ("hess", indefinite, "not positive semi-definite"), linear=("bias", "full")),
    *of(
        queries.LinearSums,
        ("hess", times(-1), "negative second derivative"),
        ("hess", put(-1e6, 0, 0), "can give"),
        ("grad", plus(1, 0, -1), "add up to 0"),
        linear=("matrix", "full"),
    ),
    *of(
        queries.LinearSums,
        ("loss", times(-1), "is negative"),
        ("grad", put(1e6, 0, 0), "can give"),
        ("grad", plus(1, 0, -1), "add up to 0"),
        linear=("matrix", "none"),
    ),
    *of(
        queries.LinearSums,
        ("loss", times(-1), "is negative"),
        ("grad", put(1e6, 0, 0), "can give"),
        ("diag", put(-1, 0), "negative second derivative"),
        ("diag", put(1e6, 0), "can give"),
        ("cross", put(1e6, 0), "not positive semi-definite"),
        linear=("vector", "diagonal"),
    ),
    *of(
        queries.LinearSums,
        ("blocks", put(-1, 2, 0), "negative second derivative"),
        ("blocks", put(1e9, 2, 0), "can give"),
        ("blocks", indefinite, "not positive semi-definite"),
        linear=("matrix", "blocks"),
    ),
    *of(
        queries.Histogram,
        ("histogram", histogram(0, lambda bin: bin * -1), "negative count"),
        ("histogram", histogram(0, lambda bin: bin + 1), "counts 91 samples"),
        ("histogram", histogram(0, lambda bin: bin + 0.5), "no whole number"),
        ("histogram", histogram(1, lambda bin: bin + 100), "more hits than samples"),
        ("histogram", histogram(1, lambda bin: bin + -0.5), "no whole number"),
        ("histogram", histogram(1, lambda bin: -1), "negative count"),
        ("histogram", histogram(2, lambda bin: bin + 100), "confidence outside"),
        ("histogram", histogram(2, lambda bin: -0.1), "confidence outside"),
        ("histogram", histogram(3, lambda bin: 1), "probability outside"),
        ("histogram", histogram(4, lambda bin: -1), "probability outside"),
        ("histogram", histogram(3, lambda bin: bin * 3), "outside their bin"),
        ("histogram", histogram(4, lambda bin: bin * 3), "outside their bin"),
    ),
    *of(
        queries.Score,
        *LOSSES,
        ("gram", put(-1e-3, 1), "negative product"),
        ("gram", put(1e6, 1), "not positive semi-definite"),
    ),
    *of(queries.CountsLikelihood, ("likelihood", times(-1), "is positive")),
    *of(
        queries.ShiftEvidence,
        ("evidence", times(-1), "is positive"),
        ("evidence", plus(-1, 3), "contradicts itself"),
        ("evidence", plus(-1, -1), "contradicts itself"),
    ),
    *of(
        NetGradient,
        ("n", plus(1), "add up to 91 samples"),
        ("n", plus(0.5), "no whole number"),
        ("stop_n", plus(1), "add up to 91 samples"),
        ("stop_n", times(-1), "negative count"),
        ("stop_loss", times(-1), "is negative"),
    ),
    *of(
        SetScores,
        ("set_thresholds", plus(0.5, 0, 0), "no whole number"),
        ("set_thresholds", plus(-1, 0, 0), "negative count"),
        ("set_thresholds", plus(1, 0, 0), "counts fewer samples than the other scores"),
        ("set_thresholds", plus(1000, 0, 0), "held-out samples, but 72 are fitted on"),
        ("set_thresholds", plus(30, 0, 0), "held-out samples, but 72 are fitted on"),
    ),
    *of(SiteSpread, ("likelihood", times(-1), "is positive")),
    *of(FitScaler, ("temperature", times(-1), "a fit gives 0.05 to 20"), ("temperature", times(0), "is 0,")),
]


def test_sums_that_come_added_up_are_checked_as_those_of_several_clients() -> None:
    """As secure aggregation gives them: evidence of three clients that differ is no evidence of one, but negative it is."""
    found = claims("fedcal-plus", make_samples([80, 90, 100], 3))
    asked = [claim for claim in found if isinstance(claim.query, queries.ShiftEvidence)]
    assert len(asked) == 3
    total = {"evidence": np.stack([claim.content["evidence"] for claim in asked]).sum(0)}
    check(replace(asked[0], content=total, clients=3))
    with pytest.raises(FedCalError, match="contradicts itself"):
        check(replace(asked[0], content=total))
    with pytest.raises(FedCalError, match="is positive"):
        check(replace(asked[0], content={"evidence": -total["evidence"]}, clients=3))


@pytest.mark.parametrize("damage", DAMAGES, ids=[f"{d[0][0].__name__} {d[0][2]}: {d[2]}" for d in DAMAGES])
def test_what_no_samples_can_give_is_refused(damage: Damage) -> None:
    where, change, words = damage
    claim, name = claim_with(where)
    check(claim)
    content = {key: value.copy() for key, value in claim.content.items()}
    change(content[name], claim)
    with pytest.raises(FedCalError, match=re.escape(words)) as refused:
        check(replace(claim, content=content))
    said = str(refused.value)
    assert "\n" not in said and said.startswith("site1's reply: '")
    # one of two that contradict each other
    assert repr(name) in said or name in ("n", "sum", "set_thresholds", "trained")


def test_every_kind_of_query_has_conditions_and_is_attacked() -> None:
    assert {where[0] for where, _, _ in DAMAGES} == set(CHECKS)
    asked = {kind for method in METHODS.values() for kind in method.may_ask} | set(SET_QUERIES)
    assert asked == set(CHECKS)


def test_what_is_not_finite_or_beyond_all_measure_is_refused() -> None:
    """In every field of every reply."""
    for claim in honest():
        for name, value in claim.content.items():
            for bad in (float("nan"), float("inf"), -float("inf"), 1e200):
                damaged = value.copy()
                damaged.flat[-1] = bad
                with pytest.raises(FedCalError, match=f"site1's reply: {name!r}"):
                    check_size(replace(claim, content={**claim.content, name: damaged}))


def test_large_hessians_are_checked_by_their_minors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "EXACT_UP_TO", 1)
    claim, name = claim_with((queries.LinearSums, ("vector", "full"), "hess"))
    check(claim)
    content = {**claim.content, name: claim.content[name].copy()}
    indefinite(content[name], claim)
    with pytest.raises(FedCalError, match="not positive semi-definite"):
        check(replace(claim, content=content))


def test_noised_replies_have_only_their_size_checked() -> None:
    claim, _ = claim_with((queries.Start, None, "labels"))
    noised = {name: value + np.random.default_rng(0).normal(size=value.shape) for name, value in claim.content.items()}
    check_size(replace(claim, content=noised))
    with pytest.raises(FedCalError):
        check_plausible(replace(claim, content=noised))
