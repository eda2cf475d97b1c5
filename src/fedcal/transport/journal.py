"""A server's state in a folder, one file per round, each written whole or not at all: a killed server goes on from there.

round-RESTARTS-NNNN.safetensors    what a round came to, and the books as they stood after it; 0000: the fit began again
"""

from __future__ import annotations

from pathlib import Path

from fedcal.base.arrays import Params
from fedcal.base.store import read_tensors, write_tensors
from fedcal.errors import FedCalError, error_context
from fedcal.protocol import Server


class Journal:
    """The rounds of one server.

    Args:
        folder: where the files are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def append(self, server: Server) -> None:
        """Write the round that the server has just received, or that it begins again."""
        number = server.fit.received
        state = server.state_dict(since=max(number - 1, 0))
        write_tensors(self._path(server.ledger.restarts, number), state["tensors"], state["about"], private=True)

    def load(self, server: Server) -> bool:
        """Bring a server that has just begun to where the last one stood.

        Returns:
            Whether there was anything to go on from.

        Raises:
            FedCalError: where a file is damaged, missing, or of another federation.
        """
        restarts, last = max(self._rounds(), default=(0, -1))
        if last < 0:
            return False
        tensors: Params = {}
        federations, about = set[str](), {}
        for number in range(0 if restarts else 1, last + 1):
            found, about = read_tensors(self._path(restarts, number))
            tensors |= found
            federations.add(str(about.get("federation")))
        with error_context(self.folder):
            if len(federations) > 1:
                raise FedCalError("the rounds are of several federations: put the right files back")
            server.load_state_dict({"tensors": tensors, "about": about})
        return True

    def clear(self) -> None:
        """Delete all rounds."""
        for restarts, number in self._rounds():
            self._path(restarts, number).unlink(missing_ok=True)

    def _rounds(self) -> list[tuple[int, int]]:
        """The numbers of restart and round of every file."""
        names = (path.stem.split("-")[1:] for path in self.folder.glob("round-*-*.safetensors"))
        return [(int(name[0]), int(name[1])) for name in names if len(name) == 2 and "".join(name).isdecimal()]

    def _path(self, restarts: int, number: int) -> Path:
        return self.folder / f"round-{restarts}-{number:04d}.safetensors"
