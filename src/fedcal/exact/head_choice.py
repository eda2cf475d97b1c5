"""The server's choice of a refitted last layer: its ridge and its scale by samples out of fold, and whether it is kept."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from fedcal.exact import queries
from fedcal.exact.candidates import Scores
from fedcal.exact.head_fit import RIDGES, HeadCandidate, finish_heads, fit_heads
from fedcal.exact.head_queries import HeadScales, HeadStart
from fedcal.exact.head_units import Units
from fedcal.exact.prepared import FoldMap
from fedcal.exact.queries import SumQuery
from fedcal.exact.solve import Sums
from fedcal.exact.stages import Clients

SCALES = 2.0 ** np.linspace(-2, 0.5, 11)
MIN_HEAD_SAMPLES = 75  # to calibrate on: fewer cannot tell whether a head, which fits all of them, is better than a map


def rescale(candidates: list[HeadCandidate]) -> Generator[SumQuery, Sums, list[float]]:
    """Give every candidate the scale that is best out of fold; returns their losses there.

    Features of training samples are over-fitted, since the model was trained on them: a head that was fitted on them too is
    over-confident, however well it separates the classes. A scale corrects that, so that heads are compared at their best.
    """
    for of in candidates:
        of.scale = 1.0
    losses = (yield HeadScales(tuple(of.fold_map for of in candidates), SCALES))["loss"]
    step = float(SCALES[1] / SCALES[0])
    for of, loss in zip(candidates, losses, strict=True):
        at = min(max(int(loss.argmin()), 1), len(SCALES) - 2)
        low, mid, high = loss[at - 1 : at + 2].tolist()
        bend = low - 2 * mid + high
        of.scale = float(SCALES[at]) * step ** min(max((low - high) / (2 * bend) if bend > 0 else 0.0, -1.0), 1.0)
    return losses.min(1).tolist()


def choose_head(
    plus: FoldMap, is_temperature: bool, clients: Clients
) -> Generator[SumQuery, Sums, HeadCandidate | None]:
    """The best refitted head, if out of fold it beats a linear map of the logits; else None.

    Args:
        plus: that map.
        is_temperature: whether it keeps the model's decisions: to leave those, a head needs two standard errors, and must not
            be right less often.
        clients: their log takes what the head gains.
    """
    if clients.n < MIN_HEAD_SAMPLES:
        return None
    units = Units.of((yield HeadStart()), clients)
    tried = yield from fit_heads(tuple(units.d * ridge for ridge in RIDGES), units, clients)
    losses = yield from rescale(tried)
    families = dict.fromkeys(of.family for of in tried)
    best = [min((i for i, of in enumerate(tried) if of.family == f), key=lambda i: losses[i]) for f in families]
    chosen = [tried[i] for i in best]
    yield from finish_heads(chosen)
    yield from rescale(chosen)
    scores = Scores.of((yield queries.Score((plus, *(of.fold_map for of in chosen)))), clients)
    first = scores.best(range(1, len(chosen) + 1))
    gain, error = scores.paired(0, first)
    as_right = not is_temperature or float(scores.hits[first]) >= float(scores.hits[0])
    enough = gain > max(0.0, (2 if is_temperature else 1) * error)
    return chosen[first - 1] if enough and as_right else None
