"""A server's state in a folder, one file per round, each written whole or not at all: a killed server goes on from there.

round-RESTARTS-NNNN.safetensors    what a round came to, and the books as they stood after it
"""

from __future__ import annotations

from pathlib import Path

from fedcal.base.logits import Params
from fedcal.base.store import read_tensors, write_tensors
from fedcal.errors import FedCalError
from fedcal.protocol import Server


class Journal:
    """The rounds of one server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, server: Server) -> None:
        """Write the round that the server has just received."""
        number = server.fit.received
        state = server.state_dict(since=number - 1)
        write_tensors(self._path(server.ledger.restarts, number), state["tensors"], state["about"])

    def load(self, server: Server) -> bool:
        """Bring a server that has just begun to where the last one stood.

        Returns:
            Whether there was anything to go on from.

        Raises:
            FedCalError: where a file is damaged, missing, or of another federation.
        """
        restarts = [int(path.name.split("-")[1]) for path in self.folder.glob("round-*-*.safetensors")]
        tensors: Params = {}
        about = None
        number = 1
        while restarts and (path := self._path(max(restarts), number)).exists():
            found, about = read_tensors(path)
            tensors |= found
            number += 1
        if about is None:
            return False
        try:
            server.load_state_dict({"tensors": tensors, "about": about})
        except FedCalError as error:
            raise FedCalError(f"{self.folder}: {error}") from None
        return True

    def clear(self) -> None:
        """Delete all rounds."""
        for path in self.folder.glob("round-*-*.safetensors"):
            path.unlink(missing_ok=True)

    def _path(self, restarts: int, number: int) -> Path:
        return self.folder / f"round-{restarts}-{number:04d}.safetensors"
