"""A federation that answers at once: Flower's processes forked from one that has everything imported already.

Flower starts a new `flwr-clientapp` for every message, and importing PyTorch takes it seconds; calibration has many small
messages. `python -m fedcal.flower.warm SOCKET [CONFIG]` imports once, loads the config's data, and waits. Commands of
Flower's names that stand before its own in PATH (`write_commands`) ask it for a fork, which then runs Flower's very
command, with the asker's output and for as long as the asker lives. Every message still has a process of its own. Where
nobody listens, Flower's own command is run.

Flower waits long where it waits: three seconds between a SuperNode's looks for messages, one before it asks again for an
object that is not there yet. It has no option for either; in forks both are shorter.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

COMMANDS = {  # by Flower's name: the function behind it
    "flower-superlink": ("flwr.superlink.cli", "flower_superlink"),
    "flower-supernode": ("flwr.supernode.cli", "flower_supernode"),
    "flower-superexec": ("flwr.supercore.cli", "flower_superexec"),
    "flwr-serverapp": ("flwr.superlink.cli", "flwr_serverapp"),
    "flwr-clientapp": ("flwr.supernode.cli", "flwr_clientapp"),
    "flwr": ("flwr.cli.app", "app"),
}
PAUSE = 0.2  # seconds

COMMAND = """#!{python} -IS
import json, os, signal, socket, sys
line = socket.socket(socket.AF_UNIX)
try:
    line.connect({path!r})
except OSError:
    os.execv({flower!r}, [{flower!r}, *sys.argv[1:]])
socket.send_fds(line, [json.dumps([{name!r}, *sys.argv[1:]]).encode() + b"\\n"], [0, 1, 2])
told = line.makefile()
process = int(told.readline())
for one in (signal.SIGTERM, signal.SIGINT):
    signal.signal(one, lambda number, frame: os.kill(process, number))
sys.exit(int(told.readline() or 1))
"""


def write_commands(folder: Path, path: Path) -> None:
    """The commands in that folder, which is to come first in PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COMMANDS:
        flower = str(Path(sys.executable).parent / name)
        (folder / name).write_text(COMMAND.format(python=sys.executable, path=str(path), flower=flower, name=name))
        (folder / name).chmod(0o755)


def serve(path: Path, config: str | None = None) -> None:
    """Wait for requests, and fork for each: a second child runs it, the first one stays with the asker."""
    for module, _ in COMMANDS.values():  # what takes its time; some of it is imported on use only
        importlib.import_module(module)
    for module in ("flwr.superlink.main", "flwr.supernode.main", "httpcore", "fedcal.flower.task", "fedcal.report"):
        importlib.import_module(module)
    if config is not None:
        importlib.import_module("fedcal.flower.task").at_node(config)
    _make_hasty()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the first children
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(64)
        while True:
            line, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                _attend(line)
            line.close()


def _attend(line: socket.socket) -> None:
    """Run the request in a child, and say which and how it ended; a child whose asker is gone is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
    while not asked.endswith(b"\n"):
        asked += line.recv(1 << 20)
    done, ended = os.pipe()  # closed when the child ends
    child = os.fork()
    if child == 0:
        line.close()
        os.close(done)
        _run(*json.loads(asked), files=files)
    os.close(ended)
    line.sendall(f"{child}\n".encode())
    ready, _, _ = select.select([line, done], [], [])
    if done not in ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if done in ready:
        line.sendall(f"{os.waitstatus_to_exitcode(status) & 0xFF}\n".encode())
    os._exit(0)


def _run(name: str, *arguments: str, files: list[int]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    module, function = COMMANDS[name]
    sys.argv = [name, *arguments]
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)  # what ps shows
    code = 1
    try:
        getattr(importlib.import_module(module), function)()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _make_hasty() -> None:
    """The module that looks for messages gets a clock of its own, which does not sleep for long."""
    from flwr.supercore.inflatable import inflatable_utils as objects
    from flwr.supernode import start_client_internal as node

    node.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, PAUSE)))  # type: ignore[assignment]
    for pull in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        pull.__kwdefaults__ = {**(pull.__kwdefaults__ or {}), "initial_backoff": PAUSE / 2}


if __name__ == "__main__":
    serve(Path(sys.argv[1]), *sys.argv[2:])
