"""What a calibration method is: two halves and a function.

    init(n_classes, rng)                          -> params     the server's starting scaler
    client(params, own, logits, labels, rng)      -> Update     runs where the data is
    server(params, updates)                       -> params     sees updates only: never a logit, never a label
    apply(params, logits)                         -> calibrated logits

Where the server only adds updates up (`Additive`), init and server are one `program` that asks and is answered.

`params`, `own` and an update's content are flat dicts of tensors. One definition serves the simulator (Algorithm 1,
interleaved with training), rounds on a frozen model, and users' own logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedcal.base.logits import Params
from fedcal.exact.answers import Site, answer
from fedcal.exact.solve import Program


@dataclass(frozen=True)
class Update:
    """What leaves a client (`content`, `n`), what stays there (`own`), and remarks for the log (`notes`)."""

    content: Params
    n: int = 0  # samples, where the server weighs by them
    own: Params = field(default_factory=dict)  # the client's own scaler, for `apply`; empty: the global one serves
    notes: dict[str, float] = field(default_factory=dict)


ROUNDS = "Rounds of all clients on the final model; of an interleaved method, in addition to the training rounds."
FIT_ON = "The samples that a client fits on: its held-out calibration split, or its training data."


def option(default: Any, help: str, **rules: float) -> Any:
    """A field that users may set: its default, one line of meaning, and for numbers the bounds (`low`, `above`)."""
    return field(default=default, metadata={"help": help, "rules": {**rules, "high": 10**9} if rules else {}})


@dataclass(frozen=True)
class Method(ABC):
    """A method's shape. Subclasses are final; those of their fields that are made by `option` are the method's options."""

    leaves: ClassVar[str]  # what leaves a client
    additive: ClassVar[bool] = False  # the server only adds updates up: secure aggregation can do that
    needs_pooled_data: ClassVar[bool] = False  # a reference, not a federated method

    name: str = ""  # in METHODS
    summary: str = ""
    schedule: Literal["interleaved", "post-hoc"] = "post-hoc"
    rounds: int = 1
    logits_of: Literal["local", "received"] = "local"
    fit_on: Literal["held-out", "train"] = "held-out"
    average: Literal["round", "latest"] = "round"

    @abstractmethod
    def client(self, params: Params, own: Params, logits: Tensor, labels: Tensor, rng: torch.Generator) -> Update:
        """One client's half: what the server sent, its own last scaler (empty at first), its samples (at least one)."""

    @abstractmethod
    def apply(self, params: Params, logits: Tensor) -> Tensor:
        """Calibrated logits."""

    def apply_own(self, params: Params, own: Params, logits: Tensor) -> Tensor:
        """Calibrated logits at a client: its own scaler if it has one, else the global one."""
        return self.apply(own or params, logits)

    def personal(self, params: Params, own: Params, logits: Tensor, labels: Tensor | None) -> Params:
        """What a client makes of the final params and its samples, for itself; also one that never took part (its `own`
        is empty then), or one without labels (None)."""
        return {}


@dataclass(frozen=True)
class Averaged(Method):
    """The clients' scalers are combined by the server: the paper's family."""

    schedule: Literal["interleaved", "post-hoc"] = option(
        "post-hoc",
        "Fit within the training rounds (interleaved, as Algorithm 1), or on the final model only (post-hoc).",
    )
    rounds: int = option(1, ROUNDS, low=0)
    logits_of: Literal["local", "received"] = option(
        "local", "interleaved: fit on logits of the client's locally trained model, or of the model that it received."
    )
    fit_on: Literal["held-out", "train"] = option("held-out", FIT_ON)
    average: Literal["round", "latest"] = option(
        "round", "Average the scalers of this round's clients, or the latest scaler of every client."
    )

    @abstractmethod
    def init(self, n_classes: int, rng: torch.Generator) -> Params:
        """The server's starting scaler."""

    @abstractmethod
    def server(self, params: Params, updates: list[Update]) -> Params:
        """The server's half: the next params."""


@dataclass(frozen=True)
class Additive(Method):
    """The clients' updates are only ever added up: exact fits, and what secure aggregation can wrap.

    The server's half is a program: it yields what to ask the clients (a flat dict of tensors), is sent the sum of
    their answers, and in the end returns the scaler's params.
    """

    additive = True

    rounds: int = option(1000, "Rounds at most; the fit stops by itself when it is done.", low=1)
    fit_on: Literal["held-out", "train"] = option("held-out", FIT_ON)

    @abstractmethod
    def program(self, n_classes: int) -> Program:
        """The server's half."""

    def client(self, params: Params, own: Params, logits: Tensor, labels: Tensor, rng: torch.Generator) -> Update:
        return self.respond(params, own, Site(lambda: (logits, labels)))

    def respond(self, question: Params, own: Params, site: Site) -> Update:
        """The client's half, which draws nothing: a site may be kept from one question to the next."""
        return Update(answer(question, site), own=own)


def mean(updates: list[Update], weighted: bool = False) -> Params:
    """The average of the updates' tensors, of equal weight or by sample count, summed in float64."""
    weights = torch.tensor([float(u.n) if weighted else 1.0 for u in updates], dtype=torch.float64)
    weights /= weights.sum()
    first = updates[0].content
    return {
        name: torch.tensordot(weights, torch.stack([u.content[name].double() for u in updates]), dims=1).to(value.dtype)
        for name, value in first.items()
    }


class Total:
    """Updates added up as they come: all that the server of an additive method sees.

    Neighbours are added pairwise, then pairs of pairs, and so on: rounding grows with the logarithm of their number, and
    so does what is held meanwhile.
    """

    def __init__(self) -> None:
        self._parts: dict[str, list[tuple[int, Tensor]]] = {}  # by name: sums of 2^level updates, level falling

    def add(self, content: Params) -> None:
        """One more update."""
        for name, value in content.items():
            parts, level = self._parts.setdefault(name, []), 0
            while parts and parts[-1][0] == level:
                value, level = parts.pop()[1] + value, level + 1
            parts.append((level, value))

    def sums(self) -> Params:
        """The sum of each tensor over the updates that hold it."""
        found = {}
        for name in sorted(self._parts):
            *larger, (_, value) = self._parts[name]
            for _, part in reversed(larger):
                value = part + value
            found[name] = value
        return found


def total(updates: list[Update]) -> Params:
    """The sum of the updates' tensors."""
    whole = Total()
    for update in updates:
        whole.add(update.content)
    return whole.sums()


def n_bytes(params: Params) -> int:
    """The size of params on the wire."""
    return sum(value.nbytes for value in params.values())
