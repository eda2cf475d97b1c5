"""One process at a time in a folder. The kernel releases a lock when its process ends, however it ends."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedcal.base.codec import parse_json
from fedcal.errors import FedCalError

try:
    import fcntl
except ImportError:  # Windows has no flock: folders are not locked there
    fcntl = None

NAME = ".fedcal.lock"
TRIES = 100  # to make a folder that others delete meanwhile


@contextmanager
def locked(folder: Path, command: str, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder for this process while the block runs. A folder that is not there is made, and deleted if it stays empty.

    Args:
        folder: to hold. Its lock file says who holds it, and is deleted at the end.
        command: what this process does, for the message that another one gets.
        patience: seconds to wait for another process that holds the folder.

    Raises:
        FedCalError: where another process holds the folder; it says which one.
    """
    if fcntl is None:
        yield
        return
    path, made, until = folder / NAME, set[Path](), time.monotonic() + patience
    try:
        while (handle := _take(path, made)) is None and time.monotonic() < until:
            time.sleep(0.1)
    except OSError as error:
        raise FedCalError(
            f"cannot lock {folder}: {error.strerror or error}; choose a folder you can write to"
        ) from None
    if handle is None:
        raise FedCalError(f"{folder} is in use by {_holder(path)}: wait for it to end, or choose another folder")
    try:
        about = {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": time.strftime("%F %T")}
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(about).encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # before it is released: whoever opened it meanwhile finds that it is gone
        os.close(handle)
        with suppress(OSError):  # those that hold something stay
            for one in sorted(made, reverse=True):  # a folder before the one that it is in
                one.rmdir()


def _open(path: Path, made: set[Path]) -> int:
    """The lock file, open. Folders that are not there are made, and added to `made`."""
    for _ in range(TRIES):
        made |= {one for one in path.parents if not one.exists()}
        with suppress(FileNotFoundError):  # the one who held the folder has just deleted it: make it again
            path.parent.mkdir(parents=True, exist_ok=True)
            return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _take(path: Path, made: set[Path]) -> int | None:
    """The open lock file; None where another process holds it."""
    while True:
        handle = _open(path, made)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except FileNotFoundError:  # the one who held it has just deleted it: try again
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _holder(path: Path) -> str:
    try:
        about = parse_json(path.read_bytes()[:10_000], str(path))
        return f"process {about['pid']} on {about['host']} ({about['command']}, since {about['since']})"
    except (FedCalError, OSError, KeyError, TypeError):  # it is just being written
        return "another process"
