"""A run between two rounds as one file, written atomically: the model, and every method's server and clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedcal.base.store import nest, read_tensors, unnest, write_tensors
from fedcal.errors import FedCalError
from fedcal.simulate.config import MACHINE, SCHEMA
from fedcal.simulate.federation import Federation


def save_checkpoint(path: Path, state: Federation) -> None:
    """Write what `load_checkpoint` needs to go on."""
    tensors = nest("model", {k: v.cpu() for k, v in state.model.state_dict().items()})
    methods: dict[str, Any] = {}
    for name, exchange in state.calibrations.items():
        kept = exchange.state_dict()
        tensors |= nest(f"{name}/server", kept["server"]["tensors"])
        for i, client in enumerate(kept["clients"].values()):
            tensors |= nest(f"{name}/client/{i}", client["tensors"])
        clients = [[client, of["about"]] for client, of in kept["clients"].items()]
        methods[name] = {"server": kept["server"]["about"], "clients": clients}
    about = {"schema": SCHEMA, "round": state.round, "config": state.config.to_dict(), "methods": methods}
    write_tensors(path, tensors, about)


def load_checkpoint(path: Path, state: Federation) -> None:
    """Put a federation of the same config back to where it was.

    Raises:
        FedCalError: where the file is damaged, or of another run.
    """
    tensors, about = read_tensors(path)
    what_it_is = {k: v for k, v in state.config.to_dict().items() if k not in MACHINE}  # the schema among it
    theirs = about.get("config")
    if not isinstance(theirs, dict) or what_it_is != {k: v for k, v in theirs.items() if k not in MACHINE}:
        raise FedCalError(f"{path} belongs to another run: delete it, or use another folder")
    try:
        state.model.load_state_dict(unnest("model", tensors))
        for name, exchange in state.calibrations.items():
            kept, mine = about["methods"][name], unnest(name, tensors)
            clients = {
                client: {"about": of, "tensors": unnest(f"client/{i}", mine)}
                for i, (client, of) in enumerate(kept["clients"])
            }
            server = {"about": kept["server"], "tensors": unnest("server", mine)}
            exchange.load_state_dict({"server": server, "clients": clients})
        state.round = about["round"]
    except (KeyError, RuntimeError, TypeError, ValueError):
        raise FedCalError(f"{path} does not fit this federation: delete it, or use another folder") from None
