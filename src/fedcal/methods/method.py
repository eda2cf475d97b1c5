"""What a calibration method is: a server's half, a client's half, and a function.

    begin(n_classes, rounds, seed)                 -> Fit        the server's half: queries clients, receives their replies
    reply(query, samples, memory)                  -> Update     the client's half, where the data is
    apply(params, logits)                          -> calibrated logits
    personal(params, memory, logits, labels)       -> what a client makes of the final scaler for itself

Two families share this shape. `Averaged` methods (the paper's) combine the clients' scalers. `Additive` methods only ever add
replies up: their fits equal fits on pooled data, and secure aggregation and differential privacy apply to them.

Params, memory and an update's content are flat dicts of NumPy arrays. `apply` takes tensors too: a model may be trained or
exported through it. Only methods with nets import PyTorch, when they need it. Nothing here does I/O.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from fedcal.base.arrays import Array, Params
from fedcal.base.folds import FOLDS
from fedcal.base.query import Query, parts
from fedcal.base.seeds import torch_rng
from fedcal.exact.prepared import ALL, FoldMap, Prepared
from fedcal.exact.private_query import PrivateQuery
from fedcal.exact.queries import Points, Start, SumQuery
from fedcal.exact.solve import Program
from fedcal.methods.fit import AveragingFit, ExactFit, Fit, FitScaler, Update

if TYPE_CHECKING:
    import torch

Draw = Callable[[], "torch.Generator"]  # gives a random stream
TRAINING = 1000  # training rounds at most of a federation whose scaler is fitted within them
ROUNDS = "Rounds of all clients on the final model; of an interleaved method, in addition to the training rounds."
FIT_ON = "The samples that a client fits on: its held-out calibration split, or its training data."


def option(default: Any, help: str, **rules: float) -> Any:
    """A field that users may set: its default, one line of meaning, and for numbers the bounds (`low`, `above`)."""
    rules = {**rules, "high": rules.get("high", 10**9)} if rules else {}
    return field(default=default, metadata={"help": help, "rules": rules})


@dataclass(frozen=True)
class Stage:
    """Queries of one kind that a method's server asks: at most `times`, and none once a later stage has begun."""

    query: type[Query]
    times: int = 1
    maps: Mapping[str, int] = field(default_factory=dict)  # how many linear maps of each family one query may hold
    folds: bool = False  # so many for each fold too, of which no Hessians

    def takes(self, query: Query) -> bool:
        """Whether the query is of this kind, and holds no more."""
        held: Counter[tuple[str, int]] = Counter()
        for part in parts(query):
            if isinstance(part, PrivateQuery):
                held.update((family, ALL) for family in part.families)
            elif isinstance(part, FoldMap):
                held.update((part.family, fold) for fold in part.at)
            elif isinstance(part, Points):
                if (part.family, part.fold) in held or (part.fold != ALL and part.curvature != "none"):
                    return False
                if part.at.ndim != 2:
                    return False
                held[part.family, part.fold] = len(part.at)
        allowed = (ALL, *range(FOLDS)) if self.folds else (ALL,)
        return (
            type(query) is self.query
            and (self.folds or not (isinstance(query, Start) and query.folds))
            and all(fold in allowed and n <= self.maps.get(family, 0) for (family, fold), n in held.items())
        )


@dataclass(frozen=True)
class Method(ABC):
    """A method's shape. Subclasses are final; those of their fields that are made by `option` are the method's options."""

    leaves: ClassVar[str]  # what leaves a client
    additive: ClassVar[bool] = False  # the server only adds replies up: secure aggregation can do that
    needs_pooled_data: ClassVar[bool] = False  # a reference, not a federated method
    takes: ClassVar[Literal["logits", "features"]] = "logits"  # what a row of samples holds; features: logits too

    name: str = ""  # in METHODS
    summary: str = ""
    schedule: Literal["interleaved", "post-hoc"] = "post-hoc"
    rounds: int = 1
    logits_of: Literal["local", "received"] = "local"
    fit_on: Literal["held-out", "train"] = "held-out"
    average: Literal["round", "latest"] = "round"

    @property
    def may_ask(self) -> tuple[type[Query], ...]:
        """The kinds of query that its server may ask."""
        return tuple(dict.fromkeys(stage.query for stage in self.stages(2)))  # the same over any number of classes

    @property
    def may_ask_privately(self) -> tuple[type[Query], ...]:
        """The kinds of query that its server may ask under differential privacy."""
        return tuple(dict.fromkeys(stage.query for stage in self.private_stages(2)))

    @property
    def private(self) -> bool:
        """Whether it has a private program."""
        return bool(self.private_stages(2))

    @property
    def remembers(self) -> bool:
        """Whether a client's reply builds on what it kept from its last one."""
        return False

    def width(self, n_classes: int) -> int:
        """Return how many columns a row of samples has.

        Args:
            n_classes: K of the logits.
        """
        return n_classes

    def classes_of(self, width: int) -> int:
        """Return K, given how many columns a row of samples has.

        Args:
            width: the number of columns.
        """
        return width

    def logits(self, rows: Any) -> Any:
        """Return the model's logits.

        Args:
            rows: of samples.
        """
        return rows

    def prepare(self, samples: Prepared) -> Prepared:
        """Return a client's samples as the method's queries want them.

        Args:
            samples: as they came.
        """
        return samples

    @abstractmethod
    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        """Return what its server asks, in that order; any of it may be skipped. A client with a policy replies to no more.

        Args:
            n_classes: K of the logits.
        """

    def private_stages(self, n_classes: int) -> tuple[Stage, ...]:
        """Return what its server asks under differential privacy, in that order; nothing if it has no private program.

        Args:
            n_classes: K of the logits.
        """
        return ()

    @abstractmethod
    def begin(self, n_classes: int, rounds: int, seed: int) -> Fit:
        """Start the server's half.

        Args:
            n_classes: K of the logits.
            rounds: rounds at most.
            seed: for everything that is random.

        Returns:
            The fit: what it asks next, and in the end the scaler's parameters.
        """

    @abstractmethod
    def reply(self, query: Query, samples: Prepared, memory: Params) -> Update:
        """Reply to a query: the client's half.

        Args:
            query: the server's.
            samples: the client's, at least one.
            memory: what the client kept from its last reply; empty at first.

        Returns:
            What leaves the client, and what it keeps.
        """

    def fitted_on(self, samples: Prepared) -> Prepared:
        """Return those of a client's samples that the fit is about: all, unless some are held out for conformal sets.

        Args:
            samples: the client's.
        """
        return samples

    @abstractmethod
    def apply(self, params: Params, logits: Any) -> Any:
        """Return calibrated logits: an array of arrays, a tensor of tensors.

        Args:
            params: of the global scaler.
            logits: (N, K) in float64.
        """

    def apply_personal(self, params: Params, personal: Params, logits: Any) -> Any:
        """Return calibrated logits at a client: by its personal scaler if it has one, else by the global one.

        Args:
            params: of the global scaler.
            personal: what `personal` made; empty: the global scaler serves.
            logits: (N, K) in float64.
        """
        return self.apply(personal or params, logits)

    def personal(self, params: Params, memory: Params, logits: Array, labels: Array | None) -> Params:
        """Return a client's personal scaler; empty if it uses the global one.

        Args:
            params: the global scaler.
            memory: what the client kept from its last reply; empty for a client that took no part.
            logits: of the client's samples.
            labels: of the same, or None if it has none.
        """
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

    def stages(self, n_classes: int) -> tuple[Stage, ...]:
        return (Stage(FitScaler, self.rounds + (TRAINING if self.schedule == "interleaved" else 0)),)

    @abstractmethod
    def init(self, n_classes: int, draw: Draw) -> Params:
        """Return the server's starting scaler; `draw` gives a random stream."""

    @abstractmethod
    def fit(self, params: Params, memory: Params, logits: Array, labels: Array, draw: Draw) -> Update:
        """Fit a client's scaler, given the global one and the client's last; `draw` gives a random stream."""

    @abstractmethod
    def combine(self, params: Params, updates: list[Update]) -> Params:
        """Return the next global scaler."""

    def begin(self, n_classes: int, rounds: int, seed: int) -> Fit:
        # The same first net for every method of a run, so that ablations differ in one thing.
        start = self.init(n_classes, lambda: torch_rng(seed, "scaler"))
        return AveragingFit(start, self.combine, rounds, seed, latest=self.average == "latest")

    def reply(self, query: Query, samples: Prepared, memory: Params) -> Update:
        assert isinstance(query, FitScaler)
        logits, labels = samples.logits.astype(float, copy=False), samples.labels
        return self.fit(query.params, memory, logits, labels, lambda: query.stream(logits, labels))

    def personal(self, params: Params, memory: Params, logits: Array, labels: Array | None) -> Params:
        return memory


@dataclass(frozen=True)
class Additive(Method):
    """The clients' replies are only ever added up: exact fits, and what secure aggregation can wrap.

    The server's half is a program: it yields queries, is sent the sum of the replies, and in the end returns the scaler.
    """

    additive = True

    rounds: int = option(1000, "Largest number of rounds; the fit usually stops earlier.", low=1)
    fit_on: Literal["held-out", "train"] = option("held-out", FIT_ON)

    @abstractmethod
    def program(self, n_classes: int) -> Program:
        """Run the server's half."""

    def private_program(self, n_classes: int, clip: float | None) -> Program:
        """Run the server's half under differential privacy: its queries are private ones, with shares of a budget.

        Args:
            n_classes: K of the logits.
            clip: the norm to which logits are shortened; None: found from the samples.
        """
        raise NotImplementedError  # a method with private stages has one; `Privacy.check` refuses the others

    def begin(self, n_classes: int, rounds: int, seed: int) -> Fit:
        return ExactFit(self.program(n_classes), rounds)

    def begin_private(self, n_classes: int, rounds: int, clip: float | None) -> Fit:
        """Start the server's half under differential privacy."""
        return ExactFit(self.private_program(n_classes, clip), rounds)

    def reply(self, query: Query, samples: Prepared, memory: Params) -> Update:
        assert isinstance(query, SumQuery)
        return Update(query.reply(samples), memory=memory)


def mean(updates: list[Update], weighted: bool = False) -> Params:
    """Average the updates' arrays in float64, with equal weights or by sample count."""
    weights = np.array([float(u.n) if weighted else 1.0 for u in updates])
    weights /= weights.sum()
    first = updates[0].content
    return {
        name: np.tensordot(weights, np.stack([u.content[name] for u in updates], dtype=float), 1).astype(value.dtype)
        for name, value in first.items()
    }
