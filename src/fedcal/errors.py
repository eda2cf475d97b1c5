"""The one error and the one warning that users meet, and the hint that goes with a misspelt name."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # Unicode's kinds of characters that steer a terminal, or are none


class FedCalError(ValueError):
    """Bad input or a bad state of files: one line that says what is wrong, where, and what to do.

    Examples:
        >>> import fedcal
        >>> fedcal.calibrate([([[2.0, 1.0]], [0])], method="fedcal-puls")
        Traceback (most recent call last):
        fedcal.errors.FedCalError: unknown method 'fedcal-puls': did you mean 'fedcal-plus'?
    """

    def __init__(self, message: str) -> None:
        # A path, a column's name or another library's words may hold a newline, or codes that steer a terminal.
        super().__init__(printable(" ".join(message.splitlines())))


class FedCalWarning(UserWarning):
    """Something that works, but probably not as intended.

    Examples:
        Logits that look like probabilities, without `probs=`:

        >>> import fedcal, warnings
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     scaler = fedcal.calibrate([([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]], [0, 1, 1])], "fed-ts")
        >>> caught[0].category.__name__
        'FedCalWarning'
    """


def unknown(kind: str, name: object, known: Iterable[str]) -> FedCalError:
    """The error for a name that is not in `known`, with the nearest one as a hint."""
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(names)}"
    return FedCalError(f"unknown {kind} {name!r}: {hint}")


def check_known(kind: str, name: object, known: Collection[str]) -> None:
    """Refuse a name that is not in `known`."""
    if name not in known:
        raise unknown(kind, name, known)


@contextmanager
def error_context(where: object) -> Iterator[None]:
    """Put what is worked on, such as a file or a client, before the message of a `FedCalError` that is raised within."""
    try:
        yield
    except FedCalError as error:
        raise FedCalError(f"{where}: {error}") from None


def reason_of(error: BaseException) -> str:
    """The first line of what another library's error says; its type where it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def said(error: BaseException) -> str:
    """What a user's own code fails with, in one line: the error's type, and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def counted(count: int, noun: str) -> str:
    """1 round, 2 rounds, 2 classes."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def printable(text: str) -> str:
    """The text with characters that steer a terminal written as escapes: a file's or a client's name may hold some."""
    if text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in UNSEEN else c for c in text)
