"""What a node measures, on its way to the server: sums of constant size, as bytes."""

from __future__ import annotations

from fedcal.base.logits import Params
from fedcal.base.store import nest, unnest
from fedcal.errors import FedCalError
from fedcal.measure.paired import Paired, comparable
from fedcal.measure.tally import Tally
from fedcal.measure.views import Measured
from fedcal.protocol.wire import pack, unpack
from fedcal.transport.flower.records import VIEWS


def pack_measured(client: str, measured: Measured) -> bytes:
    """Return what a node measured as bytes."""
    tensors: Params = {}
    for view, tallies in measured.tallies.items():
        tensors |= nest(view, tallies[client].to_tensors())
    return pack(tensors | (nest("paired", measured.paired.to_tensors()) if measured.paired else {}), {})


def unpack_measured(client: str, data: bytes, n_classes: int, n_bins: int) -> Measured:
    """Read back what a node measured.

    Raises:
        FedCalError: where sums are missing, damaged, or contradict each other.
    """
    tensors, _ = unpack(data)
    tallies = {view: Tally.from_tensors(unnest(view, tensors)) for view in VIEWS}
    if any(len(tally.classwise) != n_classes for tally in tallies.values()):
        raise FedCalError(f"{client} measures {len(tallies['uncal'].classwise)} classes, not {n_classes}")
    paired, last = None, tallies["own"]
    if comparable(len(VIEWS), n_bins):
        paired = Paired.from_tensors(VIEWS, unnest("paired", tensors))
        if paired.n != last.n or paired.errors.shape[1] != len(last.reliability.count):
            raise FedCalError(f"{client}'s paired sums are not of its tallies' {last.n} samples and bins")
    return Measured({view: {client: tally} for view, tally in tallies.items()}, paired)
