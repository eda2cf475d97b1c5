"""A node's sums as one vector for secure aggregation, and the total read back.

    count     1 of each node: the total must be the number of nodes, or something went wrong
    flag      not 0: a value is too large
    n         samples
    values    of all tensors, by name

A node whose values are too large raises the flag, and sends random numbers for it, for n and for all values. The total is
then random as well: it tells that some node needs more words, and nothing else. The request is made again with one word
more. So nothing is clipped, and no node's part follows from the difference of two totals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedcal.errors import FedCalError
from fedcal.secure.crypto import random_words
from fedcal.secure.fixed import ROUNDING, Words, decode, encode, most
from fedcal.secure.messages import DoesNotAddUp

FEWEST_WORDS, MOST_WORDS = 2, 4  # of a number
HEAD = 3  # numbers before the values
Values = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Total:
    """What the server learns of a group."""

    values: dict[str, NDArray[np.float64]]
    n: int  # samples
    nodes: tuple[str, ...]  # whose sums are in it

    @property
    def rounding(self) -> float:
        """The most by which a value differs from the exact total, before it becomes a double."""
        return len(self.nodes) * ROUNDING


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors, and how many words a number has."""

    shapes: Mapping[str, tuple[int, ...]]
    words: int = FEWEST_WORDS

    def __post_init__(self) -> None:
        if not FEWEST_WORDS <= self.words <= MOST_WORDS:
            raise FedCalError(f"a node's sums are beyond {most(MOST_WORDS):.1g}: are its logits right?")

    @property
    def length(self) -> int:
        """How many numbers the vector has."""
        return HEAD + sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def n_bytes(self) -> int:
        """The size of the vector."""
        return 8 * self.words * self.length

    def wider(self) -> Layout:
        """Return the same with one word more.

        Raises:
            FedCalError: where there are enough.
        """
        return replace(self, words=self.words + 1)

    def encode(self, values: Values, n: int) -> Words:
        """Return a node's vector.

        Args:
            values: of every tensor; empty: all are 0.
            n: samples.

        Raises:
            FedCalError: where a value is not finite, or a tensor is missing or of another shape.
        """
        flat = [self._flat(name, values) for name in sorted(self.shapes)]
        if all((np.abs(value) < most(self.words)).all() for value in flat):
            return encode(np.concatenate([[1.0, 0.0, float(n)], *flat]), self.words)
        return np.concatenate([encode(np.ones(1), self.words), random_words(self.words, self.length - 1)], axis=1)

    def decode(self, total: Words, nodes: Sequence[str]) -> Total | None:
        """Read the total of these nodes; None where some node's values are too large.

        Raises:
            DoesNotAddUp: where it is not theirs.
        """
        (count, flag, n), flat = np.split(decode(total), [HEAD])
        if count != len(nodes):
            raise DoesNotAddUp("the masks do not cancel: a node did not follow the protocol")
        if flag:
            return None
        names = sorted(self.shapes)
        parts = np.split(flat, np.cumsum([math.prod(self.shapes[name]) for name in names]))
        values = {name: part.reshape(self.shapes[name]) for name, part in zip(names, parts, strict=False)}
        return Total(values, int(n), tuple(nodes))

    def _flat(self, name: str, values: Values) -> NDArray[np.float64]:
        shape = self.shapes[name]
        value = values.get(name) if values else np.zeros(shape)
        if value is None or value.shape != shape:
            raise FedCalError(f"the reply has no {name!r} of shape {shape}: use one version of fedcal everywhere")
        if not np.isfinite(value).all():
            raise FedCalError(f"the reply is not finite in {name!r}: are the logits right?")
        return value.ravel()
