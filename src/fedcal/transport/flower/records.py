"""What passes between server and nodes: flat dicts of tensors as Flower's records, under names that start with `fedcal.`.

    server → node   fedcal.about      what is asked: phase, federation, round, method, the question's fingerprint
                    fedcal.question   the scaler's params, or an additive method's question
                    fedcal.model      the frozen model, where a node may not have seen it yet
                    fedcal.asked      earlier questions, for a node that lost what it kept
    node → server   fedcal.said       whose answer it is, to what, of how many samples
                    fedcal.answer     the update
                    fedcal.tally.*    sums that measure, after the last round
                    fedcal.paired     sums that compare the tallies' views with each other

An inner strategy, or a user's own client, never sees them: they are taken out before it is called. Flower sends every array
of a record by requests of its own, which take longer than all that FedCal computes; so its tensors travel packed, as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load, save

from fedcal.base.logits import Params
from fedcal.errors import FedCalError

PREFIX = "fedcal."
ABOUT, QUESTION, MODEL, ASKED = "fedcal.about", "fedcal.question", "fedcal.model", "fedcal.asked"
SAID, ANSWER, TALLY, PAIRED = "fedcal.said", "fedcal.answer", "fedcal.tally.", "fedcal.paired"
VIEWS = ("uncal", "local", "own")  # what a node measures: the model as it is, the global scaler, the node's own
PACKED = "safetensors"


def pack(params: Params) -> ConfigRecord:
    """Tensors as one value; types, shapes, bits and order are kept."""
    apart = {name: value.detach().cpu().clone().contiguous() for name, value in params.items()}
    return ConfigRecord({PACKED: save(apart, metadata={"names": json.dumps(list(params))})})


def unpack(record: Any) -> Params:
    """The tensors of `pack`; anything else is refused."""
    try:
        data = record[PACKED]
        tensors, size = load(data), int.from_bytes(data[:8], "little")
        names = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["names"])
        found = {name: tensors.pop(name) for name in names}
    except Exception:  # whatever a stranger's bytes make a reader raise: assertions, RecursionError, MemoryError
        raise FedCalError("its tensors cannot be read") from None
    if tensors:
        raise FedCalError("its tensors cannot be read: some have no name")
    return found


def to_record(params: Params) -> ArrayRecord:
    """A model's tensors, an array each, as Flower's strategies have them; types, shapes and bits are kept."""
    return ArrayRecord({name: Array(value.detach().cpu().contiguous().numpy()) for name, value in params.items()})


def from_record(record: ArrayRecord) -> Params:
    """The tensors of `to_record`; arrays of other kinds are refused."""
    found: Params = {}
    for name, array in record.items():
        try:
            found[name] = torch.from_numpy(array.numpy().copy())
        except Exception:  # as above
            raise FedCalError(f"{name!r} cannot be read as an array of numbers") from None
    return found


def take_out(content: RecordDict) -> dict[str, Any]:
    """Remove FedCal's records from a message's content, and return them by name."""
    return {name: content.pop(name) for name in [name for name in content if name.startswith(PREFIX)]}


def config_of(values: dict[str, Any]) -> ConfigRecord:
    """A header: scalars as they are, everything else as JSON."""
    plain = str | int | float | bool
    return ConfigRecord({k: v if isinstance(v, plain) else json.dumps(v, sort_keys=True) for k, v in values.items()})


def size(records: Iterable[Any]) -> int:
    """Bytes of the arrays and packed tensors in these records, as they travel."""
    found = 0
    for record in records:
        if isinstance(record, ArrayRecord):
            found += sum(len(array.data) for array in record.values())
        elif isinstance(packed := record.get(PACKED), bytes):
            found += len(packed)
    return found
