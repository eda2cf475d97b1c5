"""What a node measures, on its way to the server: sums of constant size."""

from __future__ import annotations

import numpy as np

from fedcal.base.arrays import Params
from fedcal.base.store import nest, unnest
from fedcal.errors import FedCalError
from fedcal.measure.paired import Paired, comparable
from fedcal.measure.tally import Tally
from fedcal.measure.views import Measured
from fedcal.transport.flower.records import VIEWS


def measured_arrays(client: str, measured: Measured) -> Params:
    """Return the sums that a node measured."""
    arrays: Params = {}
    for view, tallies in measured.tallies.items():
        arrays |= nest(view, tallies[client].to_arrays())
    return arrays | (nest("paired", measured.paired.to_arrays()) if measured.paired else {})


def measured_of(client: str, arrays: Params, n_classes: int, n_bins: int) -> Measured:
    """Return what was measured, from its sums.

    Raises:
        FedCalError: where sums are missing, damaged, or contradict each other.
    """
    tallies = {view: Tally.from_arrays(unnest(view, arrays)) for view in VIEWS}
    paired, last = None, tallies["own"]
    for view, tally in tallies.items():
        found = len(tally.classes), len(tally.reliability.count)
        if found != (n_classes, n_bins):
            raise FedCalError(f"{client} measures {found[0]} classes in {found[1]} bins, not {n_classes} in {n_bins}")
        labels = (one.classes[:, 1].sum(axis=1) for one in (tally, last))
        if tally.n != last.n or not np.array_equal(*labels):
            raise FedCalError(f"{client} measures other samples for {view!r} than for 'own'")
    if comparable(len(VIEWS), n_bins):
        paired = Paired.from_arrays(VIEWS, unnest("paired", arrays))
        if paired.n != last.n or paired.errors.shape[1] != len(last.reliability.count):
            raise FedCalError(f"{client}'s paired sums are not of its tallies' {last.n} samples and bins")
    return Measured({view: {client: tally} for view, tally in tallies.items()}, paired)
