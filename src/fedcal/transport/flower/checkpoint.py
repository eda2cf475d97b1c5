"""What a killed server needs to go on, in a folder.

    training.safetensors   rounds done, the model, what the inner strategy holds, and the calibration server's state
    round-*.safetensors    the rounds on the frozen model (transport/journal.py)
    log.json               who took part in which round, who did not, and the nodes' names

Files are written whole or not at all. The folder is deleted when the run is done.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedcal.base.arrays import Params
from fedcal.base.codec import check_finite
from fedcal.base.schema import COUNT, Anything, Exactly, ListOf, MapOf, Record, Text, Truth, check
from fedcal.base.store import nest, read_json, read_tensors, unnest, write_json, write_tensors
from fedcal.errors import FedCalError
from fedcal.protocol import Server
from fedcal.transport.flower.inner import numbers_of, put_back, state_of
from fedcal.transport.flower.records import from_record, to_record
from fedcal.transport.flower.server import Nodes
from fedcal.transport.journal import Journal

SCHEMA = 3
ENTRY = Record({"phase": Exactly(("training", "calibration", "evaluation")), "round": COUNT}, open=True)
FAULT = Record({**ENTRY.fields, "reason": Text(any=True)}, open=True)
LOG = Record({"rounds": ListOf(ENTRY), "faults": ListOf(FAULT), "names": MapOf(Text(any=True)), "measuring": Truth()})
STATE = MapOf(Anything())  # of the strategy or the server, which check it themselves
TRAINING = Record({"schema": Exactly((SCHEMA,)), "training": COUNT, "inner": STATE, "server": STATE, "secure": Truth()})


class Checkpoint:
    """A folder, and the strategy whose state it holds; `secure`: whether replies are aggregated securely."""

    def __init__(self, folder: Path, inner: Strategy, secure: bool = False) -> None:
        self.folder, self.inner, self.secure = folder, inner, secure
        self._at_first = numbers_of(inner)
        self._journal = Journal(folder)

    def save_training(self, done: int, model: ArrayRecord, server: Server, nodes: Nodes) -> None:
        """Save after a training round, or after any round of an interleaved method."""
        arrays, told = state_of(self.inner, self._at_first)
        state = server.state_dict()
        tensors = nest("model", from_record(model)) | nest("server", state["tensors"]) | nest("inner", arrays)
        about = {"schema": SCHEMA, "training": done, "inner": told, "server": state["about"], "secure": self.secure}
        self._save_log(nodes)
        write_tensors(self.folder / "training.safetensors", tensors, about, private=True)

    def save_round(self, done: int, model: ArrayRecord, server: Server, nodes: Nodes) -> None:
        """Save after a round on the frozen model."""
        if server.plan.method.schedule == "interleaved":  # its rounds are not all on the frozen model
            self.save_training(done, model, server, nodes)
        else:
            self._save_log(nodes)
            self._journal.append(server)

    def save_measuring(self, nodes: Nodes) -> None:
        """Note that the scaler is there and nodes measure: for those who watch the folder."""
        self._save_log(nodes, measuring=True)

    def load(self, model: ArrayRecord, server: Server, nodes: Nodes) -> tuple[int, ArrayRecord]:
        """Bring server, nodes and strategy to where they were; where nothing is written yet, write that they begin.

        Args:
            model: the one to begin with, if there is nothing to go on from.
            server: one that has just begun.
            nodes: its nodes.

        Returns:
            How many training rounds are done, and their model.

        Raises:
            FedCalError: where the folder is damaged, or of another method, privacy, strategy or model.
        """
        path = self.folder / "training.safetensors"
        if not path.exists():  # nodes keep to the federation that asks first: its name must outlive a kill in any round
            self._journal.clear()  # of an earlier run, killed while it deleted its checkpoint: not of this federation
            self.save_training(0, model, server, nodes)
            return 0, model
        tensors, about = read_tensors(path)
        if about.get("schema") != SCHEMA:
            raise FedCalError(f"{self.folder} is of another version of fedcal: delete it, or use another folder")
        try:
            check(about, TRAINING, path.name)
            if about["secure"] != self.secure:  # nodes would send openly what they have masked before
                raise FedCalError(f"the run began {'with' if about['secure'] else 'without'} secure aggregation")
            check_finite(unnest("model", tensors))
            server.load_state_dict({"tensors": unnest("server", tensors), "about": about["server"]})
            written = read_json(self.folder / "log.json")
            check(written, LOG, "log.json")
        except FedCalError as error:
            raise FedCalError(f"{self.folder}: {error}: delete it, or use another folder") from None
        put_back(self.inner, unnest("inner", tensors), about["inner"])
        federation = server.plan.federation
        self._journal.load(server)
        if server.plan.federation != federation:
            raise FedCalError(f"{self.folder}: the rounds belong to another federation: delete it")
        done = about["training"]
        # The log is written first: a round that it has and the other files have not is run again.
        last = {"training": done, "calibration": server.ledger.rounds, "evaluation": -1}
        nodes.rounds = [one for one in written["rounds"] if one["round"] <= last[one["phase"]]]
        nodes.faults = [one for one in written["faults"] if one["round"] <= last[one["phase"]]]
        nodes.earlier = {int(node): name for node, name in written["names"].items() if node.isdecimal()}
        return done, to_record(_ordered(unnest("model", tensors), model))

    def clear(self) -> None:
        """Delete the folder: the run is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _save_log(self, nodes: Nodes, measuring: bool = False) -> None:
        names = {str(node): name for node, name in (nodes.earlier | nodes.names).items()}
        log = {"rounds": nodes.rounds, "faults": nodes.faults, "names": names, "measuring": measuring}
        write_json(self.folder / "log.json", log, private=True)


def _ordered(tensors: Params, like: ArrayRecord) -> Params:
    """In the order that the app gave them, with its shapes; a strategy may have made other types of them."""
    mine = from_record(like)
    for name, value in mine.items():
        if name not in tensors or tensors[name].shape != value.shape:
            raise FedCalError(f"the checkpoint has no {name!r} of that shape: it is of another model; delete it")
    return {name: tensors[name] for name in mine}
