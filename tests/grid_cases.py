"""The grid's inputs: every size, type, scale and oddity of logits and labels that a fit must survive; and its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import fedcal

Clients = dict[str, tuple[Any, Any]]
MAY_REORDER = {"fedcal-no-op", "fed-bias", "fed-vector", "fed-matrix", "fedcal-plus"}
EXACT = {"fed-ts", "fed-bias", "fed-vector", "fed-matrix", "fed-beta", "fed-hist"}  # equal to the pooled fit
Change = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]


@dataclass(frozen=True)
class Case:
    """Clients of these sizes over k classes; `change` turns a client's float64 logits and labels into the odd input."""

    sizes: tuple[int, ...]
    k: int
    change: Change = lambda z, y: (z.astype(np.float32), y)
    says_nothing: bool = False  # no method can be fitted: FedCalError

    def clients(self) -> Clients:
        rng = np.random.default_rng(len(self.sizes) * 1000 + self.k)
        lean = np.linspace(-1, 1, self.k)
        found: Clients = {}
        for i, n in enumerate(self.sizes):
            z = 2 * rng.normal(size=(n, self.k)) + lean
            y = (z / 1.7 - lean + rng.gumbel(size=z.shape)).argmax(axis=1) if n else np.zeros(0, np.int64)
            found[f"client-{i}"] = self.change(z, y)
        return found


def scaled(scale: float) -> Change:
    return lambda z, y: (z * scale, y)


def typed(dtype: str) -> Change:
    return lambda z, y: (z.astype(dtype), y)


def strided(z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    """Every other column of an array in Fortran order, read backwards."""
    wide = np.asfortranarray(np.repeat(z, 2, axis=1))
    return wide[::-1, ::2], np.repeat(y, 3)[::-3]


def constant_labels(z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    return z, np.ones_like(y)


def absent_classes(z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    """No label of the upper half of the classes."""
    return z, y % (z.shape[1] // 2)


def ties(value: float) -> Change:
    return lambda z, y: (np.full_like(z, value), y)


def some_ties(z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    return np.round(z), y


def separable(z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    return z + 20 * np.eye(z.shape[1])[y], y


def always_wrong(z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    return z - 20 * np.eye(z.shape[1])[y], y


def far_apart(z: np.ndarray, y: np.ndarray) -> tuple[Any, Any]:
    """Magnitudes from 1e-300 to 1e300 in one array, even in one row."""
    magnitude = np.random.default_rng(0).choice([-300.0, -8.0, 0.0, 8.0, 300.0], size=z.shape)
    return z * 10**magnitude, y


CASES = {
    "1 x 1 x 2": Case((1,), 2),
    "0 and 1 x 2": Case((0, 1), 2),
    "2 of 2 x 10": Case((2, 2), 10),
    "49 x 3": Case((49,), 3),
    "50 x 3": Case((50,), 3),
    "6,553 x 10": Case((6_553,), 10),
    "6,554 x 10": Case((6_554,), 10),
    "700 and 100 x 100": Case((700, 100), 100),
    "50 x 1,000": Case((50,), 1000),
    "100,000 x 2": Case((100_000,), 2),
    "1,000 clients of 2 x 3": Case((2,) * 1000, 3),
    "1,000 clients of 0 or 2 x 3": Case((2, *(0,) * 19) * 50, 3),
    "float16": Case((50, 49), 10, typed("float16")),
    "float64": Case((50, 49), 10, typed("float64")),
    "int8": Case((50, 49), 3, typed("int8")),
    "int64": Case((50, 49), 3, typed("int64")),
    "strided": Case((50, 49), 3, strided),
    "constant labels": Case((50, 49), 3, constant_labels),
    "constant label of one sample": Case((1, 1), 3, constant_labels),
    "absent classes": Case((50, 49), 10, absent_classes),
    "all ties at 0": Case((50, 49), 3, ties(0.0)),
    "all ties at 7.5": Case((50, 49), 3, ties(7.5)),
    "some ties": Case((50, 49), 3, some_ties),
    "separable": Case((50, 49), 3, separable),
    "always wrong": Case((50, 49), 3, always_wrong),
    "far apart": Case((50, 49), 3, far_apart),
    **{f"scale {scale:g}": Case((50, 49), 3, scaled(scale)) for scale in (1e-300, 1e-100, 1e-8, 1e5, 1e8)},
    **{f"scale {scale:g}": Case((50, 49), 3, scaled(scale)) for scale in (-1.0, 1e30, -1e100, 1e300, -1e300)},
    "nothing": Case((0, 0), 3, says_nothing=True),
}

LARGER = {  # minutes; FEDCAL_GRID=full
    "100,000 x 10": Case((100_000,), 10),
    "2 of 100,000 x 3": Case((100_000, 100_000), 3),
    "1,000 clients of 49 x 10": Case((49,) * 1000, 10),
    "1,000 clients of 1 x 100": Case((1,) * 1000, 100),
    "6,554 x 100": Case((6_554,), 100),
    "2 of 6,553 x 1,000": Case((6_553, 6_553), 1000),
    "100 clients of 50 x 1,000": Case((50,) * 100, 1000),
}


# --- what is checked --------------------------------------------------------------------------------------------------------


def probabilities(fitted: fedcal.Scaler, logits: np.ndarray, client: str | None = None) -> np.ndarray:
    return np.asarray(fitted.predict_proba(logits, client))


def pool(clients: Mapping[str, tuple[Any, Any]]) -> tuple[np.ndarray, np.ndarray]:
    logits, labels = zip(*clients.values(), strict=True)
    return np.concatenate(logits), np.concatenate(labels)


def check_probabilities(p: np.ndarray, where: str) -> None:
    assert np.isfinite(p).all(), f"not finite: {where}"
    assert ((p >= 0) & (p <= 1)).all(), f"outside [0, 1]: {where}"
    assert np.abs(p.sum(axis=1) - 1).max(initial=0.0) <= 1e-12, f"rows do not sum to 1: {where}"


def check_order(p: np.ndarray, logits: np.ndarray, where: str) -> None:
    """The model's top class has the highest probability; probabilities may tie where logits are too close to tell."""
    top = p[np.arange(len(p)), logits.argmax(axis=1)]
    assert (top == p.max(axis=1)).all(), f"{int((top < p.max(axis=1)).sum())} of {len(p)} top classes moved: {where}"
