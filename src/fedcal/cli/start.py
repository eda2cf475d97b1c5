"""Start a command-line app: bad input ends in one line on stderr and exit 2, never in a traceback."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich.markup import escape

from fedcal.errors import FedCalError, FedCalWarning, printable


def safe(value: object) -> str:
    """A path or a name as rich prints it: neither markup nor codes that steer a terminal."""
    return escape(printable(str(value)))


INTERRUPTED = 130  # the exit status of a command that the user stopped: 128 and SIGINT's number


class Stopped(Exception):
    """The user has stopped a command. The message says what is kept, and how to go on."""


@contextmanager
def when_stopped(words: Callable[[], str]) -> Iterator[None]:
    """Say this where the user stops what runs within: what is kept, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(words()) from None


def start(app: typer.Typer, name: str, arguments: list[str] | None, kept: str) -> NoReturn:
    """Run an app and exit.

    Args:
        app: The commands.
        name: What the user typed to get here, such as "fedcal".
        arguments: The rest of the command line; None for that of the process.
        kept: What is kept where the user stops it, and how to go on.
    """
    warnings.formatwarning = _format_warning
    try:
        code = app(args=arguments, prog_name=name, standalone_mode=False)
        if code == INTERRUPTED:  # typer's way to say so
            raise KeyboardInterrupt
    except FedCalError as error:
        _stop(name, str(error), 2)
    except (KeyboardInterrupt, typer.Abort, Stopped) as stop:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses it twice has said it already
        _stop(name, f"stopped; {stop if isinstance(stop, Stopped) else kept}", INTERRUPTED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _stop(name, f"{where}{error.strerror or error}; check that path, or choose another", 2)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _stop(name, _usage(error, name), 2)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Any, name: str) -> str:
    """A usage error of typer's, with the command that helps; it has no words for a command left out."""
    context = getattr(error, "ctx", None)
    message = error.format_message().rstrip(".") or "choose a command"
    return f"{message}: see {context.command_path if context else name} --help"


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning of ours in one line: the user of a command has no use for a line of Python."""
    if issubclass(category, FedCalWarning):
        return f"warning: {printable(' '.join(str(message).split()))}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _stop(name: str, message: str, code: int) -> NoReturn:
    print(f"{name}: {printable(' '.join(message.split()))}", file=sys.stderr)
    sys.exit(code)
