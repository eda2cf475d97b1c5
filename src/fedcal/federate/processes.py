"""The processes of a federation on this machine: each with a log, none of them without us (keeper.py)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedcal.base.store import make_folder
from fedcal.base.words import last_words
from fedcal.errors import FedCalError
from fedcal.federate import keeper

MARK = "FEDCAL_FEDERATION"  # in the environment of every process, with the federation's folder
LEAVING = 10.0  # seconds that an earlier command has to tidy up


class Processes:
    """A context manager: on the way out, all processes are ended and private folders are deleted.

    The same happens when this process is killed, by SIGKILL too: the keeper sees it.

    Args:
        folder: the federation's; it belongs to one `Processes` at a time.
        logs: where each process has its log.
        environment: added to this process's.
        private: folders that must not outlive the processes.
    """

    def __init__(self, folder: Path, logs: Path, environment: Mapping[str, str], private: Sequence[Path] = ()) -> None:
        self.folder, self.logs, self.private = folder, logs, private
        self.running = dict[str, subprocess.Popen[bytes]]()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        self.environment = {**os.environ, **environment, "PATH": path, MARK: str(folder)}

    def __enter__(self) -> Processes:
        clear_away(self.folder, self.private)
        make_folder(self.logs)
        words = ["watch", f"{MARK}={self.folder}", *map(str, self.private)]
        nothing = subprocess.DEVNULL
        self._keeper = subprocess.Popen(
            [*_KEEPER, *words], stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True
        )
        self._before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
        for one, handler in self._before.items():
            if handler == signal.SIG_DFL:  # `nohup` ignores SIGHUP: so do we
                signal.signal(one, _interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        """End everything. Whoever is impatient and interrupts this ends nothing but the wait."""
        try:
            for process in self.running.values():
                _signal(process, signal.SIGTERM)
            assert self._keeper.stdin
            self._keeper.stdin.close()
            self._keeper.wait()
            for process in self.running.values():  # it is dead, but may not have left yet
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
        finally:
            for one, handler in self._before.items():
                signal.signal(one, handler)
            for process in self.running.values():
                process.poll()
            self.running.clear()

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command. It ends with this process."""
        found = shutil.which(command[0], path=self.environment["PATH"])
        if found is None:
            raise FedCalError(f"there is no command {command[0]}: pip install 'fedcal[flower]'")
        words = [*_KEEPER, "exec", str(os.getpid()), found, *command[1:]]
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.running[name] = process
        return process

    def call(self, name: str, command: list[str], timeout: float, meanwhile: Callable[[], None] = lambda: None) -> int:
        """Start a command and wait for it.

        Args:
            name: of the process.
            command: its words.
            timeout: seconds that it has.
            meanwhile: called about once a second while it runs.

        Returns:
            Its exit status, or -1 where the time ran out.
        """
        process, until = self.start(name, command), time.monotonic() + timeout
        try:
            while (left := until - time.monotonic()) > 0:
                try:
                    return process.wait(min(left, 1.0))
                except subprocess.TimeoutExpired:
                    meanwhile()
            return -1
        finally:
            self.stop(name)

    def stop(self, name: str) -> None:
        """End one process and what it started: by SIGTERM, then by SIGKILL."""
        if (process := self.running.pop(name, None)) is None:
            return
        for how, patience in ((signal.SIGTERM, keeper.PATIENCE), (signal.SIGKILL, 5.0)):
            _signal(process, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                if how == signal.SIGKILL or not _group_lives(process):
                    return

    def tail(self, name: str) -> str:
        """Return the last words of a log, for an error message."""
        log = self.logs / f"{name}.log"
        return last_words(log.read_text(errors="replace") if log.exists() else "", "its log is empty")


def clear_away(folder: Path, private: Sequence[Path]) -> None:
    """Remove what a power cut has left of a federation: its processes, where any are left, and its private folders.

    Args:
        folder: the federation's.
        private: folders that must not outlive the processes.

    Raises:
        FedCalError: where the federation is running.
    """
    mark = f"{MARK}={folder}"
    until = time.monotonic() + LEAVING
    while (watching := keeper.watcher(mark)) and time.monotonic() < until:
        time.sleep(0.1)  # the command before this one may be tidying up
    if watching:
        raise FedCalError(f"{folder} is in use: a federation runs there (process {watching}); wait for it, or stop it")
    keeper.end(mark)
    for one in private:
        shutil.rmtree(one, ignore_errors=True)


_KEEPER = [sys.executable, "-I", "-S", keeper.__file__]


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _signal(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """To the process and its group, which is what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    try:
        os.killpg(process.pid, 0)
        return True
    except ProcessLookupError:
        return False
