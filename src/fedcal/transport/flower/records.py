"""What travels between server and nodes: Flower records whose names begin with `fedcal.`.

    server → node   fedcal.request   the phase of the run, and as bytes (protocol/wire.py) the request or the final scaler
                    fedcal.model     the frozen model, for a node that does not have its logits yet
    node → server   fedcal.reply     the node's name, and as bytes its reply or what it measured

Under secure aggregation both also hold stages of the protocol (`fedcal.secure`) as JSON, and the reply's bytes are masked.

An inner strategy, or a user's client, never sees these records: they are taken out before it is called. Flower sends every
array of a record by requests of its own, which take longer than all that FedCal computes; so arrays travel as bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedcal.base.arrays import Params, as_array
from fedcal.base.codec import parse_json
from fedcal.errors import FedCalError
from fedcal.protocol import Plan, Privacy, Scaler
from fedcal.protocol.valid import check_params
from fedcal.protocol.wire import pack, plan_from_json, plan_to_json, privacy_from_json, privacy_to_json, unpack

PREFIX = "fedcal."
REQUEST, MODEL, REPLY = "fedcal.request", "fedcal.model", "fedcal.reply"
DATA = "data"  # the bytes of a record
STAGES = "stages"  # of secure aggregation, as JSON
MOST = 1 << 20  # characters of a message's stages: those of a group of 63 have 100,000
MEASURED = 10**9  # the round of a private measurement: after all others
VIEWS = ("uncal", "local", "own")  # what a node measures: the model as it is, the global scaler, its personal scaler
# Under privacy not the last: it is made of calibration samples without noise, so that each of them moves what all test
# samples show under it, and no bound on a test sample's part hides that.
PRIVATE_VIEWS = VIEWS[:2]

# "meet": train, and tell the node's name; "train": train, and reply to a request; on the frozen model: "reply", "measure",
# "evaluate".
Phase = Literal["meet", "train", "reply", "measure", "evaluate"]
Records = dict[str, Any]  # FedCal's records of one message, by name


def record_of(data: bytes, **values: str | int | bool | bytes) -> ConfigRecord:
    """Return a record of bytes and a few values."""
    return ConfigRecord({**values, DATA: data})


def data_of(record: Any) -> bytes:
    """Return a record's bytes.

    Raises:
        FedCalError: where it holds none.
    """
    data = record.get(DATA) if isinstance(record, ConfigRecord) else None
    if not isinstance(data, bytes):
        raise FedCalError("the message cannot be read: it holds no bytes")
    return data


def parts_of(text: Any) -> list[Any]:
    """Return the stages that a message holds, or the replies to them.

    Raises:
        FedCalError: where they are something else.
    """
    if not isinstance(text, str) or len(text) > MOST:
        raise FedCalError(
            f"the stages of secure aggregation cannot be read: they are no text of at most {MOST} characters"
        )
    parts = parse_json(text, "what is said of secure aggregation")
    if not isinstance(parts, list):
        raise FedCalError("the stages of secure aggregation cannot be read: they are no list")
    return parts


def take_out(content: RecordDict) -> Records:
    """Remove FedCal's records from a message's content, and return them by name."""
    return {name: content.pop(name) for name in [name for name in content if name.startswith(PREFIX)]}


def size(records: Iterable[Any]) -> int:
    """Return how many bytes the arrays in these records take on their way."""
    found = 0
    for record in records:
        if isinstance(record, ArrayRecord):
            found += sum(len(array.data) for array in record.values())
        elif isinstance(data := record.get(DATA), bytes):
            found += len(data) + len(str(record.get(STAGES, "")))  # a stranger's may be no text
    return found


# --- models --------------------------------------------------------------------------------------------------------------


def to_record(params: Mapping[str, Any]) -> ArrayRecord:
    """Return a model's arrays (or tensors) as Flower's strategies have them; types, shapes and bits are kept."""
    return ArrayRecord({name: Array(np.array(as_array(value), order="C")) for name, value in params.items()})


def from_record(record: ArrayRecord) -> Params:
    """Return the arrays of `to_record`.

    Raises:
        FedCalError: where an array is not of numbers.
    """
    found: Params = {}
    for name, array in record.items():
        try:
            found[name] = array.numpy().copy()
        except Exception:  # whatever a stranger's bytes make a reader raise
            raise FedCalError(f"{name!r} cannot be read as an array of numbers") from None
    return found


def fingerprint(model: ArrayRecord) -> str:
    """Return a digest of a model's arrays.

    Bytes may follow an array's own ones, which its reader ignores: their number is part of the digest, so that they cannot
    pass for the next array.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name, array in model.items():
        about = (name, array.dtype, tuple(array.shape), array.stype, len(array.data))
        digest.update(f"{about!r} ".encode())
        digest.update(array.data)
    return digest.hexdigest()


# --- the last round ------------------------------------------------------------------------------------------------------


def pack_scaler(plan: Plan, scaler: Scaler, privacy: Privacy | None = None) -> bytes:
    """Return the final scaler, with the plan that it belongs to and the privacy to measure with, as bytes."""
    return pack(scaler.params, plan_to_json(plan) | privacy_to_json(privacy))


def unpack_scaler(data: bytes) -> tuple[Plan, Scaler, Privacy | None]:
    """Read a plan, a scaler and the privacy to measure with back.

    The scaler is checked before it meets any samples: one that fails for some samples and not for others would tell of them.

    Raises:
        FedCalError: where the bytes are not a scaler of this version.
    """
    params, header = unpack(data)
    plan = plan_from_json(header)
    try:
        check_params(plan.method, params, plan.n_classes)
    except FedCalError as error:
        raise FedCalError(f"the server's scaler cannot be used ({error}): do not reply to this server") from None
    return plan, Scaler(plan.method, params, plan.n_classes, classes=plan.classes), privacy_from_json(header)
