"""The one error and the one warning that users meet, and the hint that goes with a misspelt name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FedCalError(ValueError):
    """Bad input or a bad state of files: one line that says what is wrong, where, and what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.splitlines()))  # a path, or another library's words, may hold a newline


class FedCalWarning(UserWarning):
    """Something that works, but probably not as it was meant."""


def unknown(kind: str, name: object, known: Iterable[str]) -> FedCalError:
    """The error for a name that is not in `known`, with the nearest one as a hint."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names)}"
    return FedCalError(f"unknown {kind} {name!r}: {hint}")


def counted(count: int, noun: str) -> str:
    """1 round, 2 rounds."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
