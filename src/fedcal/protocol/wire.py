"""Messages as bytes: flat arrays with a JSON header (safetensors), the same for files, Flower and any other transport.

Whatever comes in is from a stranger: it is rebuilt from known types only, and anything odd is a FedCalError.
"""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from dataclasses import asdict, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from fedcal.base import codec
from fedcal.base.arrays import Params
from fedcal.base.codec import pack
from fedcal.base.labels import check_classes
from fedcal.base.query import Query
from fedcal.errors import FedCalError
from fedcal.exact.prepared import FoldMap
from fedcal.exact.private_queries import PRIVATE_QUERIES
from fedcal.exact.queries import Points
from fedcal.methods import METHODS, method_from_json, method_to_json
from fedcal.methods.sets import SET_QUERIES
from fedcal.protocol.messages import MOST_CLASSES, MOST_SAMPLES, Plan, Reply, Request
from fedcal.protocol.privacy import Privacy

SCHEMA = 2  # of all messages
TYPES: dict[str, type] = {
    kind.__name__: kind
    for method in METHODS.values()
    for kind in (*method.may_ask, *PRIVATE_QUERIES, *SET_QUERIES, FoldMap, Points)
}
MOST = 10**9  # rounds
MOST_HEADER = 16 << 20  # bytes
DEEPEST = 8  # levels within a query: ours have four
FEW, WORD = 32, 64  # remarks in a reply, and characters of each one's name

Header = dict[str, Any]


# --- bytes ---------------------------------------------------------------------------------------------------------------


def unpack(data: Any) -> tuple[Params, Header]:
    """Return the tensors, in their order, and the header.

    Args:
        data: what `pack` gave.

    Raises:
        FedCalError: if the bytes are anything but what `pack` gives.
    """
    try:
        return codec.unpack(data, MOST_HEADER)
    except FedCalError as error:
        raise FedCalError(f"the message cannot be read ({error}): is it one of fedcal's?") from None


# --- plan, request, reply ------------------------------------------------------------------------------------------------


def plan_to_json(plan: Plan) -> Header:
    """Return a plan as JSON values.

    Args:
        plan: of the federation.
    """
    classes = list(plan.classes)
    same = {"n_classes": plan.n_classes, "seed": plan.seed, "classes": classes, "federation": plan.federation}
    return {"schema": SCHEMA, **method_to_json(plan.method), **same}


def plan_from_json(header: Header) -> Plan:
    """Read a plan back.

    Args:
        header: what `plan_to_json` gave; other entries are ignored.

    Returns:
        The plan.

    Raises:
        FedCalError: it is damaged, or of another version.
    """
    _check_schema(header)
    kinds = {"n_classes": int, "seed": int, "classes": list, "federation": str}
    if (
        any(type(header.get(key)) is not kind for key, kind in kinds.items())
        or not 2 <= header["n_classes"] <= MOST_CLASSES
    ):
        raise FedCalError("the federation's plan is damaged: ask for it again")
    if classes := header["classes"]:
        if not all(type(label) in (str, int, float, bool) for label in classes):
            raise FedCalError("the federation's classes are damaged: ask for its plan again")
        check_classes(classes, header["n_classes"])
    method = method_from_json(header)
    return Plan(method, header["n_classes"], header["seed"], tuple(header["classes"]), header["federation"])


def pack_request(plan: Plan, request: Request, clients: Sequence[str] = ()) -> bytes:
    """Return a request, with the plan that it belongs to, as bytes.

    Args:
        plan: of the federation.
        request: the server's.
        clients: who is asked; `asked_clients` reads them back. Empty: everybody.
    """
    tensors: Params = {}
    query = _flatten(request.query, "", tensors)
    header = {**plan_to_json(plan), "kind": "request", "round": request.round, "query": query}
    header |= {"clients": list(clients)} if clients else {}
    return pack(tensors, header | privacy_to_json(request.privacy))


def unpack_request(data: Any) -> tuple[Plan, Request]:
    """Read a plan and a request back.

    Args:
        data: what `pack_request` gave.

    Returns:
        The federation's plan, and the request.

    Raises:
        FedCalError: the bytes are not a request of this version.
    """
    tensors, header = unpack(data)
    _check_schema(header)
    if header.get("kind") != "request" or type(header.get("round")) is not int or not 1 <= header["round"] <= MOST:
        raise FedCalError("the message is not a request")
    plan = plan_from_json(header)
    query = _rebuild(header.get("query"), tensors, 0)
    if not isinstance(query, Query):
        raise FedCalError("this version of fedcal does not know the request: use the same version everywhere")
    return plan, Request(plan.federation, header["round"], query, privacy_from_json(header))


def asked_clients(data: Any) -> list[str]:
    """Return the names of the clients that a request is meant for; empty: everybody.

    Args:
        data: what `pack_request` gave.

    Raises:
        FedCalError: the bytes are not a message.
    """
    clients = unpack(data)[1].get("clients", [])
    if not isinstance(clients, list) or not all(type(name) is str for name in clients):
        raise FedCalError("the request does not say whom it asks")
    return clients


def pack_reply(reply: Reply, client: str) -> bytes:
    """Return a client's reply as bytes.

    Args:
        reply: what it replies.
        client: its name.
    """
    header = {"schema": SCHEMA, "kind": "reply", "client": client, "n": reply.n, "to": reply.to}
    header |= {"notes": {name: value for name, value in reply.notes.items() if math.isfinite(value)}}
    header |= {"probs": True} if reply.probs else {}
    return pack(reply.content, header | ({"privacy": reply.privacy} if reply.privacy else {}))


def unpack_reply(data: Any) -> tuple[str, Reply]:
    """Read a client's name and its reply back; `Server.check` looks at the values.

    Args:
        data: what `pack_reply` gave.

    Returns:
        The name, and the reply.

    Raises:
        FedCalError: the bytes are not a reply of this version.
    """
    tensors, header = unpack(data)
    _check_schema(header)
    client, n, to = (header.get(key) for key in ("client", "n", "to"))
    if header.get("kind") != "reply" or type(client) is not str or type(to) is not str:
        raise FedCalError("the message is not a reply")
    if type(n) is not int or not 0 <= n <= MOST_SAMPLES:
        raise FedCalError(f"{client} declares {n!r} samples: a whole number is needed")
    notes, privacy = _numbers(client, header.get("notes")), _privacy(client, header)
    return client, Reply(tensors, n, to, notes, privacy, header.get("probs") is True)


def _check_schema(header: Header) -> None:
    if header.get("schema") != SCHEMA:
        raise FedCalError("the message is of another version of fedcal: use one version everywhere")


def _numbers(client: str, notes: Any) -> dict[str, float]:
    if not isinstance(notes, dict) or not all(type(value) in (int, float) for value in notes.values()):
        raise FedCalError(f"{client}'s notes are not numbers")
    _check_few(client, notes)
    return {name: float(value) for name, value in notes.items() if abs(value) < 1e12}  # NaN is left out too


def _privacy(client: str, header: Header) -> dict[str, Any]:
    """What a client says of its own privacy: it is reported, and nothing is computed from it."""
    told = header.get("privacy", {})
    if not isinstance(told, dict) or not all(type(value) in (str, int, float, type(None)) for value in told.values()):
        raise FedCalError(f"{client} does not say what its privacy has cost")
    _check_few(client, told, *(value for value in told.values() if isinstance(value, str)))
    return told


def _check_few(client: str, table: dict[str, Any], *words: str) -> None:
    """Refuse a table that is no remark but a load: it is kept, and shown in reports."""
    if len(table) > FEW or any(len(word) > WORD or not word.isprintable() for word in (*table, *words)):
        raise FedCalError(f"{client}'s remarks are too many, or too long")


def privacy_to_json(privacy: Privacy | None) -> Header:
    """Return the privacy that clients are asked to keep to, as JSON values.

    Args:
        privacy: the server's, if it has one.
    """
    return {"privacy": asdict(privacy)} if privacy else {}


def privacy_from_json(header: Header) -> Privacy | None:
    """Read the privacy that clients are asked to keep to.

    Args:
        header: of a message.

    Returns:
        The privacy; None where the header names none.

    Raises:
        FedCalError: where it cannot be read.
    """
    if (asked := header.get("privacy")) is None:
        return None
    names = {entry.name for entry in fields(Privacy)}
    if not isinstance(asked, dict) or set(asked) != names:
        raise FedCalError("the request's privacy cannot be read: use one version of fedcal everywhere")
    return Privacy(**asked)


# --- queries -------------------------------------------------------------------------------------------------------------


def _flatten(value: Any, name: str, tensors: Params) -> Any:
    """A query as JSON; its tensors go to `tensors`, and leave their name behind."""
    if isinstance(value, np.ndarray):
        tensors[name] = value
        return {"tensor": name}
    if is_dataclass(value):
        parts = {
            entry.name: _flatten(getattr(value, entry.name), f"{name}/{entry.name}", tensors) for entry in fields(value)
        }
        return {"type": type(value).__name__, "fields": parts}
    if isinstance(value, dict):
        return {"dict": [[key, _flatten(part, f"{name}/{key}", tensors)] for key, part in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_flatten(part, f"{name}/{i}", tensors) for i, part in enumerate(value)]}
    return value


def _rebuild(value: Any, tensors: Params, depth: int) -> Any:
    """The query that `_flatten` took apart."""
    odd = FedCalError("the request cannot be read: use one version of fedcal everywhere")
    if not isinstance(value, dict):
        return value
    if depth > DEEPEST:
        raise odd
    try:
        if "tensor" in value:
            return tensors[value["tensor"]]
        if "dict" in value:
            return {key: _rebuild(part, tensors, depth + 1) for key, part in value["dict"]}
        if "tuple" in value:
            return tuple(_rebuild(part, tensors, depth + 1) for part in value["tuple"])
        kind = TYPES[value["type"]]
        parts = {name: _rebuild(part, tensors, depth + 1) for name, part in value["fields"].items()}
        hints = get_type_hints(kind)
        if parts.keys() != {entry.name for entry in fields(kind)} or not all(_fits(parts[n], hints[n]) for n in parts):
            raise odd
        return kind(**parts)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise odd from None


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type that a field declares."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in args
    if origin in (Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(k, args[0]) and _fits(v, args[1]) for k, v in value.items())
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(part, args[0]) for part in value)
    if hint is float:
        return type(value) in (int, float)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray)
    return type(value) is hint if hint in (int, bool, str) else isinstance(value, hint)
