"""A node's sums as one vector for secure aggregation, and the total read back.

    count     1 of each node: the total must be the number of nodes, or something went wrong
    flags     one per tensor: a value is too large for its unit
    n         samples
    values    of all tensors, by name

A flag that is raised is a random number, so that the total tells whether any node raised it, not how many did. A node whose
values do not fit replaces n and all its values by random numbers: the total is then random as well, tells nothing, and the
request is made again with larger units. So nothing is clipped, and no node's part follows from the difference of two totals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedcal.errors import FedCalError
from fedcal.secure.crypto import random_words
from fedcal.secure.fixed import BITS, Words, decode, encode, fits
from fedcal.secure.messages import DoesNotAddUp

FINEST, COARSER, COARSEST = -64, 32, 64  # units are 2^FINEST at first; COARSER bits are added where values do not fit
Values = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Total:
    """What the server learns of a group."""

    values: dict[str, NDArray[np.float64]]  # empty where some are too large
    n: int = 0  # samples
    nodes: int = 0  # whose sums are in it
    too_large: tuple[str, ...] = ()  # tensors that need larger units
    rounding: float = 0.0  # the most by which a value differs from the exact total


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors, and the units of each: 2 to this power."""

    shapes: dict[str, tuple[int, ...]]
    exponents: dict[str, int] = field(default_factory=dict)  # FINEST where nothing is said

    def __post_init__(self) -> None:
        if any(not FINEST <= exponent <= COARSEST for exponent in self.exponents.values()):
            raise FedCalError(f"the units of secure aggregation are 2^{FINEST} to 2^{COARSEST}: check the server")

    @property
    def names(self) -> list[str]:
        """The tensors in their order."""
        return sorted(self.shapes)

    @property
    def length(self) -> int:
        """How many numbers the vector has."""
        return len(self.shapes) + 2 + sum(math.prod(shape) for shape in self.shapes.values())

    def exponent(self, name: str) -> int:
        """Return the power of 2 of a tensor's unit."""
        return self.exponents.get(name, FINEST)

    def coarser(self, names: tuple[str, ...]) -> Layout:
        """Return the same with larger units for some tensors.

        Raises:
            FedCalError: where there are none.
        """
        found = {name: self.exponent(name) + COARSER for name in names}
        if any(exponent > COARSEST for exponent in found.values()):
            raise FedCalError(f"a node's sums are beyond 2^{BITS + COARSEST}: are its logits right?")
        return Layout(self.shapes, self.exponents | found)

    def encode(self, values: Values, n: int) -> Words:
        """Return a node's vector.

        Args:
            values: of every tensor; empty: all are 0.
            n: samples.

        Raises:
            FedCalError: where a value is not finite, or a tensor is missing or of another shape.
        """
        flat = {name: self._flat(name, values) for name in self.names}
        large = [not fits(value, self.exponent(name)) for name, value in flat.items()]
        head = encode(np.array([1.0, *[0.0] * len(large), float(n)]), 0)
        if any(large):
            head[:, 1:-1][:, large] = random_words(sum(large))
            return np.concatenate([head[:, :-1], random_words(self.length - len(large) - 1)], axis=1)
        parts = [encode(value, self.exponent(name)) for name, value in flat.items()]
        return np.concatenate([head, *parts], axis=1)

    def decode(self, total: Words, nodes: int) -> Total:
        """Read the total of that many nodes.

        Raises:
            DoesNotAddUp: where it is not theirs.
        """
        head = decode(total[:, : len(self.shapes) + 2], 0)
        if head[0] != nodes:
            raise DoesNotAddUp("the masks do not cancel: a node did not follow the protocol")
        too_large = tuple(name for name, flag in zip(self.names, head[1:], strict=False) if flag)
        if too_large:
            return Total({}, nodes=nodes, too_large=too_large)
        found, first = dict[str, NDArray[np.float64]](), len(head)
        for name in self.names:
            after = first + math.prod(self.shapes[name])
            found[name] = decode(total[:, first:after], self.exponent(name)).reshape(self.shapes[name])
            first = after
        rounding = max((math.ldexp(nodes / 2, self.exponent(name)) for name in self.names), default=0.0)
        return Total(found, int(head[-1]), nodes, (), rounding)

    def _flat(self, name: str, values: Values) -> NDArray[np.float64]:
        shape = self.shapes[name]
        value = values.get(name) if values else np.zeros(shape)
        if value is None or value.shape != shape:
            raise FedCalError(f"the reply has no {name!r} of shape {shape}: use one version of fedcal everywhere")
        if not np.isfinite(value).all():
            raise FedCalError(f"the reply is not finite in {name!r}: are the logits right?")
        return value.ravel()
