"""What a killed server needs to go on: the model and scaler after each training round, the sums of each calibration round.

    training.safetensors       round, model, what the inner strategy holds, and the params of a method that averages
    round-RESTART-NNNN.safetensors    what a calibration round came to; replayed in order
    log.json                   who took part in which round, and who did not

Files are written whole or not at all. The folder is cleared when the run is done.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedcal.base.logits import Params
from fedcal.base.store import nest, read_json, read_tensors, unnest, write_json, write_tensors
from fedcal.errors import FedCalError
from fedcal.methods import method_to_json
from fedcal.methods.method import Additive
from fedcal.transport.flower.inner import numbers_of, put_back, state_of
from fedcal.transport.flower.records import from_record, to_record
from fedcal.transport.flower.server import Calibrator

SCHEMA = 1


class Checkpoint:
    """A folder, the server's half that it is of, and the strategy that trains."""

    def __init__(self, folder: Path, calibrator: Calibrator, inner: Strategy) -> None:
        self.folder, self.calibrator, self.inner = folder, calibrator, inner
        self._at_first = numbers_of(inner)

    def save_training(self, done: int, model: ArrayRecord) -> None:
        """After a training round."""
        c = self.calibrator
        arrays, told = state_of(self.inner, self._at_first)
        tensors = nest("model", from_record(model)) | nest("scaler", c.state.params) | nest("inner", arrays)
        write_json(self.folder / "log.json", {"rounds": c.rounds, "faults": c.faults})
        about = {**self._about(), "training": done, "inner": told}
        write_tensors(self.folder / "training.safetensors", tensors, about)

    def save_round(self, outcome: Params) -> None:
        """After a calibration round."""
        c = self.calibrator
        about = {**self._about(), "n": c.n, "squares": c.squares, "fitted": c.fitted}
        write_json(self.folder / "log.json", {"rounds": c.rounds, "faults": c.faults})
        write_tensors(self._round(c.restarts, c.fitted), outcome, about)

    def load(self, model: ArrayRecord) -> tuple[int, ArrayRecord]:
        """Put calibrator and strategy back to where they were; returns how many training rounds are done, and their model."""
        c, path = self.calibrator, self.folder / "training.safetensors"
        if not path.exists():
            return 0, model
        tensors, about = read_tensors(path)
        if any(about.get(key) != value for key, value in self._what().items()):
            raise FedCalError(f"{self.folder} is of another method or federation: delete it, or use another folder")
        done, model = about["training"], to_record(_ordered(unnest("model", tensors), model))
        put_back(self.inner, unnest("inner", tensors), about.get("inner", {}))
        self._adopt(about)
        told = read_json(self.folder / "log.json")
        c.rounds, c.faults = told["rounds"], told["faults"]
        c.state.params = _ordered(unnest("scaler", tensors), c.state.params)
        restarts = [int(found.name.split("-")[1]) for found in self.folder.glob("round-*.safetensors")]
        c.restarts = max(restarts, default=0)
        while (path := self._round(c.restarts, c.fitted + 1)).exists():
            outcome, about = read_tensors(path)
            c.n, c.squares, c.fitted = about["n"], about.get("squares", {}), about["fitted"]
            if isinstance(c.method, Additive):
                c.take(outcome)
            else:
                c.state.params = _ordered(outcome, c.state.params)
            self._adopt(about)
        return done, model

    def clear(self) -> None:
        """The run is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _round(self, restarts: int, number: int) -> Path:
        return self.folder / f"round-{restarts}-{number:04d}.safetensors"

    def _what(self) -> dict[str, Any]:
        c = self.calibrator
        return {
            "schema": SCHEMA,
            **method_to_json(c.method),
            "n_classes": c.n_classes,
            "seed": c.seed,
        }

    def _about(self) -> dict[str, Any]:
        c = self.calibrator
        return {**self._what(), "federation": c.federation, "rounds": c.state.rounds}

    def _adopt(self, about: dict[str, Any]) -> None:
        c = self.calibrator
        c.federation, c.state.rounds = about["federation"], about["rounds"]


def _ordered(tensors: Params, like: Iterable[str]) -> Params:
    """In the order that the app, or the method, gave them: a file sorts them."""
    try:
        return {name: tensors[name] for name in like}
    except KeyError as missing:
        raise FedCalError(f"the checkpoint has no {missing}: it is of another model; delete it") from None
