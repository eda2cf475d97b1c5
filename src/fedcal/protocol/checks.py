"""Replies and requests, checked in one place for every transport: each is data from a stranger.

Every refusal is one line that names the client and the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.query import Query, leaves, magnitude
from fedcal.errors import FedCalError
from fedcal.exact.prepared import Prepared
from fedcal.exact.private_query import PrivateQuery
from fedcal.methods import Method
from fedcal.methods.fit import n_bytes
from fedcal.protocol.claim import Claim, Known
from fedcal.protocol.messages import MOST_SAMPLES, Plan, Reply, Request
from fedcal.protocol.plausible import check_plausible, check_size

FAR = 1000.0  # times what the others send: beyond, an update is refused
LONGEST_NAME = 200  # bytes of a site's name: with a round's number it must still be a file's name
HEADER = 1 << 20  # bytes that a message may be larger than its tensors
Who = TypeVar("Who")
SAMPLES = 1 << 30  # bytes of a client's samples at most, where a method sends them


# --- at the server -------------------------------------------------------------------------------------------------------


def check_reply(
    client: str, reply: Reply, request: Request, plan: Plan, known: Known | None, like: Params, noisy: bool
) -> None:
    """Refuse a reply that no honest client gives.

    Args:
        client: whose it is.
        reply: what came.
        request: what was asked.
        plan: of the federation.
        known: what the client declared before; None: nothing.
        like: a reply's names, types and shapes (`example_reply`).
        noisy: whether differential privacy clips or noises replies: their values then need not be what samples give.

    Raises:
        FedCalError: one line that names the client and the reason.
    """
    if reply.to != request.digest:
        raise FedCalError(f"{client} replies to another request than that of round {request.round}")
    if known and known.n not in (None, reply.n):
        raise FedCalError(f"{client} declares {reply.n} samples, but {known.n} in the round before")
    if not reply.content and reply.n == 0:
        return
    if not 1 <= reply.n <= MOST_SAMPLES:
        raise FedCalError(f"{client} declares {reply.n or 'no'} samples, but replies")
    if odd := sorted(set(reply.content) ^ set(like)):
        raise FedCalError(f"{client}'s reply {'lacks' if odd[0] in like else 'should not hold'} {odd[0]!r}")
    for name, value in reply.content.items():
        shape, dtype = tuple(like[name].shape), like[name].dtype
        if plan.method.needs_pooled_data:  # the samples themselves, of which the example has one
            shape = (reply.n, *shape[1:])
        if value.shape != shape or value.dtype != dtype:
            raise FedCalError(
                f"{client}'s reply: {name!r} is {value.dtype} of shape {tuple(value.shape)}, not {dtype} of {shape}"
            )
    claim = Claim(client, request.query, reply.content, reply.n, plan.n_classes, known or Known(), reply.clients)
    check_size(claim)
    if not noisy:
        check_plausible(claim)


def example_reply(method: Method, n_classes: int, query: Query) -> Params:
    """Return what a client of a single sample would reply: it shows names, shapes and types."""
    rows, labels = np.eye(1, method.width(n_classes)), np.zeros(1, np.int64)
    return method.reply(query, method.prepare(Prepared(lambda: (rows, labels))), {}).content


def check_bytes(client: str, size: int, like: Params, pooled: bool = False) -> None:
    """Refuse a message that is larger than a reply can be, before it is read.

    Args:
        client: whose it is.
        size: of the message.
        like: a reply's tensors (`example_reply`).
        pooled: whether the method's replies are samples, as many as there are.

    Raises:
        FedCalError: which says how large it may be.
    """
    most = SAMPLES if pooled else n_bytes(like) + HEADER
    if size > most:
        raise FedCalError(f"{client}: {size} bytes, where a reply has at most {most}: not a reply of this round")


def outliers(replies: Mapping[str, Reply], additive: bool, known: Mapping[str, Known]) -> dict[str, str]:
    """Find replies that are far larger than the others', with the reason.

    The number of samples is a weight where scalers are averaged. A sum is measured per sample, a scaler as it is. A sum may
    be 0 at an honest client, where the model is sure and right: it must be far from the largest of the others'. Clients that
    have declared their squared logits are left alone: their sums are within what these allow, and these were compared.

    Args:
        replies: by client.
        additive: whether they are sums.
        known: what clients have declared before.

    Returns:
        The reason by client; empty where all is well.
    """
    spoke = {name: reply for name, reply in replies.items() if reply.content}
    sizes = {
        name: max(map(magnitude, reply.content.values())) / (reply.n if additive else 1)
        for name, reply in spoke.items()
    }
    declared = {name for name, of in known.items() if of.squares is not None}
    many = {
        name: f"{name} declares {spoke[name].n} samples, the others at most {others:g}"
        for name, others in of_others({name: float(reply.n) for name, reply in spoke.items()}, np.max).items()
        if not additive and spoke[name].n > FAR * max(1.0, others)
    }
    return many | {
        name: f"{name}'s reply reaches {sizes[name]:.3g}, the others' about {others:.3g}"
        for name, others in of_others(sizes, np.max if additive else np.median).items()
        if name not in declared and sizes[name] > FAR * max(1.0, others)
    }


def of_others(sizes: Mapping[Who, float], usual: Callable[[Array], Any]) -> dict[Who, float]:
    """Return for each one what is usual of the others; nothing where there are no others."""
    if len(sizes) < 2:
        return {}
    values = np.array(list(sizes.values()))
    return {name: float(usual(np.delete(values, i))) for i, name in enumerate(sizes)}


# --- at a client ---------------------------------------------------------------------------------------------------------


def check_request(request: Request, method: Method) -> None:
    """Refuse a request that this method's server never makes.

    Raises:
        FedCalError: which says what is wrong with it.
    """
    if type(request.query) not in (*method.may_ask, *method.may_ask_privately):
        kind = type(request.query).__name__
        raise FedCalError(f"the server asks for {kind}, which {method.name} never does: do not reply to this server")
    if isinstance(request.query, PrivateQuery):
        _check_private(request.query)
    for name, leaf in leaves(request.query):
        if isinstance(leaf, np.ndarray) and leaf.dtype not in (np.float32, np.float64):
            raise FedCalError(f"the server's request holds {leaf.dtype} in {name!r}: do not reply to this server")
        if not magnitude(leaf) < math.inf:  # or not a number; a scale may be huge, where logits are microscopic
            raise FedCalError(f"the server's request is not finite in {name!r}: do not reply to this server")


def _check_private(query: PrivateQuery) -> None:
    """Refuse a private query whose share of a budget is none, or that clips logits to nothing."""
    if not 0 < query.budget <= 1:
        raise FedCalError(f"the server asks for {query.budget:g} of the privacy budget: do not reply to this server")
    if not getattr(query, "clip", 1.0) > 0:
        raise FedCalError("the server clips logits to no norm above 0: do not reply to this server")


def check_n_classes(client: str, n_classes: int, plan: Plan) -> None:
    """Refuse samples of another number of classes than the federation's.

    Raises:
        FedCalError: the numbers differ.
    """
    if n_classes != plan.n_classes:
        raise FedCalError(f"{client}: {n_classes} classes, where the federation has {plan.n_classes}")


def check_client_name(name: str) -> str:
    """Refuse a name that cannot be part of a file's name.

    Raises:
        FedCalError: which says what to use.
    """
    if (
        not name
        or name.startswith(".")
        or any(c in name for c in "/\\,\0")
        or name != name.strip()
        or not name.isprintable()
    ):
        raise FedCalError(f"{name!r} cannot name a site: use letters, digits, - and _")
    if len(name.encode()) > LONGEST_NAME:
        raise FedCalError(f"{name[:20]!r}… cannot name a site: a name has at most {LONGEST_NAME} bytes")
    return name
