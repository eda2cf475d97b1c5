"""Calibration rounds: a method's two halves carried out. Algorithm 1 and post-hoc calibration are one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedcal.base.checks import (
    as_logits,
    check_kind,
    check_labels,
    check_whole,
    look_like_probs,
    warn_of_probs,
)
from fedcal.base.labels import find_classes
from fedcal.base.logits import Params, by_rows, ordered_softmax
from fedcal.base.seeds import torch_rng
from fedcal.base.threads import one_thread
from fedcal.data.samples import Samples, Stream, check_pair, label_client, read_client
from fedcal.errors import FedCalError, counted, unknown
from fedcal.exact.answers import Site
from fedcal.exact.solve import Program
from fedcal.methods import DEFAULT, Method, Update, get_method
from fedcal.methods.method import Additive, Averaged, Total, n_bytes

MANY = 256  # clients, from which on small ones answer together
GROUP = 1 << 15  # logits of such a group


@dataclass
class Calibration:
    """A method at work: the server's scaler, the clients' own ones, and what it has cost so far."""

    method: Method
    params: Params
    own: dict[str, Params] = field(default_factory=dict)
    latest: dict[str, Update] = field(default_factory=dict)  # what the server remembers if it averages latest words
    program: Program | None = None  # an additive method's server, waiting for the answer to its question
    question: Params = field(default_factory=dict)
    sites: dict[tuple[str, ...], Site] = field(default_factory=dict)  # its clients' samples, while it asks
    part: list[tuple[str, ...]] | None = None  # clients with samples in the share that is asked about, once known
    rounds: int = 0
    bytes_up: int = 0  # a client's largest message up and down so far, and all of them together
    bytes_down: int = 0
    total_up: int = 0
    total_down: int = 0
    notes: Counter[str] = field(default_factory=Counter)  # summed over updates
    updates: int = 0
    n_classes: int = 0  # K of the logits that it takes; 0: not known
    classes: tuple[Any, ...] = ()  # the label of each column; empty: labels are the columns' numbers
    probs: bool | None = None  # whether it takes probabilities (True) or logits (False); None: logits, nobody said so

    def __repr__(self) -> str:
        clients = f", {counted(len(self.own), 'client')}" if self.own else ""
        kind = "probabilities" if self.probs else "logits"
        cost = f", {counted(self.rounds, 'round')}, {self.total_up} bytes up and {self.total_down} down per client"
        return (
            f"<Calibration {self.name or type(self.method).__name__}: {kind} of {self.n_classes} classes{clients}"
            f"{cost if self.rounds else ''}>"
        )

    @property
    def name(self) -> str:
        """The method's, in METHODS."""
        return self.method.name

    @property
    def done(self) -> bool:
        """Whether an additive method's server has all it wants."""
        return isinstance(self.method, Additive) and self.program is None

    def apply(self, logits: Any, client: str | int | None = None, *, probs: bool | None = None) -> Any:
        """Calibrated logits in float64: by the global scaler, or by that client's own if it has one.

        Args:
            logits: (N, K), or (N,) scores of two classes. A tensor gives a tensor, anything else an array.
            client: whose own scaler to use.
            probs: whether these are probabilities; if not given, what the scaler was fitted on.
        """
        return self._by_rows(lambda calibrated: calibrated, logits, client, probs)

    def predict_proba(self, logits: Any, client: str | int | None = None, *, probs: bool | None = None) -> Any:
        """Calibrated probabilities; takes what `apply` takes."""
        return self._by_rows(ordered_softmax, logits, client, probs)

    def _by_rows(
        self, then: Callable[[Tensor], Tensor], scores: Any, client: str | int | None, probs: bool | None
    ) -> Tensor | np.ndarray:
        """What `then` makes of calibrated logits: a tensor where the user gave one, on its device; else an array."""
        logits, own = self._logits(scores, probs), self.own_of(client)
        found = by_rows(lambda block: then(self.method.apply_own(self.params, own, block.double())), logits)
        return found.to(scores.device) if isinstance(scores, Tensor) else found.numpy()

    def _logits(self, scores: Any, probs: bool | None) -> Tensor:
        """The logits that the method takes, of as many classes as it was fitted on."""
        kind = self.probs if probs is None else check_kind(probs)
        logits = as_logits(scores, kind)
        self.check_width(logits)
        if kind is None and look_like_probs(logits):
            warn_of_probs()
        return logits

    def own_of(self, client: str | int | None) -> Params:
        """That client's own scaler; empty where the global one serves."""
        if client is not None and self.own and str(client) not in self.own:
            raise FedCalError(f"{unknown('client', str(client), self.own)}; leave it out for the global scaler")
        return self.own.get(str(client), {}) if client is not None else {}

    def check_width(self, logits: Tensor) -> None:
        """As many columns as the scaler was fitted on."""
        if self.n_classes not in (0, logits.shape[1]):
            raise FedCalError(f"logits of {logits.shape[1]} classes for a scaler of {self.n_classes}: give all of them")

    @one_thread()
    def welcome(self, client: str | int, logits: Any, labels: Any = None, *, probs: bool | None = None) -> None:
        """Make a client that took no part known, from samples of its own: with labels, or without (fedcal-plus only)."""
        scores = self._logits(logits, probs).double()
        if labels is not None:
            labels = check_labels(labels, len(scores), scores.shape[1], classes=self.classes or None)
        self.own[str(client)] = self.method.personal(self.params, {}, scores, labels)


@one_thread()
def begin(method: Method, n_classes: int, seed: int) -> Calibration:
    """The server's start: the same first net for every method of a run, so that ablations differ in one thing."""
    state = Calibration(method, {}, n_classes=n_classes)
    if isinstance(method, Averaged):
        state.params = method.init(n_classes, torch_rng(seed, "scaler"))
    elif isinstance(method, Additive):
        state.program = method.program(n_classes)
        state.question = as_sent(next(state.program))
    return state


@one_thread()
def calibration_round(state: Calibration, samples: Mapping[str, Samples], seed: int) -> None:
    """One round: each client's half on its samples, then the server's. Clients without samples sit out."""
    if isinstance(state.method, Additive):
        _additive_round(state, state.method, samples)
        return
    method, updates = state.method, {}
    for name in samples:
        logits, labels = samples[name]
        if len(labels):
            rng = torch_rng(seed, "scaler", state.rounds, name)
            updates[name] = method.client(state.params, state.own.get(name, {}), logits.double(), labels, rng)
    hear(state, updates)


def hear(state: Calibration, updates: dict[str, Update]) -> None:
    """The end of a round of a method that is not additive: what stays with the clients, the books, the server's half."""
    method = state.method
    for name, update in updates.items():
        state.own[name] = update.own
        state.notes.update(update.notes)
    state.rounds += 1
    if updates:
        _count(state, len(updates), max(n_bytes(update.content) for update in updates.values()), n_bytes(state.params))
        if isinstance(method, Averaged):
            if method.average == "latest":
                state.latest.update(updates)
                updates = dict(sorted(state.latest.items()))
            state.params = method.server(state.params, list(updates.values()))


def _additive_round(state: Calibration, method: Additive, samples: Mapping[str, Samples]) -> None:
    """Clients are read one after the other. What they send is added up at once and never held.

    Of streamed clients, only those are kept that answer about a share of the samples: they are few.
    """
    question, whole, up, spoke = state.question, Total(), 0, []
    keep = "share" in question or not isinstance(samples, Stream)
    for names in state.part if "share" in question and state.part is not None else _groups(samples):
        own, site = _joined([state.own.get(name, {}) for name in names]), _site(state, samples, names)
        if not own and not site.labels.shape[0]:  # who has kept something had samples: no need to look
            continue
        update = method.respond(question, own, site)
        state.own |= _split(names, update.own)
        if update.content or "share" not in question:
            whole.add(update.content)
            up = max(up, n_bytes(update.content))
            spoke.append(names)
            if keep:
                state.sites[names] = site
    state.rounds += 1
    if "share" in question:
        state.part = spoke
    if spoke:
        _count(state, sum(len(names) for names in spoke), up, n_bytes(question))
        advance(state, whole.sums())
    if state.done:
        _settle(state, samples)


def _groups(samples: Mapping[str, Samples]) -> Iterable[tuple[str, ...]]:
    """The clients that answer as one.

    With many small clients in memory, a reply costs mostly the call itself. So their samples are put together, up to GROUP
    logits; the sums differ by rounding only.
    """
    if isinstance(samples, Stream) or len(samples) < MANY:
        return ((name,) for name in samples)
    groups: list[tuple[str, ...]] = []
    group, size = [], 0
    for name, (logits, labels) in samples.items():
        if not len(labels):
            continue
        if group and size + logits.numel() > GROUP:
            groups.append(tuple(group))
            group, size = [], 0
        group.append(name)
        size += logits.numel()
    return [*groups, tuple(group)] if group else groups


def _site(state: Calibration, samples: Mapping[str, Samples], names: tuple[str, ...]) -> Site:
    """The clients' samples as they were kept, if they are still the same, or to be read when they are needed."""
    site = state.sites.get(names)
    first = names[0]
    if site and (isinstance(samples, Stream) or len(names) > 1 or site.logits is samples[first][0]):
        return site
    if len(names) == 1:
        return Site(lambda: samples[first])
    logits, labels = (torch.cat(values) for values in zip(*(samples[name] for name in names), strict=True))
    return Site(lambda: (logits, labels), [len(samples[name][1]) for name in names])


def _joined(own: list[Params]) -> Params:
    """What clients keep, one after the other; nothing where one of them keeps nothing."""
    if len(own) == 1 or not all(own):
        return own[0] if len(own) == 1 else {}
    return {name: torch.cat([one[name] for one in own]) for name in own[0]}


def _split(names: tuple[str, ...], own: Params) -> dict[str, Params]:
    """Each client's row of what several of them keep."""
    if len(names) == 1:
        return {names[0]: own}
    return {name: {key: value[i : i + 1] for key, value in own.items()} for i, name in enumerate(names)}


def _count(state: Calibration, updates: int, up: int, down: int) -> None:
    """A round in the books: how many clients spoke, and the largest message each way."""
    state.updates += updates
    state.bytes_up, state.bytes_down = max(state.bytes_up, up), max(state.bytes_down, down)
    state.total_up, state.total_down = state.total_up + up, state.total_down + down


@one_thread()
def advance(state: Calibration, sums: Params) -> None:
    """The server's half of an additive method: the answers added up, and what the program makes of them."""
    assert state.program is not None
    try:
        state.question = as_sent(state.program.send(plain(sums)))
    except StopIteration as finished:
        state.params, state.program, state.question = plain(finished.value), None, {}


def as_sent(question: Params) -> Params:
    """`plain`, and in the order of a file."""
    return dict(sorted(plain(question).items()))


def plain(params: Params) -> Params:
    """Fresh and contiguous, as a file would give them back: fits in memory and by files agree bit for bit."""
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in params.items()}


def _settle(state: Calibration, samples: Mapping[str, Samples]) -> None:
    """After an additive method's last round: what each client makes of the final params for itself."""
    state.sites.clear()
    if isinstance(samples, Stream):
        state.own.clear()
    for name, own in state.own.items():
        state.own[name] = state.method.personal(state.params, own, *samples[name])


def calibrate(
    clients: Mapping[str, tuple[Any, Any]] | Sequence[tuple[Any, Any]],
    method: str = DEFAULT,
    *,
    rounds: int | None = None,
    seed: int = 0,
    stream: bool = False,
    probs: bool | None = None,
    classes: Any = None,
    **options: Any,
) -> Calibration:
    """Calibrate a frozen model from each client's (logits, labels), as rounds between clients and a server would.

    >>> calibrated = fedcal.calibrate([(logits_a, labels_a), (logits_b, labels_b)], method="avg-t")
    >>> calibrated.predict_proba(new_logits)               # the global scaler
    >>> calibrated.predict_proba(new_logits, client=0)     # the first client's own

    Args:
        clients: each client's (N, K) logits and (N,) labels, held out of training; a mapping names them. (N,) scores
            are of two classes: class 1 is the likelier, the higher its score.
        method: a name (see `fedcal methods`), or a name with options, such as "fedcal-plus:accuracy=keep".
        rounds: rounds in which all clients take part; the method's own number if not given.
        stream: read `clients`, a mapping, anew in every round, client by client, and keep nothing of them: memory stays flat
            however many there are. A client's own scaler is then made on demand, by `welcome`.
        probs: True if the clients give probabilities, (N, K) or (N,) of class 1, and not logits.
        classes: the labels of the columns, in their order. If not given: labels are the columns' numbers, or else the
            strings that all clients (of a stream: the first client) have, sorted, where they are as many as the columns.
        options: the method's options (see `fedcal methods NAME`), e.g. `accuracy="keep"` for fedcal-plus, which leaves every
            decision of the model as it is (add `prior_shift=True` for clients' own scalers that may move theirs), or
            `net="raw"` for fedcal.
    """
    chosen = get_method(method, **options)
    rounds = chosen.rounds if rounds is None else check_whole(rounds, "rounds", low=0)
    seed = check_whole(seed, "seed", low=0)
    kind = check_kind(probs)
    if stream:
        samples = Stream(clients, kind, classes)
        found, n_classes, suspect = samples.classes, samples.width, samples.suspect
    else:
        samples, found = _check_clients(clients, kind, classes)
        n_classes = next(iter(samples.values()))[0].shape[1]
        filled = [logits for logits, _ in samples.values() if len(logits)]
        suspect = bool(filled) and all(look_like_probs(logits) for logits in filled)
    if kind is None and suspect:
        warn_of_probs()
        kind = False  # said once
    state = begin(chosen, n_classes, seed)
    state.probs, state.classes = kind, name_columns(found)
    for _ in range(rounds):
        if state.done:
            break
        calibration_round(state, samples, seed)
        if not state.updates:
            raise FedCalError("no samples: every client is empty; at least one needs some")
    if isinstance(chosen, Additive) and not state.done:
        raise FedCalError(
            f"{method} was not done after {counted(rounds, 'round')}: leave rounds out, it knows when to stop"
        )
    return state


def name_clients(clients: Any) -> dict[str, tuple[Any, Any]]:
    """Each client's (logits, labels) by name; clients of a list are numbered."""
    if not isinstance(clients, Iterable):
        raise FedCalError(f"clients must be a list of pairs (logits, labels), not {type(clients).__name__}")
    pairs: dict[str, tuple[Any, Any]] = {}
    for name, pair in clients.items() if isinstance(clients, Mapping) else enumerate(clients):
        if str(name) in pairs:
            raise FedCalError(f"two clients have the name {str(name)!r}: name them apart")
        pairs[str(name)] = check_pair(name, pair)
    if not pairs:
        raise FedCalError("no clients: give (logits, labels) of at least one")
    return pairs


def name_columns(classes: np.ndarray | None) -> tuple[Any, ...]:
    """What a calibration remembers of its classes: nothing where they are the columns' numbers."""
    labels = () if classes is None else tuple(classes.tolist())
    return () if labels == tuple(range(len(labels))) else labels


def _check_clients(clients: Any, probs: bool | None, classes: Any) -> tuple[dict[str, Samples], np.ndarray | None]:
    """Each client's samples as tensors, by name, all of as many classes; and the label of each column, if it has one."""
    read: dict[str, tuple[Tensor, np.ndarray]] = {}
    width = 0
    for name, pair in name_clients(clients).items():
        read[name] = read_client(name, pair, width, probs)
        width = read[name][0].shape[1]
    found = find_classes((labels for _, labels in read.values()), width, classes)
    return {name: label_client(name, *pair, found) for name, pair in read.items()}, found
