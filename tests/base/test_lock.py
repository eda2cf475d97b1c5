"""A folder is one process's at a time: the second one is told who holds it; a killed one holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedcal.base.lock import NAME, locked
from fedcal.errors import FedCalError

HOLD = """
import sys, pathlib
from fedcal.base.lock import locked
with locked(pathlib.Path(sys.argv[1]), "fedcal run"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_the_second_process_is_told_who_holds_the_folder_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        with pytest.raises(FedCalError) as error, locked(folder, "fedcal run"):
            pass
        assert f"{folder} is in use by process {other.pid} on " in str(error.value)
        assert "(fedcal run, since " in str(error.value) and "wait for it" in str(error.value)
        other.kill()
        other.wait()
        assert (folder / NAME).exists(), "what a killed process leaves"
        with locked(folder, "fedcal run"):
            assert str(os.getpid()) in (folder / NAME).read_text()
    assert not (folder / NAME).exists()


def test_many_at_once_are_never_two(tmp_path: Path) -> None:
    inside, refused, most = [], [], []

    def take() -> None:
        for _ in range(50):
            try:
                with locked(tmp_path, "x"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except FedCalError:
                refused.append(1)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1 and len(most) + len(refused) == 200
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedCalError, match="cannot lock"), locked(tmp_path / "file" / "x", "x"):
        pass


def test_who_waits_makes_the_folder_again_that_the_other_deletes(tmp_path: Path, monkeypatch) -> None:
    folder, opened, deleted = tmp_path / "a" / "b", os.open, []

    def late(path, *rest):
        if not deleted:  # between this one's mkdir and open, the other one ends
            deleted.append(1)
            folder.rmdir()
            folder.parent.rmdir()
        return opened(path, *rest)

    monkeypatch.setattr(os, "open", late)
    with locked(folder, "x", patience=5.0):
        assert (folder / NAME).exists()
    assert deleted and list(tmp_path.iterdir()) == []


def test_one_waits_for_another(tmp_path: Path) -> None:
    folder, order = tmp_path / "x", []

    def wait() -> None:
        with locked(folder, "second", patience=30.0):
            order.append("second")

    thread = threading.Thread(target=wait)
    with locked(folder, "first"):
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"] and list(tmp_path.iterdir()) == []
