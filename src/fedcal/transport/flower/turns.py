"""A node goes on from one state once, though Flower may hand the same state to several messages.

A SuperNode starts a process for every message, also while another one is running, and gives each the node's context as it is
then. Two messages that begin with the same secrets would be masked alike, and their difference would be the difference of
the node's sums; two that begin with the same privacy budget would spend it twice.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fedcal.base.store import make_folder
from fedcal.errors import FedCalError

TURN = "fedcal.turn"  # in the node's context
KEPT = 30 * 24 * 3600.0  # seconds that a folder remembers runs: Flower keeps a message for 12 hours


def take_turn(context: Context, folder: Path | None = None) -> None:
    """Go on from a node's context, unless a message has done so before.

    The folder has an empty file for every run of a node, and one with the name of its next turn. A name is changed once,
    whichever of two processes comes first.

    Args:
        context: the node's.
        folder: of the files; if not given, this user's in the system's temporary folder.

    Raises:
        FedCalError: where another message has gone on from the same context.
    """
    kept, turn = context.state.config_records.get(TURN), secrets.token_hex(16)
    folder = folder or Path(tempfile.gettempdir()) / f"fedcal-turns-{getattr(os, 'getuid', int)()}"
    try:
        make_folder(folder, private=True)
        if hasattr(os, "getuid") and ((found := folder.lstat()).st_uid != os.getuid() or found.st_mode & 0o022):
            raise FedCalError(f"{folder} is not this user's alone, so that others could give a turn twice: delete it")
        if kept:
            (folder / str(kept["turn"])).rename(folder / turn)
        else:
            _forget(folder)
            (folder / f"{context.run_id}-{context.node_id}").touch(0o600, exist_ok=False)
            (folder / turn).touch(0o600)
    except (FileExistsError, FileNotFoundError):
        raise FedCalError(
            "another message has gone on from what this node keeps, or it was started again: it replies no more in this run"
        ) from None
    except OSError as error:
        raise FedCalError(f"cannot write to {folder}: {error.strerror or error}; set TMPDIR") from None
    context.state.config_records[TURN] = ConfigRecord({"turn": turn})


def _forget(folder: Path) -> None:
    """Delete the files of runs that are long over."""
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another node has just renamed or deleted it
            if path.stat().st_mtime < time.time() - KEPT:
                path.unlink()
