"""Replies that samples give pass; replies that no samples can give are refused, with the site and the field named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcal import FedCalError
from fedcal.exact import stages
from fedcal.methods import METHODS, fedcal_plus, get_method
from fedcal.methods.method import Additive, Averaged, total
from fedcal.protocol.checks import declared_squares
from fedcal.protocol.plausible import CHECKS, Reply, check_plausible, check_size
from fedcal.protocol.privacy import clipped
from fedcal.protocol.rounds import advance, begin

Samples = list[tuple[Tensor, Tensor]]
ADDITIVE = [name for name, method in METHODS.items() if isinstance(method, Additive)]
ROUNDS = 80  # of a conversation; by then every kind of request has been sent


def make_samples(sizes: list[int], k: int, scale: float = 3.0, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    found = []
    for n in sizes:
        y = rng.integers(k, size=n)
        z = scale * (rng.normal(size=(n, k)) + 1.5 * np.eye(k)[y])
        found.append((torch.from_numpy(z), torch.from_numpy(y)))
    return found


def conversation(name: str, samples: Samples) -> Iterator[Reply]:
    """Every client's reply to every request of a fit."""
    method, k = get_method(name), samples[0][0].shape[1]
    assert isinstance(method, Additive)
    state, own, squares = begin(method, k, 0), [{} for _ in samples], dict[str, float]()
    while not state.done and state.rounds < ROUNDS:
        updates = {}
        for i, (z, y) in enumerate(samples):
            update = method.client(state.question, own[i], z, y, torch.Generator())
            own[i], updates[f"site{i}"] = update.own, update
        squares = declared_squares(squares, updates)
        for (name, update), (_, y) in zip(updates.items(), samples, strict=True):
            yield Reply(name, update.content, len(y), k, state.question, squares.get(name))
        state.rounds += 1
        advance(state, total(list(updates.values())))


def check(reply: Reply) -> None:
    check_size(reply)
    check_plausible(reply)


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
    for reply in conversation(name, make_samples(sizes, k, 10.0**exponent, seed)):
        check(reply)


@pytest.mark.parametrize("scale", [1e5, 1e8])
@pytest.mark.parametrize("name", ["fed-ts", "fed-bias", "fed-vector", "fed-matrix"])
def test_large_logits_are_honest(name: str, scale: float) -> None:
    """Also where no sample is near a tie: sums of such samples are rounding errors of large numbers."""
    z, y = make_samples([200], 5, scale)[0]
    sure = z + 50 * scale * torch.nn.functional.one_hot(y, 5)
    for samples in ([(z, y)], [(sure, y)], [(z, y), (sure, y)]):
        for reply in conversation(name, samples):
            check(reply)


@pytest.mark.parametrize("name", ["fed-bias", "fed-vector", "fed-matrix"])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_honest_replies_about_many_classes_pass(name: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the Hessian, only what couples a class with itself."""
    monkeypatch.setattr(stages, "NEWTON_MAX", 0)
    monkeypatch.setattr(stages, "BLOCKS_MAX", 0)
    replies = list(conversation(name, make_samples([70, 40], 5, scale)))
    assert any(field.endswith("/diag") for reply in replies for field in reply.content)
    for reply in replies:
        check(reply)


def test_honest_replies_about_a_share_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the server chooses on a part of the samples, of which some sites have none."""
    monkeypatch.setattr(fedcal_plus, "N_CHOOSE", 500)
    replies = list(conversation("fedcal-plus", make_samples([300] * 8, 3)))
    about_share = [reply for reply in replies if "share" in reply.asked]
    assert any(reply.content for reply in about_share) and any(not reply.content for reply in about_share)
    for reply in replies:
        check(reply)


# --- what is refused -------------------------------------------------------------------------------------------------------


@cache
def honest() -> list[Reply]:
    """Replies of every kind, of one site among three."""
    small, wide = make_samples([80, 90, 100], 3), make_samples([80, 90], 20)
    found = [
        r
        for name in ("fedcal-plus", "fed-vector", "fed-ts", "fed-op")
        for r in conversation(name, small)
        if r.who == "site1"
    ]
    found += [r for r in conversation("fed-matrix", wide) if r.who == "site1"]
    with pytest.MonkeyPatch.context() as patch:  # as with many classes
        patch.setattr(stages, "NEWTON_MAX", 0)
        found += [r for r in conversation("fed-vector", small) if r.who == "site1"]
    (z, y), averaged = small[1], get_method("avg-t")
    assert isinstance(averaged, Averaged)
    params = averaged.init(3, torch.Generator())
    update = averaged.client(params, {}, z, y, torch.Generator())
    return [*found, Reply("site1", update.content, len(y), 3, params)]


def with_content(reply: Reply, content: dict[str, Tensor]) -> Reply:
    return Reply(reply.who, content, reply.n, reply.n_classes, reply.asked, reply.squares)


def reply_with(pattern: str) -> tuple[Reply, str]:
    """The first honest reply that has such a field, and the field's name."""
    for reply in honest():
        for name in reply.content:
            if re.fullmatch(pattern, name):
                return reply, name
    raise AssertionError(f"no reply holds {pattern}")


def put(value: float, *at: int) -> Callable[[Tensor, Reply], None]:
    """Set one entry (all of a scalar)."""
    return lambda tensor, _: tensor[at].fill_(value)


def plus(value: float, *at: int) -> Callable[[Tensor, Reply], None]:
    return lambda tensor, _: tensor[at].add_(value)


def times(value: float) -> Callable[[Tensor, Reply], None]:
    return lambda tensor, _: tensor.mul_(value)


def move(value: float, here: int, there: int) -> Callable[[Tensor, Reply], None]:
    """From one entry to another: the sum stays."""

    def change(tensor: Tensor, _: Reply) -> None:
        tensor[here] += value
        tensor[there] -= value

    return change


def indefinite(tensor: Tensor, _: Reply) -> None:
    """Off-diagonal entries beyond the geometric mean of their diagonal ones; these stay as they are."""
    last = tensor.shape[-1] - 1
    beyond = 1.5 * (tensor[..., 0, 0] * tensor[..., last, last]).sqrt()
    tensor[..., 0, last] = tensor[..., last, 0] = beyond


def histogram(row: int, change: Callable[[Tensor], None]) -> Callable[[Tensor, Reply], None]:
    """In the fullest bin of the first fold: counts are row 0, confidences 1, hits 2."""

    def apply(tensor: Tensor, _: Reply) -> None:
        change(tensor[0, row, int(tensor[0, 0].argmax())])

    return apply


NEWTON, GRADIENT, DIAGONAL = "newton/vector/all/", "gradient/matrix/all/", "diagonal/vector/all/"
DAMAGES: list[tuple[str, Callable[[Tensor, Reply], object], str]] = [
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
    ("slope", put(-1, 1), "negative curvature"),
    (NEWTON + "loss", times(-1), "is negative"),
    (NEWTON + "grad", put(1e6, 0), "can give"),
    (NEWTON + "grad", put(-1e6, 0), "can give"),
    (NEWTON + "grad", plus(1, -1), "add up to 0"),
    (NEWTON + "hess", times(-1), "negative second derivative"),
    (NEWTON + "hess", put(-1, 0, 0), "negative second derivative"),
    (NEWTON + "hess", put(1e6, 0, 0), "can give"),
    (NEWTON + "hess", plus(1, 0, 1), "not symmetric"),
    (NEWTON + "hess", indefinite, "not positive semi-definite"),
    ("newton/temperature/0/hess", times(-1), "negative second derivative"),
    ("newton/bias/0/hess", indefinite, "not positive semi-definite"),
    (GRADIENT + "loss", times(-1), "is negative"),
    (GRADIENT + "grad", put(1e6, 0), "can give"),
    (GRADIENT + "grad", plus(1, -1), "add up to 0"),
    (DIAGONAL + "loss", times(-1), "is negative"),
    (DIAGONAL + "grad", put(1e6, 0), "can give"),
    (DIAGONAL + "diag", put(-1, 0), "negative second derivative"),
    (DIAGONAL + "diag", put(1e6, 0), "can give"),
    (DIAGONAL + "cross", put(1e6, 0), "not positive semi-definite"),
    ("curvature/vector", put(-1, 3, 2, 2), "negative second derivative"),
    ("curvature/vector", plus(1, 3, 0, 1), "not symmetric"),
    ("curvature/vector", indefinite, "not positive semi-definite"),
    ("histogram", histogram(0, lambda bin: bin.mul_(-1)), "negative count"),
    ("histogram", histogram(0, lambda bin: bin.add_(1)), "counts 91 samples"),
    ("histogram", histogram(0, lambda bin: bin.add_(0.5)), "no whole number"),
    ("histogram", histogram(1, lambda bin: bin.add_(100)), "confidence outside"),
    ("histogram", histogram(1, lambda bin: bin.fill_(-0.1)), "confidence outside"),
    ("histogram", histogram(2, lambda bin: bin.add_(100)), "more hits than samples"),
    ("histogram", histogram(2, lambda bin: bin.add_(-0.5)), "no whole number"),
    ("histogram", histogram(2, lambda bin: bin.fill_(-1)), "negative count"),
    ("beta/0/loss", times(-1), "is negative"),
    ("beta/0/grad", put(91, 2), "beyond 90 samples"),
    ("beta/0/hess", times(-1), "negative second derivative"),
    ("beta/0/hess", put(30, 2, 2), "beyond 90 samples"),
    ("beta/0/hess", indefinite, "not positive semi-definite"),
    *(
        (f"{kind}/{field}", change, words)
        for kind in ("score", "map")
        for field, change, words in [
            ("sum", times(-1), "negative loss"),
            ("sum", times(10), f"'{kind}/gram' does not fit"),
            ("gram", times(0.01), "does not fit"),
            ("gram", times(100), "does not fit"),
            ("hits", plus(0.5, 0), "no whole number"),
            ("hits", put(91, 0), "more hits than the 90 samples"),
            ("hits", put(-1, 0), "negative count"),
        ]
    ),
    ("map/gram", put(-1e-3, 0, 1), "negative product"),
    ("map/gram", indefinite, "not positive semi-definite"),
    ("law/likelihood", times(-1), "is positive"),
    ("shift/posterior", move(1.5, 0, 1), "leaves [0, 1]"),
    ("shift/posterior", times(0.5), "add up to 1"),
    ("shift/n", put(2), "is one client"),
    ("stop_n", plus(1), "add up to 91 samples"),
    ("stop_n", plus(0.5), "no whole number"),
    ("stop_n", times(-1), "negative count"),
    ("stop_loss", times(-1), "is negative"),
    ("temperature", times(-1), "not above 0"),
    ("temperature", times(0), "not above 0"),
]


@pytest.mark.parametrize(("field", "change", "words"), DAMAGES, ids=[f"{d[0]}: {d[2]}" for d in DAMAGES])
def test_what_no_samples_can_give_is_refused(field: str, change: Callable[[Tensor, Reply], object], words: str) -> None:
    reply, name = reply_with(re.escape(field))
    content = {name: value.clone() for name, value in reply.content.items()}
    change(content[name], reply)
    with pytest.raises(FedCalError, match=re.escape(words)) as refused:
        check(with_content(reply, content))
    said = str(refused.value)
    assert "\n" not in said and said.startswith("site1's answer: '")
    assert repr(name) in said or name in words or name in ("n", "score/sum", "map/sum")  # one of two that contradict


def test_every_kind_is_attacked() -> None:
    attacked = {field.split("/")[0] for field, _, _ in DAMAGES}
    assert set(CHECKS) <= attacked


def test_what_is_not_finite_or_beyond_all_measure_is_refused() -> None:
    """In every field of every reply."""
    for reply in honest():
        for name, value in reply.content.items():
            for bad in (float("nan"), float("inf"), -float("inf"), 1e200):
                damaged = value.clone()
                damaged.view(-1)[-1] = bad
                with pytest.raises(FedCalError, match=f"site1's answer: {name!r}"):
                    check_size(with_content(reply, {**reply.content, name: damaged}))


def test_a_share_of_the_samples_may_be_fewer() -> None:
    reply, _ = reply_with("labels")
    part = Reply(reply.who, reply.content, reply.n + 50, reply.n_classes, {**reply.asked, "share": torch.ones(())})
    check(part)
    with pytest.raises(FedCalError, match="counts 90 samples, but 50"):
        check(Reply(part.who, part.content, 50, part.n_classes, part.asked))


def test_clipped_and_noised_replies_have_only_their_size_checked() -> None:
    reply, _ = reply_with("labels")
    noised = {name: value + torch.randn_like(value) for name, value in clipped(reply.content, 5.0).items()}
    check_size(with_content(reply, noised))
    with pytest.raises(FedCalError):
        check_plausible(with_content(reply, noised))
