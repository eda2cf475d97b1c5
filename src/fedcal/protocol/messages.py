"""What travels: a plan once, then a request and replies in every round."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedcal.base.arrays import Params
from fedcal.base.query import Query, fingerprint
from fedcal.methods import Method
from fedcal.protocol.privacy import Privacy

MOST_SAMPLES = 10**12  # of a client
MOST_CLASSES = 10**6


@dataclass(frozen=True)
class Plan:
    """What server and clients agree on before the first round."""

    method: Method
    n_classes: int
    seed: int = 0
    classes: tuple[Any, ...] = ()  # the label of each column; empty: labels are the columns' numbers
    federation: str = field(default_factory=lambda: uuid.uuid4().hex)  # tells federations apart


@dataclass(frozen=True)
class Request:
    """A server's query to every client."""

    federation: str
    round: int  # 1 at first
    query: Query
    privacy: Privacy | None = None  # what a client that states no privacy of its own keeps to

    @cached_property
    def digest(self) -> str:
        """A fingerprint, which replies carry: a reply to another request is refused."""
        whole = f"{self.federation} {self.round} {fingerprint(self.query)} {self.privacy or ''}".strip()
        return hashlib.blake2b(whole.encode(errors="replace"), digest_size=16).hexdigest()


@dataclass(frozen=True)
class Reply:
    """A client's reply to a request."""

    content: Params  # sums, or a scaler's parameters; empty: the client has no samples that the query is about
    n: int  # the client's samples
    to: str  # the digest of the request
    notes: dict[str, float] = field(default_factory=dict)  # remarks for the log
    privacy: dict[str, Any] = field(default_factory=dict)  # of a client with a budget of its own: what it has cost
    probs: bool = False  # whether the client's scores are probabilities, of which it took the logarithms
    clients: int = 1  # that reply as one, where many small ones are simulated together
