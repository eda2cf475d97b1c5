"""Commands that are forked from a process which waits: whose folder, environment and end they have, and who may ask."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

from fedcal.federate import warm

COMMAND = """
import os, sys, time
def main():
    print(os.getcwd(), os.environ.get("TOLD"), sys.argv[1:], os.getpid(), flush=True)
    if sys.argv[1:] == ["wait"]:
        time.sleep(60)
    raise SystemExit(3)
"""
SERVER = """
import importlib.util, pathlib, sys
spec = importlib.util.spec_from_file_location("warm", {source!r})
warm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(warm)
sys.path.insert(0, {folder!r})
warm.COMMANDS["flwr"] = ("told", "main")
warm.listen(pathlib.Path(sys.argv[1]))
"""


@pytest.fixture
def line(tmp_path):
    """A socket with a server that has `told` for `flwr`; the commands are in `bin`."""
    (tmp_path / "told.py").write_text(COMMAND)
    path = tmp_path / "line"
    warm.write_commands(tmp_path / "bin", path)
    script = SERVER.format(source=warm.__file__, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script, str(path)]) as server:
        wait_for(path.exists)
        yield path
        server.kill()


def wait_for(true, seconds=20.0):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def children(process):
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def ended(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_runs_where_the_asker_is(line, tmp_path):
    there = tmp_path / "there"
    there.mkdir()
    command = [str(tmp_path / "bin" / "flwr"), "a", "b"]
    found = subprocess.run(command, cwd=there, env={"TOLD": "ü"}, capture_output=True, text=True, timeout=30)
    assert found.stdout.startswith(f"{there} ü ['a', 'b']") and found.returncode == 3
    assert stat.S_IMODE(line.stat().st_mode) == 0o600


def test_what_it_runs_ends_with_the_asker(line, tmp_path):
    with subprocess.Popen([str(tmp_path / "bin" / "flwr"), "wait"], stdout=subprocess.PIPE, text=True) as asker:
        assert asker.stdout is not None
        process = int(asker.stdout.readline().split()[-1])
        asker.send_signal(signal.SIGKILL)
    wait_for(lambda: ended(process))


def test_askers_that_die_leave_nothing_behind(line, tmp_path):
    """One before its newline, one before it is told of its process."""
    with open(os.devnull, "wb") as nothing:
        for sent in (b"[", json.dumps([str(tmp_path), {}, "flwr", "wait"]).encode() + b"\n"):
            with socket.socket(socket.AF_UNIX) as asker:
                asker.connect(str(line))
                socket.send_fds(asker, [sent], [nothing.fileno()] * 3)
    (server,) = [
        one for one in children(os.getpid()) if str(line).encode() in Path(f"/proc/{one}/cmdline").read_bytes()
    ]
    wait_for(lambda: not children(server))
    assert subprocess.run([str(tmp_path / "bin" / "flwr")], capture_output=True, timeout=30).returncode == 3


def test_a_server_that_dies_is_one_line(tmp_path):
    path = tmp_path / "line"
    warm.write_commands(tmp_path / "bin", path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        with subprocess.Popen([str(tmp_path / "bin" / "flwr")], stderr=subprocess.PIPE, text=True) as asker:
            server.accept()[0].close()
            _, error = asker.communicate(timeout=30)
    assert asker.returncode == 1 and error.splitlines() == [f"flwr: the process at {path} is gone"]


def test_only_a_socket_is_replaced(tmp_path):
    path = tmp_path / "kept"
    path.write_text("mine")
    with pytest.raises(OSError, match="in use"):
        warm.listen(path)
    assert path.read_text() == "mine"


def test_flowers_own_command_is_found_in_path(tmp_path, monkeypatch):
    """Beside Python first; never the command that is being written."""
    elsewhere = tmp_path / "elsewhere"
    warm.write_commands(elsewhere, tmp_path / "other")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{elsewhere}")
    for _ in range(2):  # the second time it is there itself
        warm.write_commands(tmp_path / "bin", tmp_path / "line")
        assert f"os.execv({str(elsewhere / 'flwr')!r}" in (tmp_path / "bin" / "flwr").read_text()
