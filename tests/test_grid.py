"""Every method on every kind of input: probabilities, whatever the order of clients, equal to the pooled fit if exact.

`FEDCAL_GRID=full` adds sizes that take minutes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

import fedcal
from conversations import LOGIT_METHODS
from fedcal import FedCalError
from grid_cases import (
    CASES,
    EXACT,
    LARGER,
    MAY_REORDER,
    Case,
    Clients,
    check_order,
    check_probabilities,
    pool,
    probabilities,
)

SHORT: dict[str, dict[str, Any]] = {  # nets are trained for a few steps only: what is tested does not depend on more
    **{
        name: {"rounds": 2, "steps": 2}
        for name in ("fedcal", "fedcal-small", "fedcal-no-wm", "fedcal-no-op", "fedcal-literal")
    },
    "lr-ts": {"rounds": 3},
    "fed-op": {"patience": 2, "lr": 0.1},
}
VARIANTS = {name: (name, SHORT.get(name, {})) for name in LOGIT_METHODS} | {
    "fedcal-plus, keep": ("fedcal-plus", {"accuracy": "keep"}),
    "fedcal-plus, keep, uninformed": ("fedcal-plus", {"accuracy": "keep", "informed": False}),
}
FULL = os.environ.get("FEDCAL_GRID") == "full"


@cache
def clients_of(name: str) -> Clients:
    return (CASES | LARGER)[name].clients()


def pairs() -> list[Any]:
    """Every variant with every case; what takes too long is skipped, with the reason."""
    found = []
    for case, about in (CASES | LARGER).items():
        for variant in VARIANTS:
            large = not FULL and case in LARGER
            marks = [pytest.mark.skip(reason="takes minutes: FEDCAL_GRID=full")] if large else []
            found.append(pytest.param(variant, case, about, id=f"{variant}: {case}", marks=marks))
    return found


@pytest.mark.filterwarnings(
    "ignore:scores of", "ignore:fed-ts. the fit ended"
)  # logits of the wrong sign, or without errors
@pytest.mark.parametrize(("variant", "name", "case"), pairs())
def test_grid(variant: str, name: str, case: Case) -> None:
    method, options = VARIANTS[variant]
    clients = clients_of(name)
    if case.says_nothing and method != "uncal":
        with pytest.raises(FedCalError):
            fedcal.calibrate(clients, method, **options)
        return
    fitted = fedcal.calibrate(clients, method, **options)
    reordered = dict(reversed(clients.items()))
    backwards = fedcal.calibrate(reordered, method, **options) if len(clients) > 1 else fitted
    views = views_of(clients)
    for client in (None, next(name for name, (_, y) in clients.items() if len(y) or case.says_nothing)):
        for view, logits in views.items():
            p = probabilities(fitted, logits, client)
            where = f"{view}, {client or 'global'}"
            check_probabilities(p, where)
            np.testing.assert_allclose(
                probabilities(backwards, logits, client), p, rtol=0, atol=1e-8, err_msg=f"order of clients: {where}"
            )
            if variant not in MAY_REORDER:
                check_order(p, logits, where)
    if method in EXACT and len(clients) > 1:
        pooled = fedcal.calibrate([pool(clients)], method, **options)
        for view, logits in views.items():
            ours, theirs = probabilities(fitted, logits), probabilities(pooled, logits)
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-7, err_msg=f"not the pooled fit: {view}")


def views_of(clients: Mapping[str, tuple[Any, Any]]) -> dict[str, np.ndarray]:
    """What is predicted: logits that were fitted on, and the same ten times as large."""
    fitted = max((z for z, _ in clients.values()), key=len)[:500].astype(float)
    return {"fitted logits": fitted, "ten times": 10 * fitted}


def test_every_value_is_in_the_grid() -> None:
    sizes = {n for case in CASES.values() for n in case.sizes}
    assert sizes >= {0, 1, 2, 49, 50, 6_553, 6_554, 100_000}
    assert {case.k for case in CASES.values()} >= {2, 3, 10, 100, 1_000}
    assert {len(case.sizes) for case in CASES.values()} >= {1, 2, 1_000}
