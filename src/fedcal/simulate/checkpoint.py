"""A run between two rounds as one file, written atomically: the model, and every method's server and clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedcal.base.arrays import Params
from fedcal.base.arrays import tensors as tensors_of
from fedcal.base.schema import Anything, ListOf, MapOf, Number, Record, Text, Tuple, check
from fedcal.base.store import nest, read_tensors, unnest, unnest_each, write_tensors
from fedcal.errors import FedCalError
from fedcal.protocol.valid import check_client_state
from fedcal.simulate.config import MACHINE, SCHEMA
from fedcal.simulate.federation import Federation
from fedcal.transport.memory import Exchange

STATE = MapOf(Anything())  # of a server or a client, which check it themselves
METHOD = Record({"server": STATE, "clients": ListOf(Tuple((Text(), STATE)))})
HEADER = Record(
    {
        "schema": Number(whole=True),
        "round": Number(0, 10**9, whole=True),
        "config": MapOf(Anything()),
        "methods": MapOf(METHOD),
    }
)


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
    write_tensors(path, tensors, about, private=True)  # clients' states are in it


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
        check(about, HEADER, "its header")
        if about["round"] > state.config.rounds or about["methods"].keys() != state.calibrations.keys():
            raise FedCalError("it is of other rounds or methods")
        state.model.load_state_dict(tensors_of(unnest("model", tensors)))
        for name, exchange in state.calibrations.items():
            _load_method(exchange, about["methods"][name], unnest(name, tensors))
        state.round = about["round"]
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        reason = error if isinstance(error, FedCalError) else "other names or shapes"
        raise FedCalError(f"{path} does not fit this federation ({reason}): delete it, or use another folder") from None


def _load_method(exchange: Exchange, kept: dict[str, Any], tensors: Params) -> None:
    """Put the server and the clients of a method back to where they were."""
    parts = unnest_each(unnest("client", tensors))
    clients = {
        client: {"about": of, "tensors": parts.get(str(i), {})} for i, (client, of) in enumerate(kept["clients"])
    }
    for client in clients.values():
        check_client_state(client)
    exchange.load_state_dict(
        {"server": {"about": kept["server"], "tensors": unnest("server", tensors)}, "clients": clients}
    )
