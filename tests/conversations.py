"""Whole conversations of a server and its clients, for tests of the protocol."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedcal.exact.head_samples import join
from fedcal.methods import METHODS, get_method
from fedcal.protocol import Client, Reply, Request, Server

Samples = list[tuple[np.ndarray, np.ndarray]]
LOGIT_METHODS = [name for name, method in METHODS.items() if method.takes == "logits"]
ADDITIVE = [
    f"{name}:features=4" if method.takes == "features" else name for name, method in METHODS.items() if method.additive
]
ROUNDS = 80  # of a conversation; by then every kind of request has been sent
SPECS = [
    f"{name}:rounds={2 if not method.additive else 12}"
    if name.startswith(("fedcal", "lr-ts", "fed-op")) and name != "fedcal-plus"
    else f"{name}:features=4"
    if method.takes == "features"
    else name
    for name, method in METHODS.items()
    if name != "uncal"
] + ["fedcal-plus:coverage=site", "fed-bias:coverage=class"]


def make_samples(sizes: list[int], k: int, scale: float = 3.0, seed: int = 0) -> Samples:
    """Return clients of so many samples each."""
    rng = np.random.default_rng(seed)
    found = []
    for n in sizes:
        y = rng.integers(k, size=n)
        z = scale * (rng.normal(size=(n, k)) + 1.5 * np.eye(k)[y])
        found.append((z, y))
    return found


def suited(spec: str, samples: Samples) -> Samples:
    """Return the samples as the method takes them: with four features where it takes features, some of them trained on."""
    if get_method(spec).takes == "logits":
        return samples
    rng, found = np.random.default_rng(1), []
    for logits, labels in samples:
        x = rng.normal(size=(len(labels), 4)) + labels[:, None] * np.arange(4)
        trained = len(labels) // 3
        rows = [join(logits[trained:], x[trained:]), join(logits[:trained], x[:trained], trained=True)]
        found.append((np.concatenate(rows), np.concatenate([labels[trained:], labels[:trained]])))
    return found


def converse(spec: str, samples: Samples) -> Iterator[tuple[Server, Request, dict[str, Reply]]]:
    """Run a fit; yield every request with all replies, before the server receives them."""
    server = Server(spec, samples[0][0].shape[1])
    samples = suited(spec, samples)
    clients = {f"site{i}": Client(server.plan.method, *pair) for i, pair in enumerate(samples)}
    while (request := server.request) is not None and server.ledger.rounds < ROUNDS:
        replies = {name: client.reply(request) for name, client in clients.items()}
        yield server, request, replies
        server.receive(replies, check=False)
