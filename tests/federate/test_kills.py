"""Commands that are killed: nothing of them is left, and they go on to the same bytes. benchmarks/kills.py does many more."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")
if not os.path.exists("/proc/self/environ"):
    pytest.skip("processes are found by /proc", allow_module_level=True)

from benchmarks import kills
from fedcal.errors import FedCalError
from fedcal.federate import keeper
from fedcal.federate.processes import Processes


@pytest.mark.parametrize(("how", "after"), [("KILL", 12.0), ("INT twice", 6.0)])
def test_federate_leaves_nothing(tmp_path, how, after):
    words = kills.command("federate", *kills.FEDERATE.split(), "--out", tmp_path / "run")
    assert kills.kill(words, tmp_path, how, after)


def test_folders_that_vanish_during_the_search_are_no_error(tmp_path):
    done = threading.Event()

    def come_and_go():
        while not done.is_set():
            (tmp_path / "run" / "keys" / "more").mkdir(parents=True)
            shutil.rmtree(tmp_path / "run")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            assert not kills.keys_and_temporary(tmp_path)
    finally:
        done.set()
        thread.join()


RUN = "--data heart --rounds 6 --method uncal --method fed-ts --quiet"


def test_run_goes_on_to_the_same_bytes(tmp_path):
    kills.of_command("run", RUN, tmp_path, 1, random.Random(os.getpid()), print)


def test_server_goes_on_to_the_same_bytes(tmp_path):
    kills.of_server(tmp_path, 1, random.Random(os.getpid()), print, method="avg-t")


# --- the keeper, with processes that cost nothing ------------------------------------------------------------------------

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
PARENT = """
import sys, time
from pathlib import Path
from fedcal.federate.processes import Processes
folder = Path(sys.argv[1])
with Processes(folder, folder / "logs", {}, [folder / "keys"]) as processes:
    (folder / "keys").mkdir()
    processes.start("one", [sys.executable, "-c", sys.argv[2]])
    print(processes._keeper.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def parent(tmp_path):
    """A process with one child that ignores SIGTERM and has a child in a session of its own; and its keeper."""
    words = f"[sys.executable, '-c', {STUBBORN!r}], start_new_session=True"
    child = f"import subprocess, sys; subprocess.Popen({words}); {STUBBORN}"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), child], stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        watching = int(one.stdout.readline())
        wait_for(lambda: (tmp_path / "logs" / "one.log").read_text().count("up") == 2)
        yield one, watching
        one.kill()
    keeper.end(mark(tmp_path), patience=0.0)


def mark(folder):
    return f"FEDCAL_FEDERATION={folder}"


def wait_for(condition, seconds=30.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_the_keeper_ends_even_what_does_not_listen(tmp_path, parent):
    process, watching = parent
    assert len(keeper.marked(mark(tmp_path))) == 2 and keeper.watcher(mark(tmp_path)) == watching
    process.send_signal(signal.SIGKILL)
    wait_for(lambda: keeper.watcher(mark(tmp_path)) is None)
    assert not keeper.marked(mark(tmp_path)) and not (tmp_path / "keys").exists()


def test_a_folder_in_use_is_refused(tmp_path, parent, monkeypatch):
    monkeypatch.setattr("fedcal.federate.processes.LEAVING", 0.2)
    with pytest.raises(FedCalError, match="is in use: a federation runs there"), Processes(tmp_path, tmp_path, {}):
        pass
    assert len(keeper.marked(mark(tmp_path))) == 2


def test_the_next_start_ends_what_a_power_cut_left(tmp_path, parent):
    """Parent and keeper are both killed: the children are left until the next start in this folder."""
    process, watching = parent
    os.kill(watching, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    wait_for(lambda: keeper.watcher(mark(tmp_path)) is None)
    assert keeper.marked(mark(tmp_path)) and (tmp_path / "keys").exists()
    with Processes(tmp_path, tmp_path / "logs", {}, [tmp_path / "keys"]):
        assert not keeper.marked(mark(tmp_path)) and not (tmp_path / "keys").exists()
