"""`calibrate` and `predict_proba` on random inputs, all methods: probabilities, or one line that says what is wrong.

A bounded number of examples by default; `FEDCAL_FUZZ=2000 pytest tests/test_fuzz.py` tries as many.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedcal
from conversations import LOGIT_METHODS
from fedcal import FedCalError
from grid_cases import EXACT, MAY_REORDER, check_order, check_probabilities, pool, probabilities

EXAMPLES = int(os.environ.get("FEDCAL_FUZZ", "20"))
NETS = {"fedcal", "fedcal-literal", "fedcal-no-wm", "fedcal-small", "fedcal-no-op"}
DTYPES = ("float16", "float32", "float64", "int8", "int64")


@st.composite
def federations(draw: st.DrawFn) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Few clients, few samples, few classes: of any scale and type, with ties, absent classes and labels that fit."""
    k = draw(st.integers(2, 6), label="classes")
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=4), label="sizes")
    exponent = draw(st.sampled_from([0, 0, 0, 1, -1, 2, 5, -8, 8, -100, 100, -300, 300]), label="exponent")
    rounded = draw(st.booleans(), label="ties")
    follow = draw(st.sampled_from([0.0, 1.0, 30.0, -30.0]), label="how labels follow logits")
    classes = draw(st.integers(1, k), label="classes with labels")
    dtype = draw(st.sampled_from(DTYPES), label="dtype")
    rng = np.random.default_rng(draw(st.integers(0, 10**6), label="seed"))
    found = {}
    for i, n in enumerate(sizes):
        z = 2 * rng.normal(size=(n, k))
        y = (follow * z + rng.gumbel(size=z.shape))[:, :classes].argmax(axis=1)
        found[f"client-{i}"] = as_type(np.round(z) if rounded else z, exponent, dtype), y
    return found


def as_type(z: np.ndarray, exponent: int, dtype: str) -> np.ndarray:
    """Scaled as far as the type can hold it."""
    if dtype == "float64":
        return z * 10.0**exponent
    most = np.iinfo(dtype).max if dtype.startswith("int") else float(np.finfo(dtype).max)
    scaled = z * 10.0 ** min(max(exponent, -30), 30)
    return np.clip(scaled, -most / 2, most / 2).astype(dtype)


def options_of(method: str) -> st.SearchStrategy[dict[str, Any]]:
    if method == "fedcal-plus":
        choices = {"accuracy": st.sampled_from(["improve", "keep"]), "informed": st.booleans()}
        return st.fixed_dictionaries({}, optional=choices)
    if method in NETS:
        return st.fixed_dictionaries({"rounds": st.integers(1, 2), "steps": st.just(3)})
    if method == "lr-ts":
        return st.fixed_dictionaries({}, optional={"rounds": st.integers(0, 5)})
    return st.just({"patience": 2, "lr": 0.1} if method == "fed-op" else {})


@pytest.mark.filterwarnings("ignore:scores of", "ignore:fed-ts. the fit ended")  # labels may follow the negative logits
@pytest.mark.parametrize("method", LOGIT_METHODS)
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(data=st.data())
def test_fuzz(method: str, data: st.DataObject) -> None:
    clients = data.draw(federations(), label="clients")
    options = data.draw(options_of(method), label="options")
    empty = not any(len(y) for _, y in clients.values())
    try:
        fitted = fedcal.calibrate(clients, method, probs=False, **options)  # a few whole logits may add up to one
    except FedCalError:
        assert empty, "only a federation without samples says nothing"
        return
    some = max((z for z, _ in clients.values()), key=len).astype(float)
    asked = [None, *(name for name, (_, y) in clients.items() if len(y))]
    for client in asked:
        for logits in (some, 10 * some, some[:1] / 10):
            p = probabilities(fitted, logits, client)
            check_probabilities(p, str(client))
            if method not in MAY_REORDER or options.get("accuracy") == "keep":
                check_order(p, logits, str(client))
    if method in EXACT and not empty:
        pooled = fedcal.calibrate([pool(clients)], method, probs=False, **options)
        np.testing.assert_allclose(probabilities(fitted, some), probabilities(pooled, some), rtol=0, atol=1e-7)
