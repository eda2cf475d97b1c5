"""Fast start of Flower's processes: they are forked from one process that has everything imported already.

Flower starts a new `flwr-clientapp` for every message, which imports PyTorch for seconds; calibration has many small
messages. `python -m fedcal.federate.warm SOCKET [CONFIG]` imports once, loads the data, and waits. `write_commands`
writes commands with the names of Flower's, to come first in PATH. Such a command asks the process for a fork, which runs
the real command with the caller's folder, environment and output, for as long as the caller lives. Every message still has
its own process. Where nobody listens, the command runs Flower's.

Flower waits three seconds between a SuperNode's looks for messages, and one second before it asks again for an object that
is not there yet. It has no option for either; in forks both are shorter.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
asked = [os.getcwd(), dict(os.environ), {name!r}, *sys.argv[1:]]
told = line.makefile()
try:
    socket.send_fds(line, [json.dumps(asked).encode() + b"\\n"], [0, 1, 2])
    process = int(told.readline())
except (OSError, ValueError):
    sys.exit({gone!r})
for one in (signal.SIGTERM, signal.SIGINT):
    signal.signal(one, lambda number, frame: os.kill(process, number))
sys.exit(int(told.readline() or 1))
"""


def write_commands(folder: Path, path: Path) -> None:
    """Write the commands, which run those of Flower in this environment, or else in PATH.

    Args:
        folder: where to; it is to come first in PATH.
        path: the socket that they ask for a fork.
    """
    folder.mkdir(parents=True, exist_ok=True)
    beside = Path(sys.executable).parent
    others = [one for one in os.get_exec_path() if Path(one).resolve() != folder.resolve()]  # else it finds itself
    for name in COMMANDS:
        flower = shutil.which(name, path=os.pathsep.join([str(beside), *others])) or str(beside / name)
        words = {"name": name, "flower": flower, "gone": f"{name}: the process at {path} is gone"}
        (folder / name).write_text(COMMAND.format(python=sys.executable, path=str(path), **words))
        (folder / name).chmod(0o755)


def serve(path: Path, config: str | None = None) -> None:
    """Import, load the data, and wait for requests.

    Args:
        path: the socket.
        config: of the run whose data are loaded, as JSON.
    """
    for module, _ in COMMANDS.values():  # these import slowly, some of them only when they are used
        importlib.import_module(module)
    for module in (
        "flwr.superlink.main",
        "flwr.supernode.main",
        "httpcore",
        "fedcal.federate.task",
        "fedcal.report",
    ):
        importlib.import_module(module)
    if config is not None:
        importlib.import_module("fedcal.federate.task").at_node(config)
    _shorten_pauses()
    listen(path)


def listen(path: Path) -> None:
    """Fork for each request of this user: a second child runs it, the first one stays with the caller."""
    if path.is_socket():
        path.unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.umask(0o177)  # for this user only, from the first moment
        try:
            listening.bind(str(path))
        finally:
            os.umask(before)
        listening.listen(64)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the first children
        while True:
            line, _ = listening.accept()
            if _of_this_user(line) and os.fork() == 0:
                listening.close()
                _attend(line)
            line.close()


def _of_this_user(line: socket.socket) -> bool:
    if not hasattr(socket, "SO_PEERCRED"):  # Linux has it; elsewhere the socket's mode must do
        return True
    _, user, _ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return user == os.getuid()


def _attend(line: socket.socket) -> None:
    """Run the request in a child, and say which and how it ended; a child whose caller is gone is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        request, files = _request(line)
        done, ended = os.pipe()  # closed when the child ends
        child, ready = os.fork(), []
        if child == 0:
            line.close()
            os.close(done)
            _run(*request, files=files)
        os.close(ended)
        try:
            line.sendall(f"{child}\n".encode())
            ready, _, _ = select.select([line, done], [], [])
        finally:
            if done not in ready:
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
        line.sendall(f"{os.waitstatus_to_exitcode(status) & 0xFF}\n".encode())
    except (OSError, ValueError):
        pass  # the caller is gone: there is nobody to tell
    finally:
        os._exit(0)


def _request(line: socket.socket) -> tuple[list[Any], list[int]]:
    """What `COMMAND` sends: folder, environment, name and arguments; and its input and outputs."""
    asked, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
    while not asked.endswith(b"\n"):
        more = line.recv(1 << 20)
        if not more:
            raise ConnectionResetError
        asked += more
    return json.loads(asked), files


def _run(folder: str, environment: dict[str, str], name: str, *arguments: str, files: list[int]) -> None:
    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        module, function = COMMANDS[name]
        sys.argv = [name, *arguments]
        with contextlib.suppress(OSError):
            Path("/proc/self/comm").write_text(name)  # what ps shows
        getattr(importlib.import_module(module), function)()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _shorten_pauses() -> None:
    """Give the module that looks for messages a `sleep` that is short."""
    from flwr.supercore.inflatable import inflatable_utils as objects
    from flwr.supernode import start_client_internal as node

    node.time = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, PAUSE)))  # type: ignore[assignment]
    for pull in (objects.pull_objects, objects.pull_and_inflate_object_from_tree):
        pull.__kwdefaults__ = {**(pull.__kwdefaults__ or {}), "initial_backoff": PAUSE / 2}


if __name__ == "__main__":
    try:
        serve(Path(sys.argv[1]), *sys.argv[2:])
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
