"""Replies to queries: the same for samples in one chunk or in many, for clients alone or together."""

import numpy as np
import pytest

import fedcal
from fedcal.exact import linear, prepared, queries
from fedcal.exact.linear import FAMILIES, n_parameters
from fedcal.exact.prepared import ALL, FoldMap, Prepared
from fedcal.exact.queries import SumQuery
from fedcal.transport import memory
from grid_cases import Case

K = 4


def every_query() -> dict[str, SumQuery]:
    """One of each kind."""
    rng = np.random.default_rng(0)
    found: dict[str, SumQuery] = {
        "start": queries.Start(),
        "folds": queries.Start(folds=True),
        "slope": queries.Slope(0.7),
    }
    curvatures = dict.fromkeys(FAMILIES, ("full", "none", "diagonal"))
    curvatures |= {"temperature": ("full", "none"), "matrix": ("full", "none", "diagonal", "blocks")}
    for family in FAMILIES:
        t = 0.1 + rng.random(n_parameters(family, K))
        for curvature in curvatures[family]:
            points = (queries.Points(family, fold, curvature, np.stack([t, 0.5 * t])) for fold in (ALL, 2))
            found[f"{family} {curvature}"] = queries.LinearSums(tuple(points))
    scales = {fold: np.array([0.5 + 0.1 * fold]) for fold in range(5)}
    fold_map = FoldMap("temperature", scales)
    identity = np.array([1.0, 1.0, 0.0])
    found["score"] = queries.Score((fold_map, FoldMap("temperature", dict(reversed(scales.items())))))
    for model_top in (False, True):
        found[f"histogram {model_top}"] = queries.Histogram(fold_map, model_top)
    prior, alpha = np.full(K, 1 / K), np.array(3.0)
    found["counts"] = queries.CountsLikelihood(prior)
    found["shift"] = queries.ShiftEvidence(fold_map, {"beta": identity}, prior, alpha)
    return found


QUERIES = every_query()


def samples(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return 3 * rng.normal(size=(n, K)), rng.integers(K, size=n)


@pytest.mark.parametrize("kept", [1 << 22, 0])
@pytest.mark.parametrize("n", [1, 3, 64, 65, 1000])
def test_chunks_add_up(n: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = samples(n)
    whole = {name: query.reply(Prepared(lambda: (z, y))) for name, query in QUERIES.items()}
    for module in (prepared, linear):
        monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(prepared, "KEPT", kept)
    for name, query in QUERIES.items():
        parts = query.reply(Prepared(lambda: (z, y)))
        assert set(parts) == set(whole[name])
        for key, value in whole[name].items():
            np.testing.assert_allclose(parts[key], value, rtol=1e-10, atol=1e-10, err_msg=f"{name} {key}")


@pytest.mark.parametrize("name", QUERIES)
def test_clients_that_reply_as_one_say_what_they_say_apart(name: str) -> None:
    clients = [samples(n, seed) for seed, n in enumerate((1, 2, 7, 60))]
    apart = [QUERIES[name].reply(Prepared(lambda pair=pair: pair)) for pair in clients]
    z, y = (np.concatenate(values) for values in zip(*clients, strict=True))
    together = QUERIES[name].reply(Prepared(lambda: (z, y), [len(labels) for _, labels in clients]))
    for key, value in together.items():
        np.testing.assert_allclose(value, sum(one[key] for one in apart), rtol=1e-10, atol=1e-10, err_msg=key)


@pytest.mark.parametrize("method", ["fed-bias", "fed-op", "fedcal-plus"])
def test_many_small_clients_are_fitted_as_if_apart(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortcut of a simulation: also what each client makes of the scaler for itself."""
    clients = Case((2, 3, 40, 0, 9) * 12, 3).clients()
    logits = clients["client-2"][0]
    options = {"patience": 2, "lr": 0.1} if method == "fed-op" else {}
    apart = fedcal.calibrate(clients, method, **options)
    monkeypatch.setattr(memory, "MANY", 10)
    monkeypatch.setattr(memory, "GROUP", 300)
    together = fedcal.calibrate(clients, method, **options)
    for key in ("rounds", "bytes_up", "updates"):
        assert getattr(together.ledger, key) == getattr(apart.ledger, key)
    assert set(together.personal) == set(apart.personal)
    for client in (None, "client-2", "client-4"):
        np.testing.assert_allclose(
            together.predict_proba(logits, client), apart.predict_proba(logits, client), rtol=0, atol=1e-9
        )
