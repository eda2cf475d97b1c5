"""A run between two rounds as one file: the model, every method's scalers and tallies of cost. Written atomically."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from fedcal.base.store import nest, read_tensors, unnest, write_tensors
from fedcal.errors import FedCalError
from fedcal.methods import Update
from fedcal.protocol.scaler_file import scaler_tensors
from fedcal.simulate.config import MACHINE, SCHEMA
from fedcal.simulate.federation import Federation

COUNTED = ("rounds", "updates", "bytes_up", "bytes_down", "total_up", "total_down")


def save_checkpoint(path: Path, state: Federation) -> None:
    """What `load_checkpoint` needs to go on."""
    tensors = nest("model", {k: v.cpu() for k, v in state.model.state_dict().items()})
    methods: dict[str, Any] = {}
    for name, c in state.calibrations.items():
        tensors |= nest(name, scaler_tensors(c))
        for client, update in c.latest.items():
            tensors |= nest(f"{name}/latest/{client}", update.content)
        latest = {client: update.n for client, update in c.latest.items()}
        methods[name] = {"own": sorted(c.own), "latest": latest, "notes": c.notes} | {k: getattr(c, k) for k in COUNTED}
    about = {"schema": SCHEMA, "round": state.round, "config": state.config.to_dict(), "methods": methods}
    write_tensors(path, tensors, about)


def load_checkpoint(path: Path, state: Federation) -> None:
    """Put a federation of the same config back to where it was."""
    tensors, about = read_tensors(path)
    what_it_is = {k: v for k, v in state.config.to_dict().items() if k not in MACHINE}  # the schema among it
    theirs = about.get("config")
    if not isinstance(theirs, dict) or what_it_is != {k: v for k, v in theirs.items() if k not in MACHINE}:
        raise FedCalError(f"{path} belongs to another run: delete it, or use another folder")
    try:
        state.model.load_state_dict(unnest("model", tensors))
        for name, c in state.calibrations.items():
            kept, mine = about["methods"][name], unnest(name, tensors)
            c.params = unnest("global", mine)
            c.own = {client: unnest(f"own/{client}", mine) for client in kept["own"]}
            c.latest = {client: Update(unnest(f"latest/{client}", mine), n) for client, n in kept["latest"].items()}
            c.notes = Counter(kept["notes"])
            for key in COUNTED:
                setattr(c, key, kept[key])
        state.round = about["round"]
    except (KeyError, RuntimeError, TypeError):
        raise FedCalError(f"{path} does not fit this federation: delete it, or use another folder") from None
