"""Nodes that answer at once: a ClientApp's process forked from one that has everything imported already.

Flower starts a new `flwr-clientapp` for every message, and importing PyTorch takes it seconds; calibration has many small
messages. `python -m fedcal.flower.warm SOCKET` imports once and waits; a `flwr-clientapp` that stands before Flower's own
in PATH (`write_command`) asks it for a fork, which then runs Flower's very command. Every message still has a process of
its own. Where nobody listens, Flower's own command is run.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

COMMAND = """#!{python} -IS
import json, os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect({path!r})
        line.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
        code = line.recv(16)
    sys.exit(int(code or b"1"))
except OSError:
    os.execv({flower!r}, [{flower!r}, *sys.argv[1:]])
"""


def write_command(folder: Path, path: Path) -> None:
    """`flwr-clientapp` in that folder, which is to come first in a SuperNode's PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    command = folder / "flwr-clientapp"
    flower = str(Path(sys.executable).parent / "flwr-clientapp")
    command.write_text(COMMAND.format(python=sys.executable, path=str(path), flower=flower))
    command.chmod(0o755)


def serve(path: Path) -> None:
    """Wait for requests, and fork for each: the child runs it, a second child tells the asker how it ended."""
    from flwr.supernode.cli import flwr_clientapp  # noqa: F401 - what takes its time

    from fedcal.flower import task  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the tellers
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        while True:
            line, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _tell(line)
            line.close()


def _tell(line: socket.socket) -> None:
    """Run the request in a child, and send its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with line.makefile() as asked:
        arguments = json.loads(asked.readline())
    child = os.fork()
    if child == 0:
        line.close()
        _run(arguments)
    _, status = os.waitpid(child, 0)
    line.sendall(str(os.waitstatus_to_exitcode(status) & 0xFF).encode())
    os._exit(0)


def _run(arguments: list[str]) -> None:
    from flwr.supernode.cli import flwr_clientapp

    sys.argv = ["flwr-clientapp", *arguments]
    code = 1
    try:
        flwr_clientapp()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
