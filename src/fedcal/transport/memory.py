"""Clients in this process: `fedcal.calibrate`, and what the simulator runs its calibration rounds with.

A transport only carries. In the protocol's loop of five lines every client would be asked one after the other; here
three things are added that only a process with all clients in it can do: many small clients reply together, clients may be
streamed, and nothing is checked, since nobody here is a stranger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedcal.base.arrays import as_array
from fedcal.base.checks import check_kind, look_like_probs, warn_of_probs
from fedcal.data.samples import Samples, Stream, check_clients, name_columns
from fedcal.errors import FedCalError
from fedcal.exact.prepared import Prepared
from fedcal.methods import DEFAULT, Method, get_method
from fedcal.methods.fed_head import with_features_of
from fedcal.protocol.client import Client
from fedcal.protocol.messages import Reply, Request
from fedcal.protocol.privacy import Privacy, check_privacy
from fedcal.protocol.scaler import Scaler
from fedcal.protocol.server import Server
from fedcal.transport.features import feature_clients

MANY = 256  # clients, from which on small ones reply together
GROUP = 1 << 15  # logits of such a group
PRIVATE_GROUP = 64  # clients of such a group under privacy

Group = tuple[str, ...]  # clients that reply as one; mostly a single one


def calibrate(
    clients: Mapping[str, tuple[Any, Any]] | Sequence[tuple[Any, Any]],
    method: str = DEFAULT,
    *,
    rounds: int | None = None,
    seed: int = 0,
    stream: bool = False,
    probs: bool | None = None,
    classes: Any = None,
    privacy: Privacy | None = None,
    head: Any = None,
    train: Mapping[str, tuple[Any, Any]] | Sequence[tuple[Any, Any]] | None = None,
    **options: Any,
) -> Scaler:
    """Calibrate a model from each client's (logits, labels), in simulated rounds between clients and a server.

    Args:
        clients: each client's (N, K) logits and (N,) labels, held out of training; a mapping names them. (N,) scores
            are of two classes: class 1 is the likelier, the higher its score.
        method: a name (fedcal-plus if not given; `fedcal methods` lists all), or one with options, such as
            "fedcal-plus:accuracy=keep".
        rounds: the number of rounds, in each of which all clients take part; the method's default if not given.
        seed: for everything that is random.
        stream: read `clients`, a mapping, again in every round, client by client, and keep none of their samples: memory
            stays flat however many there are. A client's personal scaler is then made on demand, by `Scaler.welcome`; a
            method that averages the clients' scalers keeps these as their personal ones.
        probs: True if clients give probabilities, (N, K) or (N,) of class 1, instead of logits.
        classes: the labels of the columns, in their order. If not given: labels are the columns' numbers, or else the
            strings that all clients (of a stream: the first client) have, sorted, where they are as many as the columns.
        privacy: `Privacy(epsilon=4, delta=1e-5)`: fit under differential privacy, to see what it costs. This process still
            sees all samples: publish only the scaler, without its clients' personal parts (`scaler.personal.clear()`), which
            follow from their labels without noise; and with `where="central"` not the sums of the rounds.
        head: for a method that takes features (`fed-head`): the model's last layer, a torch.nn.Linear or (weight, bias). The
            clients then give (features, labels), and so do those who use the scaler.
        train: for such a method, (features, labels) of samples that the model was trained on, for each client; optional.
        options: the method's options (see `fedcal methods NAME`), e.g. `accuracy="keep"` for fedcal-plus, which leaves every
            decision of the model as it is (add `prior_shift=True` for clients' personal scalers that may move theirs),
            `alpha=0.1` and `coverage="site"` for conformal sets (docs/conformal.md), or `net="raw"` for fedcal.

    Returns:
        The fitted scaler.

    Raises:
        FedCalError: an argument or a client's samples are invalid.

    Examples:
        Two sites with a model that is too confident: its logits are three times as large as they should be.

        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(2, 500, 4))
        >>> labels = (z + rng.gumbel(size=z.shape)).argmax(-1)
        >>> scaler = fedcal.calibrate({"north": (3 * z[0], labels[0]), "south": (3 * z[1], labels[1])}, "fed-ts")
        >>> scaler.predict_proba(3 * z[0]).round(2)[0].tolist()  # for the federation
        [0.23, 0.18, 0.37, 0.22]
        >>> own = scaler.predict_proba(3 * z[0], client="north")  # by a site's personal scaler
    """
    chosen = get_method(method, **options)
    kind, privacy = check_kind(probs), check_privacy(privacy)
    if chosen.takes == "features" or head is not None or train is not None:
        return _calibrate_features(chosen, clients, train, head, classes, rounds, seed, stream, kind, privacy)
    if stream:
        samples = Stream(clients, kind, classes)
        found, n_classes, suspect = samples.classes, samples.width, samples.suspect
    else:
        samples, found = check_clients(clients, kind, classes)
        n_classes = next(iter(samples.values()))[0].shape[1]
        filled = [logits for logits, _ in samples.values() if len(logits)]
        suspect = bool(filled) and all(look_like_probs(logits) for logits in filled)
    if kind is None and suspect:
        warn_of_probs()
        kind = False  # said once
    if privacy and privacy.where == "distributed" and privacy.nodes is None:
        privacy = replace(privacy, nodes=len(clients))
    names = name_columns(found)
    server = Server(chosen, n_classes, seed, rounds=rounds, classes=names, privacy=privacy, history=False)
    scaler = Exchange(server).run(samples)
    if server.ledger.rounds and not server.ledger.updates:
        raise FedCalError("no samples to calibrate on: every client is empty; at least one needs some")
    scaler.probs = check_kind(probs) if privacy else kind  # what the scores look like, one sample can change
    return scaler


def _calibrate_features(
    method: Method, clients: Any, train: Any, head: Any, classes: Any, rounds: int | None, seed: int, stream: bool,
    probs: bool | None, privacy: Privacy | None,
) -> Scaler:  # fmt: skip
    """Calibrate from each client's features and the model's last layer."""
    if method.takes != "features":
        raise FedCalError(f"{method.name} takes logits: head and train are for fed-head; leave them out")
    if stream or probs:
        raise FedCalError(
            f"{method.name} takes features of clients that are here: leave {'stream' if stream else 'probs'} out"
        )
    if privacy:
        privacy.check(method)
    samples, found, (weight, bias) = feature_clients(clients, train, head, classes)
    method = with_features_of(method, weight.shape[1])
    server = Server(method, len(weight), seed, rounds=rounds, classes=name_columns(found), history=False)
    scaler = Exchange(server).run(samples)
    scaler.params |= {"model_weight": weight, "model_bias": bias}
    return scaler


class Exchange:
    """A server and its clients in one process, round by round."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.clients: dict[Group, Client] = {}

    @property
    def method(self) -> Method:
        return self.server.plan.method

    def run(self, samples: Mapping[str, Samples], on_round: Callable[[Server], None] = lambda server: None) -> Scaler:
        """Run rounds with these clients until the scaler is there.

        Args:
            samples: logits and labels by client, checked; may be a `Stream`.
            on_round: called after every round.

        Returns:
            The scaler; with every client's personal part, unless the clients are streamed and the method is exact.
        """
        self._renew(samples)
        while (request := self.server.request) is not None:
            self.server.receive(self._replies(request, samples), check=False)
            on_round(self.server)
        return self.scaler(samples)

    def round(self, samples: Mapping[str, Samples]) -> None:
        """Run one round with these clients; their samples may have changed since the last one."""
        self._renew(samples)
        if (request := self.server.request) is not None:
            self.server.receive(self._replies(request, samples), check=False)

    def scaler(self, samples: Mapping[str, Samples]) -> Scaler:
        """Return the scaler as it is now, with the personal parts of clients that took part."""
        scaler, streamed = self.server.scaler, isinstance(samples, Stream)
        if streamed and self.method.additive:
            return scaler
        for name, client in self._one_by_one():
            if name in samples:  # one that replied together with others has only its part of what they keep
                client.samples = self._unread((name,), samples)
            scaler.personal[name] = client.personalize(scaler)
            if streamed:
                client.samples = self._unread((name,), samples)
        return scaler

    def state_dict(self) -> dict[str, Any]:
        """Return the states of server and clients, to go on from later."""
        clients = {name: client.state_dict() for name, client in self._one_by_one()}
        return {"server": self.server.state_dict(), "clients": clients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.server.load_state_dict(state["server"])
        for name, kept in state["clients"].items():
            self.clients[(name,)] = Client.of(self.method, _NOTHING)
            self.clients[(name,)].load_state_dict(kept)

    def _one_by_one(self) -> Iterator[tuple[str, Client]]:
        """Every client by itself; one that replied together with others has its row of what they keep."""
        for group, client in self.clients.items():
            for i, name in enumerate(group):
                alone = client
                if len(group) > 1:
                    alone = Client.of(self.method, _NOTHING)
                    alone.memory = {key: value[i : i + 1] for key, value in client.memory.items()}
                yield name, alone

    def _replies(self, request: Request, samples: Mapping[str, Samples]) -> Iterator[tuple[str, Reply]]:
        """Every client's reply, one after the other: sums are added up at once and never held."""
        streamed = isinstance(samples, Stream)
        for group in self._groups(samples):
            client = self.clients.get(group) or Client.of(self.method, self._unread(group, samples))
            reply = client.reply(request, check=False)
            if not reply.n:
                continue
            if streamed:  # what it keeps from its reply stays, its samples do not
                client.samples, client.n = self._unread(group, samples), reply.n
            if not streamed or client.memory:
                self.clients[group] = client
            yield group[0], reply

    def _groups(self, samples: Mapping[str, Samples]) -> Iterable[Group]:
        """The clients that reply as one.

        With many small clients in memory, a reply costs mostly the call itself. So their samples are put together, up to
        GROUP logits; the sums differ by rounding only. Under privacy every group's sums are rounded to a grid, and groups do
        not follow from the clients' sizes: else one sample more could change how the sums of all groups are rounded.
        """
        if isinstance(samples, Stream) or len(samples) < MANY or not self.method.additive:
            return ((name,) for name in samples)
        if self.server.privacy:
            names = list(samples)
            return [tuple(names[i : i + PRIVATE_GROUP]) for i in range(0, len(names), PRIVATE_GROUP)]
        groups: list[Group] = []
        group, size = [], 0
        for name, (logits, labels) in samples.items():
            if not len(labels):
                continue
            logit_count = len(logits) * logits.shape[1]
            if group and size + logit_count > GROUP:
                groups.append(tuple(group))
                group, size = [], 0
            group.append(name)
            size += logit_count
        return [*groups, tuple(group)] if group else groups

    def _renew(self, samples: Mapping[str, Samples]) -> None:
        """Give clients that are known already new samples; what they keep stays."""
        for group, client in self.clients.items():
            if all(name in samples for name in group):
                client.samples, client.n = self._unread(group, samples), None

    def _unread(self, group: Group, samples: Mapping[str, Samples]) -> Prepared:
        """The group's samples; those of a single client are read when they are needed."""
        if len(group) == 1:
            return Prepared(lambda: samples[group[0]])
        logits, labels = (
            np.concatenate([as_array(value) for value in values])
            for values in zip(*(samples[name] for name in group), strict=True)
        )
        return Prepared(lambda: (logits, labels), [len(samples[name][1]) for name in group])


_NOTHING = Prepared(lambda: (np.empty((0, 2)), np.empty(0, np.int64)))
