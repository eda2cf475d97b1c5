"""Lets no process of a federation outlive `fedcal federate`, whatever kills it. Standard library only: it starts at once.

    python -I -S keeper.py watch MARK [FOLDER...]      wait for the end of standard input, then end and delete
    python -I -S keeper.py exec PARENT COMMAND...      become COMMAND, which gets SIGTERM when process PARENT ends

Every process of a federation has the same `MARK` (NAME=VALUE) in its environment, which children inherit: so they are
found wherever they are, and nothing else is. `watch` holds the reading end of a pipe whose other end `fedcal federate` alone
holds: the pipe ends when that process ends. `exec` is a second net, for the case that both are killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import time
from pathlib import Path

PATIENCE = 4.0  # seconds that processes have to end by themselves
SET_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl


def marked(mark: str) -> list[int]:
    """Return the processes that have the mark in their environment, without this one; zombies have none."""
    found, line = [], mark.encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if int(entry.name) != os.getpid() and line in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def end(mark: str, patience: float = PATIENCE) -> int:
    """End all processes with the mark, and those that they start meanwhile: by SIGTERM, then by SIGKILL.

    Returns:
        How many there were at first.
    """
    began, first, told = time.monotonic(), len(marked(mark)), set[int]()
    while left := marked(mark):
        late = time.monotonic() - began > patience
        for process in left:
            if late or process not in told:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        told.update(left)
        time.sleep(0.05)
    return first


def watcher(mark: str) -> int | None:
    """Return the process that watches over processes with this mark, if there is one."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if [b"watch", mark.encode()] == words[4:6] and words[3].endswith(b"keeper.py"):
                return int(entry.name)
    return None


def watch(mark: str, folders: list[str]) -> None:
    """Wait until nobody holds the other end of standard input; then end the processes and delete the folders."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # its parent may die of them; it stays to tidy up
        signal.signal(one, signal.SIG_IGN)
    while os.read(0, 1024):
        pass
    end(mark)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def become(parent: int, command: list[str]) -> None:
    """Run the command in place of this process."""
    with contextlib.suppress(OSError, AttributeError):  # Linux has it
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # it ended before that was set
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    what, first, *rest = sys.argv[1:]
    if what == "watch":
        watch(first, rest)
    else:
        become(int(first), rest)
