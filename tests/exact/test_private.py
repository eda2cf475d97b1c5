"""Private queries: their bounds hold for any sample and any server; the program ends with a scaler whatever it is sent."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcal
from fedcal import FedCalWarning, Privacy
from fedcal.exact.prepared import Prepared
from fedcal.exact.private import fit_confidences, fit_privately
from fedcal.exact.private_queries import CURVATURE, Confidences, Gains, MatrixSums, Measure, Scales, ScaleSums
from fedcal.exact.private_query import VALUES, square, triangle

SIZES = st.sampled_from([1e-200, 1e-170, 1e-3, 1.0, 30.0, 1e6, 1e200])
METHODS = [
    "fedcal-plus",
    "fedcal-plus:accuracy=keep",
    "fed-ts",
    "fed-bias",
    "fed-vector",
    "fed-matrix",
    "fed-beta",
    "fed-hist",
    "fed-op",
]


def queries(k, of, rng):
    """One query of each kind, with parameters of that size."""

    def t(*shape):
        return of * rng.normal(size=shape)

    clip = rng.choice([rng.random() * 10, 0.0, -1.0, 1e-200, 5e-324, 1e300])
    yield Scales(k, 0.1)
    yield Scales(k, 0.1, norms=False)
    for size, full in ((1, True), (1 + k, True), (1 + k, False)):
        yield ScaleSums(k, 0.1, clip, t(size), full)
    yield MatrixSums(k, 0.1, clip, t(k, k + 1))
    yield MatrixSums(k, 0.1, clip, t(k, k + 1), "vector")
    yield Gains(k, 0.1, ({"bias": t(k + 1)}, {"matrix": t(k * (k + 1))}))
    yield Confidences(k, 0.1, float(t(1)[0]))


def reply(query, z, y, counts=None):
    with np.errstate(all="ignore"):  # as a client's reply is made
        return query.reply(Prepared(lambda: (z, y), counts))[VALUES]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), SIZES, SIZES, st.integers(0, 10**6))
def test_no_sample_moves_a_sum_by_more_than_the_bound(k, of_logits, of_parameters, seed):
    rng = np.random.default_rng(seed)
    z, y = of_logits * rng.normal(size=(1, k)), rng.integers(k, size=1)
    for query in queries(k, of_parameters, rng):
        values = reply(query, z, y)
        assert values.shape == (query.size,) and np.linalg.norm(values) <= query.bound * (1 + 1e-9)
    views = Measure(k, 1.0, 3, 15)
    assert np.linalg.norm(reply(views, np.tile(z, 3), y)) <= views.bound * (1 + 1e-9)


def test_the_curvatures_bound_is_reached_and_never_passed():
    rng = np.random.default_rng(0)
    p, half = rng.dirichlet(np.full(5, 0.3), 20_000), np.array([0.5, 0.5])
    norms = np.linalg.norm(p[:, :, None] * (np.eye(5) - p[:, None]), axis=(1, 2))
    assert norms.max() <= CURVATURE == np.linalg.norm(np.diag(half) - np.outer(half, half))
    a = rng.normal(size=(4, 4))
    a = a + a.T
    assert np.allclose(square(triangle(a)), a)
    assert np.linalg.norm(triangle(a)) == pytest.approx(np.linalg.norm(a))


def test_sums_of_clients_are_those_of_the_pooled_samples():
    rng = np.random.default_rng(3)
    z, y = 3 * rng.normal(size=(50, 4)), rng.integers(4, size=50)
    for query in queries(4, 1.0, rng):
        assert np.allclose(reply(query, z, y), reply(query, z[:20], y[:20]) + reply(query, z[20:], y[20:]))
        assert not reply(query, z[:0], y[:0]).any()


def test_by_client_every_client_counts_as_one_sample():
    rng = np.random.default_rng(4)
    z, y = rng.normal(size=(60, 3)), rng.integers(3, size=60)
    query = Scales(3, 0.1, norms=False, per_client=True)
    together = reply(query, z, y, [10, 50])
    assert float(together.sum()) == pytest.approx(2)
    assert np.allclose(together, reply(query, z[:10], y[:10]) + reply(query, z[10:], y[10:]))


@pytest.mark.parametrize("k", [2, 5, 40])
@pytest.mark.parametrize("family", ["temperature", "bias", "vector", "matrix"])
def test_any_totals_lead_to_a_scaler_within_the_budget(k, family):
    """Pure noise of any size, with negative counts and squares, is survived; shares never exceed the budget."""
    rng = np.random.default_rng(k)
    for size in (1e-3, 1.0, 100.0, 1e7):

        def program():
            fit = yield from fit_privately(k, family, also=family == "temperature")
            if family == "temperature":
                yield from fit_confidences(fit, "beta" if k == 2 else "hist", 100.0)
            return fit

        run, total, spent = program(), None, 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedCalWarning)
            try:
                while True:
                    query = run.send(total)
                    spent += query.budget
                    values = size * rng.normal(size=query.size)
                    values[:k] += 1000 * isinstance(query, Scales)
                    total = {VALUES: values, "noise": np.array(size)}
            except StopIteration as ended:
                fit = ended.value
        assert np.isfinite(fit.t).all() and float(fit.labels.min()) >= 0
        assert spent <= 1 + 1e-9


def samples(n, k, seed, clients=5, scale=3.0):
    """Over-confident logits with a bias: labels follow softmax(z), the model says scale · z + shift."""
    rng = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    y = torch.distributions.Categorical(logits=z).sample() if n else torch.zeros(0, dtype=torch.int64)
    logits = scale * z + torch.linspace(-2, 2, k, dtype=torch.float64)
    return list(zip(logits.chunk(clients), y.chunk(clients), strict=True))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("unit", ["sample", "client"])
def test_every_additive_method_ends_with_a_scaler_at_any_epsilon(method, unit):
    probe = torch.randn(20, 4, dtype=torch.float64)
    for epsilon in (0.01, 3.0, math.inf):
        for n in (5, 600):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FedCalWarning)
                scaler = fedcal.calibrate(samples(n, 4, n), method, privacy=Privacy(epsilon, 1e-5, unit=unit))
            p = scaler.predict_proba(probe)
            assert (
                torch.allclose(p.sum(1), torch.ones(20, dtype=p.dtype))
                and scaler.predict_proba(probe, client=0).isfinite().all()
            )
            if epsilon == 0.01:
                assert "fallback" in scaler.params
                assert torch.allclose(p, probe.softmax(1), atol=1e-6)


@pytest.mark.parametrize("where", ["central", "local", "distributed"])
def test_a_private_fit_keeps_most_of_the_gain(where):
    train, test = samples(4000, 5, 0), samples(4000, 5, 1, clients=1)[0]

    def loss(scaler):
        return float(torch.nn.functional.nll_loss(scaler.predict_proba(test[0]).log(), test[1]))

    before = float(torch.nn.functional.cross_entropy(*test))
    best = before - loss(fedcal.calibrate(train, "fed-bias"))
    private = before - loss(fedcal.calibrate(train, privacy=Privacy(4.0, 1e-5, where=where)))
    assert best > 0.5 and private > (0.75 if where == "local" else 0.93) * best


def losses(logits, labels, scaler=None):
    p = (scaler.predict_proba(logits) if scaler else logits.softmax(1)).clamp_min(1e-300)
    return float(torch.nn.functional.nll_loss(p.log(), labels))


@pytest.mark.parametrize(("n", "k", "epsilon"), [(300, 5, 100.0), (300, 50, 100.0), (2000, 50, 16.0), (30, 2, 100.0)])
def test_parameters_that_are_of_no_use_are_not_taken(n, k, epsilon):
    """The model is calibrated as it is: whatever a map gains on the samples that fitted it, it loses on others.

    Noise makes one fit in 300 worse by more (30 samples), so one of four may be.
    """
    worse = 0
    for seed in range(4):
        (train,), (test,) = (samples(m, k, s, clients=1, scale=1.0) for m, s in ((n, seed), (4000, 99)))
        shift = torch.linspace(-2, 2, k, dtype=torch.float64)
        train, test = ((logits - shift, labels) for logits, labels in (train, test))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedCalWarning)
            scaler = fedcal.calibrate([train], privacy=Privacy(epsilon))
        worse += losses(*test, scaler) > losses(*test) + 0.005
    assert worse <= 1


def test_what_few_samples_lose_by_far_counts():
    """All but a few gain by sharper probabilities; those few have large logits and are wrong, and would lose most."""

    def with_outliers(seed):
        (logits, labels) = samples(3000, 5, seed, clients=1, scale=0.4)[0]
        large = torch.arange(len(labels)) % 30 == 0
        logits = torch.where(large[:, None], 40 * logits, logits)
        return logits, torch.where(large, logits.argmin(1), labels)

    test = with_outliers(99)
    for seed in range(4):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedCalWarning)
            scaler = fedcal.calibrate([with_outliers(seed)], privacy=Privacy(16.0))
        assert losses(*test, scaler) <= losses(*test) + 0.005


def test_falling_back_is_said():
    with pytest.warns(FedCalWarning, match="probabilities stay as they are"):
        fedcal.calibrate(samples(40, 3, 0), privacy=Privacy(0.1))


@pytest.mark.parametrize("method", METHODS)
def test_private_scalers_are_saved_and_loaded(method, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedCalWarning)
        for epsilon in (0.01, 20.0):
            scaler = fedcal.calibrate(samples(800, 4, 2), method, privacy=Privacy(epsilon))
            scaler.save(tmp_path / "scaler.safetensors")
            back = fedcal.Scaler.load(tmp_path / "scaler.safetensors")
            assert back.params.keys() == scaler.params.keys()
            assert all(np.array_equal(back.params[name], value) for name, value in scaler.params.items())
