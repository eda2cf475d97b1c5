"""A method's server half at work: what it asks next, and the scaler so far.

Both families have the same shape. An averaging fit hands out the global scaler and combines what comes back. An exact fit
runs a program that asks for sums; the sums of its rounds are enough to bring a stopped one back.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.query import Query, contiguous
from fedcal.base.seeds import stream_seed, torch_rng
from fedcal.base.store import nest, unnest, unnest_each
from fedcal.errors import FedCalError, counted, reason_of
from fedcal.exact.solve import Program
from fedcal.methods.robust import Robust, robust_mean

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Update:
    """What a client's half gives: what leaves the client (`content`, `n`, `notes`), and what stays there (`memory`)."""

    content: Params
    n: int = 0  # the client's samples
    memory: Params = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)  # remarks for the log


@dataclass(frozen=True)
class FitScaler(Query):
    """Fit a scaler, starting from the global one."""

    params: Params
    draw: int  # the round's random number, from which each client derives its own stream

    def stream(self, logits: Array, labels: Array) -> torch.Generator:
        """Return the random stream of a client with these samples."""
        samples = hashlib.blake2b(np.ascontiguousarray(logits, float).data, digest_size=8)
        samples.update(np.ascontiguousarray(labels).data)
        return torch_rng(self.draw, "client", samples.hexdigest())


class Fit(ABC):
    """The server's half of a method: `query` until it is None, then `params`."""

    query: Query | None
    params: Params  # of the scaler; of an exact fit that is not done yet: empty
    received: int  # rounds so far
    robust: Robust | None = None  # how to combine scalers, in place of the method's own way
    keeps_history: bool = True  # whether an exact fit keeps the sums of its rounds, for `state`

    @abstractmethod
    def gather(self, updates: Iterable[tuple[str, Update]]) -> Any:
        """Return what the server needs of a round's updates, taking them one by one."""

    @abstractmethod
    def advance(self, gathered: Any) -> None:
        """Go on with what a round came to."""

    @abstractmethod
    def state(self, since: int = 0) -> tuple[Params, dict[str, Any]]:
        """Return arrays and JSON values that bring the fit back; of an exact fit only the rounds after `since`."""

    @abstractmethod
    def load(self, tensors: Params, about: dict[str, Any]) -> None:
        """Bring a fit that has just begun to where another one was."""


class AveragingFit(Fit):
    """Rounds of: hand out the global scaler, combine the clients'.

    Args:
        params: the scaler to start from.
        combine: makes the next scaler of the last one and the clients' updates.
        rounds: how many.
        seed: of whatever clients draw at random.
        latest: whether to combine every client's last update, and not only those of the round.
    """

    def __init__(
        self,
        params: Params,
        combine: Callable[[Params, list[Update]], Params],
        rounds: int,
        seed: int,
        latest: bool = False,
    ) -> None:
        self.params, self.combine, self.rounds, self.seed, self.received = params, combine, rounds, seed, 0
        self.keeps_latest = latest
        self.latest: dict[str, Update] = {}  # each client's last update, where those are combined

    @property
    def query(self) -> Query | None:  # pyright: ignore[reportIncompatibleVariableOverride] - it follows from the rest
        if self.received >= self.rounds:
            return None
        return FitScaler(contiguous(self.params), stream_seed(self.seed, "scaler", self.received))

    def gather(self, updates: Iterable[tuple[str, Update]]) -> dict[str, Update]:
        return dict(updates)

    def advance(self, gathered: dict[str, Update]) -> None:
        if self.keeps_latest:
            gathered = self.latest = dict(sorted((self.latest | gathered).items()))
        self.received += 1
        if updates := list(gathered.values()):
            if self.robust:
                updates = [Update(robust_mean([update.content for update in updates], self.robust), n=1)]
            self.params = self.combine(self.params, updates)

    def state(self, since: int = 0) -> tuple[Params, dict[str, Any]]:
        tensors = nest("params", self.params)
        for number, update in enumerate(self.latest.values()):
            tensors |= nest(f"latest/{number}", update.content)
        latest = [[name, update.n, list(update.content)] for name, update in self.latest.items()]
        return tensors, {"received": self.received, "latest": latest, "order": list(self.params)}

    def load(self, tensors: Params, about: dict[str, Any]) -> None:
        params = unnest("params", tensors)
        self.params = {name: params[name] for name in about["order"]}  # a file sorts them
        self.received = int(about["received"])
        self.latest, parts = {}, unnest_each(unnest("latest", tensors))
        for number, (name, n, order) in enumerate(about["latest"]):
            self.latest[name] = Update({key: parts[str(number)][key] for key in order}, n)


class ExactFit(Fit):
    """A program that asks for sums until it has the scaler.

    Args:
        program: yields queries, is sent the summed replies, and returns the scaler's parameters.
        rounds: how many at most.
    """

    def __init__(self, program: Program, rounds: int) -> None:
        self.rounds, self.received = rounds, 0
        self.params: Params = {}
        self.history: list[Params] = []  # the sums of every round
        self._program = program
        self.query: Query | None = contiguous(next(program))

    def gather(self, updates: Iterable[tuple[str, Update]]) -> Params:
        whole = Total()
        for _, update in updates:
            whole.add(update.content)
        return whole.sums()

    def advance(self, gathered: Params) -> None:
        if self.keeps_history:
            self.history.append(gathered)
        self.received += 1
        try:
            self.query = contiguous(self._program.send(contiguous(gathered)))
        except StopIteration as finished:
            if finished.value is None:  # the program had ended before, with the scaler or with an error
                raise FedCalError("the fit has ended already: start again") from None
            self.params, self.query = contiguous(finished.value), None
        except (RuntimeError, ArithmeticError, LookupError, ValueError) as error:
            raise FedCalError(
                f"round {self.received}: the sums lead nowhere ({reason_of(error)}): check the clients"
            ) from None
        if self.query is not None and self.received >= self.rounds:
            raise FedCalError(
                f"the fit was not done after {counted(self.received, 'round')}: leave rounds out, it knows when to stop"
            )

    def state(self, since: int = 0) -> tuple[Params, dict[str, Any]]:
        if not self.keeps_history:
            raise FedCalError("this fit does not keep its rounds: it cannot be saved half-way")
        tensors: Params = {}
        for number, sums in enumerate(self.history[since:], start=since + 1):
            tensors |= nest(f"{number:04d}", sums)
        return tensors, {"received": self.received}

    def load(self, tensors: Params, about: dict[str, Any]) -> None:
        for number in range(self.received + 1, int(about["received"]) + 1):
            self.advance(unnest(f"{number:04d}", tensors))


class Total:
    """Updates added up as they come: all that the server of an additive method sees.

    Neighbours are added pairwise, then pairs of pairs, and so on: rounding grows with the logarithm of their number, and
    so does what is held meanwhile.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[int, Array]]] = {}  # by name: sums of 2^level updates, level falling

    def add(self, content: Params) -> None:
        """Add one more update."""
        for name, value in content.items():
            parts, level = self._parts.setdefault(name, []), 0
            while parts and parts[-1][0] == level:
                value, level = parts.pop()[1] + value, level + 1
            parts.append((level, value))

    def sums(self) -> Params:
        """Return the sum of each array over the updates that hold it."""
        found = {}
        for name in sorted(self._parts):
            *larger, (_, value) = self._parts[name]
            for _, part in reversed(larger):
                value = part + value
            found[name] = value
        return found


def n_bytes(params: Params) -> int:
    """Return the size of params on the wire."""
    return sum(value.nbytes for value in params.values())
