"""Replies that samples give pass; replies that no samples can give are refused, with the client and the field named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conversations import Samples, converse, make_samples
from fedcal import METHODS, FedCalError
from fedcal.base.query import Query
from fedcal.exact import queries, stages
from fedcal.methods import fedcal_plus
from fedcal.methods.fed_op import NetGradient
from fedcal.methods.fit import FitScaler
from fedcal.protocol import plausible
from fedcal.protocol.checks import Known
from fedcal.protocol.plausible import CHECKS, Claim, check_plausible, check_size, parts

ADDITIVE = [name for name, method in METHODS.items() if method.additive]


def claims(spec: str, samples: Samples) -> Iterator[Claim]:
    """Every client's claims in every round of a fit."""
    known: dict[str, Known] = {}
    for server, request, replies in converse(spec, samples):
        for name, reply in replies.items():
            known[name] = known.get(name, Known()).after(reply)
            if reply.content:
                k, squares = server.plan.n_classes, known[name].squares
                yield from parts(Claim(name, request.query, reply.content, reply.n, k, squares))


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
@pytest.mark.parametrize("name", ADDITIVE)
def test_honest_replies_pass(name: str, sizes: list[int], k: int, exponent: int, seed: int) -> None:
    """Of every additive method, at any scale of the logits."""
    for claim in claims(name, make_samples(sizes, k, 10.0**exponent, seed)):
        check(claim)


@pytest.mark.parametrize("scale", [1e5, 1e8])
@pytest.mark.parametrize("name", ["fed-ts", "fed-bias", "fed-vector", "fed-matrix"])
def test_large_logits_are_honest(name: str, scale: float) -> None:
    """Also where no sample is near a tie: sums of such samples are rounding errors of large numbers."""
    z, y = make_samples([200], 5, scale)[0]
    sure = z + 50 * scale * torch.nn.functional.one_hot(y, 5)
    for samples in ([(z, y)], [(sure, y)], [(z, y), (sure, y)]):
        for claim in claims(name, samples):
            check(claim)


@pytest.mark.parametrize("name", ["fed-bias", "fed-vector", "fed-matrix"])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_honest_replies_about_many_classes_pass(name: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the Hessian, only what couples a class with itself."""
    monkeypatch.setattr(stages, "NEWTON_MAX", 0)
    monkeypatch.setattr(stages, "BLOCKS_MAX", 0)
    found = list(claims(name, make_samples([70, 40], 5, scale)))
    assert any(field.endswith("/diag") for claim in found for field in claim.content)
    for claim in found:
        check(claim)


def test_honest_replies_about_a_share_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server chooses on a share of the samples, of which some clients have none."""
    monkeypatch.setattr(fedcal_plus, "N_CHOOSE", 500)
    empty = claimed = 0
    for server, _, replies in converse("fedcal-plus", make_samples([300] * 8, 3)):
        for name, reply in replies.items():
            server.check(name, reply)
            server.known[name] = server.known.get(name, Known()).after(reply)
            empty, claimed = empty + (not reply.content), claimed + bool(reply.content)
    assert empty and claimed


# --- what is refused -------------------------------------------------------------------------------------------------------


@cache
def honest() -> list[Claim]:
    """Claims of every kind, of one client among three."""
    small, wide = make_samples([80, 90, 100], 3), make_samples([80, 90], 20)
    found = [
        c for name in ("fedcal-plus", "fed-vector", "fed-ts", "fed-op:rounds=3", "avg-t") for c in claims(name, small)
    ]
    found += claims("fed-matrix", wide)
    with pytest.MonkeyPatch.context() as patch:  # as with many classes
        patch.setattr(stages, "NEWTON_MAX", 0)
        found += claims("fed-vector", small)
    return [claim for claim in found if claim.client == "site1"]


Where = tuple[type[Query], dict[str, str], str]  # the query's type, values of its fields, the name in the reply


def claim_with(where: Where) -> Claim:
    """The first honest claim about such a query with such a field."""
    kind, fields, name = where
    for claim in honest():
        fits = type(claim.query) is kind and all(getattr(claim.query, key) == value for key, value in fields.items())
        if fits and name in claim.content:
            return claim
    raise AssertionError(f"no reply holds {where}")


def put(value: float, *at: int) -> Callable[[Tensor, Claim], None]:
    """Set one entry (all of a scalar)."""
    return lambda tensor, _: tensor[at].fill_(value)


def plus(value: float, *at: int) -> Callable[[Tensor, Claim], None]:
    return lambda tensor, _: tensor[at].add_(value)


def times(value: float) -> Callable[[Tensor, Claim], None]:
    return lambda tensor, _: tensor.mul_(value)


def move(value: float, here: int, there: int) -> Callable[[Tensor, Claim], None]:
    """From one entry to another: the sum stays."""

    def change(tensor: Tensor, _: Claim) -> None:
        tensor[here] += value
        tensor[there] -= value

    return change


def indefinite(tensor: Tensor, _: Claim) -> None:
    """Off-diagonal entries beyond the geometric mean of their diagonal ones; these stay as they are."""
    last = tensor.shape[-1] - 1
    beyond = 1.5 * (tensor[..., 0, 0] * tensor[..., last, last]).sqrt()
    tensor[..., 0, last] = tensor[..., last, 0] = beyond


def histogram(row: int, change: Callable[[Tensor], None]) -> Callable[[Tensor, Claim], None]:
    """In the fullest bin of the first fold: counts are row 0, confidences 1, hits 2."""

    def apply(tensor: Tensor, _: Claim) -> None:
        change(tensor[0, row, int(tensor[0, 0].argmax())])

    return apply


Damage = tuple[Where, Callable[[Tensor, Claim], object], str]


def of(kind: type[Query], *damages: tuple[str, Callable[[Tensor, Claim], object], str], **fields: str) -> list[Damage]:
    """Damages of replies to queries of one type."""
    return [((kind, fields, name), change, words) for name, change, words in damages]


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
        ("-1/loss", times(-1), "is negative"),
        ("-1/grad", put(1e6, 0), "can give"),
        ("-1/grad", put(-1e6, 0), "can give"),
        ("-1/grad", plus(1, -1), "add up to 0"),
        ("-1/hess", times(-1), "negative second derivative"),
        ("-1/hess", put(-1, 0, 0), "negative second derivative"),
        ("-1/hess", put(1e6, 0, 0), "can give"),
        ("-1/hess", plus(1, 0, 1), "not symmetric"),
        ("-1/hess", indefinite, "not positive semi-definite"),
        family="vector",
        curvature="full",
    ),
    *of(queries.LinearSums, ("0/hess", times(-1), "negative second derivative"), family="temperature"),
    *of(queries.LinearSums, ("0/hess", indefinite, "not positive semi-definite"), family="bias"),
    *of(
        queries.LinearSums,
        ("-1/loss", times(-1), "is negative"),
        ("-1/grad", put(1e6, 0), "can give"),
        ("-1/grad", plus(1, -1), "add up to 0"),
        family="matrix",
        curvature="none",
    ),
    *of(
        queries.LinearSums,
        ("-1/loss", times(-1), "is negative"),
        ("-1/grad", put(1e6, 0), "can give"),
        ("-1/diag", put(-1, 0), "negative second derivative"),
        ("-1/diag", put(1e6, 0), "can give"),
        ("-1/cross", put(1e6, 0), "not positive semi-definite"),
        family="vector",
        curvature="diagonal",
    ),
    *of(
        queries.MatrixBlocks,
        ("blocks", put(-1, 3, 2, 2), "negative second derivative"),
        ("blocks", put(1e9, 3, 2, 2), "can give"),
        ("blocks", plus(1, 3, 0, 1), "not symmetric"),
        ("blocks", indefinite, "not positive semi-definite"),
    ),
    *of(
        queries.Histogram,
        ("histogram", histogram(0, lambda bin: bin.mul_(-1)), "negative count"),
        ("histogram", histogram(0, lambda bin: bin.add_(1)), "counts 91 samples"),
        ("histogram", histogram(0, lambda bin: bin.add_(0.5)), "no whole number"),
        ("histogram", histogram(1, lambda bin: bin.add_(100)), "confidence outside"),
        ("histogram", histogram(1, lambda bin: bin.fill_(-0.1)), "confidence outside"),
        ("histogram", histogram(2, lambda bin: bin.add_(100)), "more hits than samples"),
        ("histogram", histogram(2, lambda bin: bin.add_(-0.5)), "no whole number"),
        ("histogram", histogram(2, lambda bin: bin.fill_(-1)), "negative count"),
    ),
    *of(
        queries.BetaSums,
        ("0/loss", times(-1), "is negative"),
        ("0/grad", put(91, 2), "beyond 90 samples"),
        ("0/hess", times(-1), "negative second derivative"),
        ("0/hess", put(30, 2, 2), "beyond 90 samples"),
        ("0/hess", indefinite, "not positive semi-definite"),
    ),
    *of(queries.Score, *LOSSES),
    *of(
        queries.CompareMaps,
        *LOSSES,
        ("gram", plus(1, 0, 1), "not symmetric"),
        ("gram", put(-1e-3, 0, 1), "negative product"),
        ("gram", indefinite, "not positive semi-definite"),
    ),
    *of(queries.CountsLikelihood, ("likelihood", times(-1), "is positive")),
    *of(
        queries.StrengthWeights,
        ("posterior", move(1.5, 0, 1), "leaves [0, 1]"),
        ("posterior", times(0.5), "add up to 1"),
        ("n", put(2), "a reply is of one client"),
    ),
    *of(
        NetGradient,
        ("n", plus(1), "add up to 91 samples"),
        ("n", plus(0.5), "no whole number"),
        ("stop_n", plus(1), "add up to 91 samples"),
        ("stop_n", times(-1), "negative count"),
        ("stop_loss", times(-1), "is negative"),
    ),
    *of(FitScaler, ("temperature", times(-1), "not above 0"), ("temperature", times(0), "not above 0")),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=[f"{d[0][0].__name__} {d[0][2]}: {d[2]}" for d in DAMAGES])
def test_what_no_samples_can_give_is_refused(damage: Damage) -> None:
    where, change, words = damage
    claim, name = claim_with(where), where[2]
    check(claim)
    content = {key: value.clone() for key, value in claim.content.items()}
    change(content[name], claim)
    with pytest.raises(FedCalError, match=re.escape(words)) as refused:
        check(replace(claim, content=content))
    said = str(refused.value)
    assert "\n" not in said and said.startswith("site1's reply: '")
    assert repr(name) in said or name in ("n", "sum")  # one of two that contradict each other


def test_every_kind_of_query_has_conditions_and_is_attacked() -> None:
    assert {where[0] for where, _, _ in DAMAGES} == set(CHECKS)
    asked = {kind for method in METHODS.values() for kind in method.may_ask}
    assert {kind.__name__ for kind in asked - set(CHECKS)} == {"Several"}


def test_what_is_not_finite_or_beyond_all_measure_is_refused() -> None:
    """In every field of every reply."""
    for claim in honest():
        for name, value in claim.content.items():
            for bad in (float("nan"), float("inf"), -float("inf"), 1e200):
                damaged = value.clone()
                damaged.view(-1)[-1] = bad
                with pytest.raises(FedCalError, match=f"site1's reply: {name!r}"):
                    check_size(replace(claim, content={**claim.content, name: damaged}))


def test_a_share_of_the_samples_may_be_fewer() -> None:
    claim = claim_with((queries.Start, {}, "labels"))
    share = replace(claim, n=claim.n + 50, query=queries.Start(share=0.5))
    check(share)
    with pytest.raises(FedCalError, match="counts 90 samples, but 50"):
        check(replace(share, n=50))
    with pytest.raises(FedCalError, match="counts 90 samples, but 140"):
        check(replace(share, query=queries.Start()))


@pytest.mark.parametrize("name", ["labels", "folds"])
def test_counts_of_a_share_add_up(name: str) -> None:
    claim = claim_with((queries.Start, {}, name))
    content = {**claim.content, name: claim.content[name].clone()}
    content[name][0] -= 1
    with pytest.raises(FedCalError, match=f"{name!r} add up to 89, but there are 90 samples"):
        check(replace(claim, content=content, n=140, query=queries.Start(share=0.5, folds=True)))


def test_large_hessians_are_checked_by_their_minors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "EXACT_UP_TO", 1)
    claim = claim_with((queries.LinearSums, {"family": "vector", "curvature": "full"}, "-1/hess"))
    check(claim)
    content = {**claim.content, "-1/hess": claim.content["-1/hess"].clone()}
    indefinite(content["-1/hess"], claim)
    with pytest.raises(FedCalError, match="not positive semi-definite"):
        check(replace(claim, content=content))


def test_noised_replies_have_only_their_size_checked() -> None:
    claim = claim_with((queries.Start, {}, "labels"))
    noised = {name: value + torch.randn_like(value) for name, value in claim.content.items()}
    check_size(replace(claim, content=noised))
    with pytest.raises(FedCalError):
        check_plausible(replace(claim, content=noised))
