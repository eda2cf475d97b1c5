"""Calibration rounds: a method's two halves carried out. Algorithm 1 and post-hoc calibration are one function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from torch import Tensor

from fedcal.calibrate.methods import Method, Update, get_method
from fedcal.calibrate.methods.method import Additive, Averaged, n_bytes, total
from fedcal.calibrate.scalers import Params
from fedcal.calibrate.solve import Program
from fedcal.checks import check_labels, check_logits, check_value, check_whole
from fedcal.errors import FedCalError, unknown
from fedcal.seeds import torch_rng

Samples = tuple[Tensor, Tensor]  # logits (N, K) and labels (N,)


@dataclass
class Calibration:
    """A method at work: the server's scaler, the clients' own ones, and what it has cost so far."""

    method: Method
    params: Params
    own: dict[str, Params] = field(default_factory=dict)
    latest: dict[str, Update] = field(default_factory=dict)  # what the server remembers if it averages latest words
    program: Program | None = None  # an additive method's server, waiting for the answer to its question
    question: Params = field(default_factory=dict)
    rounds: int = 0
    bytes_up: int = 0  # a client's largest message up and down so far, and all of them together
    bytes_down: int = 0
    total_up: int = 0
    total_down: int = 0
    notes: Counter[str] = field(default_factory=Counter)  # summed over updates
    updates: int = 0
    n_classes: int = 0  # K of the logits that it takes; 0: not known

    @property
    def done(self) -> bool:
        """Whether an additive method's server has all it wants."""
        return isinstance(self.method, Additive) and self.program is None

    def apply(self, logits: Any, client: str | int | None = None) -> Tensor:
        """Calibrated logits in float64: by the global scaler, or by that client's own if it has one."""
        logits = check_logits(logits)
        if self.n_classes not in (0, logits.shape[1]):
            raise FedCalError(f"logits of {logits.shape[1]} classes for a scaler of {self.n_classes}: give all of them")
        if client is not None and self.own and str(client) not in self.own:
            raise FedCalError(f"{unknown('client', str(client), self.own)}; leave it out for the global scaler")
        own = self.own.get(str(client), {}) if client is not None else {}
        return self.method.apply_own(self.params, own, logits.double())

    def welcome(self, client: str | int, logits: Any, labels: Any = None) -> None:
        """Make a client that took no part known, from samples of its own: with labels, or without (fedcal-plus only)."""
        logits = check_logits(logits).double()
        if labels is not None:
            labels = check_labels(labels, logits.shape[0], logits.shape[1])
        self.own[str(client)] = self.method.personal(self.params, {}, logits, labels)

    def predict_proba(self, logits: Any, client: str | int | None = None) -> Tensor:
        """Calibrated probabilities."""
        return self.apply(logits, client).softmax(dim=1)


def begin(method: Method, n_classes: int, seed: int) -> Calibration:
    """The server's start: the same first net for every method of a run, so that ablations differ in one thing."""
    state = Calibration(method, {}, n_classes=n_classes)
    if isinstance(method, Averaged):
        state.params = method.init(n_classes, torch_rng(seed, "scaler"))
    elif isinstance(method, Additive):
        state.program = method.program(n_classes)
        state.question = next(state.program)
    return state


def calibration_round(state: Calibration, samples: Mapping[str, Samples], seed: int) -> None:
    """One round: each client's half on its samples, then the server's. Clients without samples sit out."""
    method, updates = state.method, {}
    sent = state.question if isinstance(method, Additive) else state.params
    for name, (logits, labels) in samples.items():
        if len(labels):
            rng = torch_rng(seed, "scaler", state.rounds, name)
            updates[name] = method.client(sent, state.own.get(name, {}), logits, labels, rng)
    state.rounds += 1
    if not updates:
        return
    for name, update in updates.items():
        state.own[name] = update.own
        state.notes.update(update.notes)
    up, down = max(n_bytes(update.content) for update in updates.values()), n_bytes(sent)
    state.bytes_up, state.bytes_down = max(state.bytes_up, up), max(state.bytes_down, down)
    state.total_up, state.total_down = state.total_up + up, state.total_down + down
    state.updates += len(updates)
    if method.average == "latest":
        state.latest.update(updates)
        updates = dict(sorted(state.latest.items()))
    if isinstance(method, Averaged):
        state.params = method.server(state.params, list(updates.values()))
    else:
        _advance(state, total(list(updates.values())))
        if state.done:
            for name in updates:
                state.own[name] = method.personal(state.params, state.own[name], *samples[name])


def _advance(state: Calibration, sums: Params) -> None:
    """The server's half of an additive method: the answers added up, and what the program makes of them."""
    assert state.program is not None
    try:
        state.question = state.program.send(sums)
    except StopIteration as finished:
        state.params, state.program, state.question = finished.value, None, {}


def calibrate(
    clients: Mapping[str, tuple[Any, Any]] | Sequence[tuple[Any, Any]],
    method: str = "fedcal",
    *,
    rounds: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Calibration:
    """Calibrate a frozen model from each client's (logits, labels), as rounds between clients and a server would.

    >>> calibrated = fedcal.calibrate([(logits_a, labels_a), (logits_b, labels_b)], method="avg-t")
    >>> calibrated.predict_proba(new_logits)               # the global scaler
    >>> calibrated.predict_proba(new_logits, client=0)     # the first client's own

    Args:
        clients: each client's (N, K) logits and (N,) labels, held out of training; a mapping names them.
        method: see `fedcal methods`.
        rounds: rounds in which all clients take part; the method's own number if not given.
        options: the method's options, e.g. `net="raw"` for fedcal.
    """
    chosen = _check_method(method, options)
    rounds = chosen.rounds if rounds is None else check_whole(rounds, "rounds", low=0)
    seed = check_whole(seed, "seed", low=0)
    samples = _check_clients(clients)
    n_classes = next(iter(samples.values()))[0].shape[1]
    state = begin(chosen, n_classes, seed)
    for _ in range(rounds):
        if state.done:
            break
        calibration_round(state, samples, seed)
    return state


def _check_method(name: Any, options: dict[str, Any]) -> Method:
    """The method, once its options are known to be of the right kind."""
    if not isinstance(name, str):
        raise FedCalError(f"method must be a name (see `fedcal methods`), not {name!r}")
    method = get_method(name, **options)
    hints = get_type_hints(type(method))
    for option, value in options.items():
        try:
            check_value(option, value, hints[option], {"low": 1} if hints[option] is int else {})
        except FedCalError as error:
            raise FedCalError(f"{name}: {error}") from None
    return method


def _check_clients(clients: Any) -> dict[str, Samples]:
    """Each client's samples as tensors, by name; all of them with the same number of classes."""
    if not isinstance(clients, Iterable):
        raise FedCalError(f"clients must be a list of pairs (logits, labels), not {type(clients).__name__}")
    named = clients if isinstance(clients, Mapping) else dict(enumerate(clients))
    if not named:
        raise FedCalError("no clients: give (logits, labels) of at least one")
    samples: dict[str, Samples] = {}
    width = 0
    for name, pair in named.items():
        if str(name) in samples:
            raise FedCalError(f"two clients have the name {str(name)!r}: name them apart")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise FedCalError(f"client {name}: expected a pair (logits, labels), not {type(pair).__name__}")
        try:
            logits = check_logits(pair[0])
            labels = check_labels(pair[1], logits.shape[0], logits.shape[1])
        except FedCalError as error:
            raise FedCalError(f"client {name}: {error}") from None
        if width and logits.shape[1] != width:
            raise FedCalError(f"client {name}: logits of {logits.shape[1]} classes where the others have {width}")
        width = logits.shape[1]
        samples[str(name)] = logits.double(), labels
    if not sum(len(labels) for _, labels in samples.values()):
        raise FedCalError("no samples: every client is empty; at least one needs some")
    return samples
