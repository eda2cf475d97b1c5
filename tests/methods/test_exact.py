"""Exact federated fits: whoever holds which sample, the fit is the pooled one; and the pooled one is right."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.calibration import _TemperatureScaling

import fedcal
from conversations import LOGIT_METHODS
from fedcal.exact import linear
from fedcal.exact.linear import (
    FAMILIES,
    apply_linear,
    centre,
    identity,
    linear_sums,
    n_parameters,
    unpack_hessian,
    unpack_symmetric,
    widen,
)
from fedcal.exact.prepared import Prepared
from fedcal.exact.stages import DIAGONAL, prior_of, start
from fedcal.methods import METHODS

CONVEX = ["fed-ts", "fed-bias", "fed-vector", "fed-matrix", "fed-beta", "fed-hist"]


def skewed(n=600, k=4, seed=0, true_t=2.0):
    """Logits of a model that is over-confident, leans to some classes and scales them unevenly."""
    rng = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    lean, scale = torch.linspace(-1, 1, k, dtype=torch.float64), torch.linspace(0.7, 1.3, k, dtype=torch.float64)
    labels = torch.multinomial((scale * logits / true_t - lean).softmax(1), 1, generator=rng)[:, 0]
    return logits, labels


def dealt(logits, labels, n_clients, seed=0):
    owner = torch.from_numpy(np.random.default_rng(seed).integers(n_clients, size=len(labels)))
    return [(logits[owner == c], labels[owner == c]) for c in range(n_clients)]


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("n_clients", [2, 20, 1000])
def test_any_split_gives_the_pooled_parameters(name, n_clients):
    logits, labels = skewed()
    pooled = fedcal.calibrate([(logits, labels)], name)
    split = fedcal.calibrate(dealt(logits, labels, n_clients), name)
    assert set(pooled.params) == set(split.params)
    for key, value in pooled.params.items():
        assert np.allclose(split.params[key], value, rtol=0, atol=1e-10), key


@given(st.integers(2, 6), st.integers(1, 30), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_any_split_of_any_set(k, n_clients, seed):
    logits, labels = skewed(120, k, seed)
    pooled = fedcal.calibrate([(logits, labels)], "fed-bias").params["bias"]
    split = fedcal.calibrate(dealt(logits, labels, n_clients, seed), "fed-bias").params["bias"]
    assert np.allclose(split, pooled, rtol=0, atol=1e-10)


def test_fed_ts_is_scikit_learns_temperature_and_val_ts():
    logits, labels = skewed(5000, 10)
    clients = dealt(logits, labels, 20)
    found = float(fedcal.calibrate(clients, "fed-ts").params["temperature"])
    assert found == pytest.approx(1 / _TemperatureScaling().fit(logits.numpy(), labels.numpy()).beta_, abs=1e-6)
    assert found == pytest.approx(float(fedcal.calibrate(clients, "val-ts").params["temperature"]), abs=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_are_autograds(family, monkeypatch):
    """Of several maps at once, in one block of samples or in many."""
    logits, labels = skewed(50, 4)
    rng = torch.Generator().manual_seed(1)
    z, at = centre(logits), 0.3 * torch.randn(3, n_parameters(family, 4), dtype=torch.float64, generator=rng)

    def loss(t):
        return torch.nn.functional.cross_entropy(apply_linear(family, t, z), labels, reduction="sum")

    hessian, arrays = torch.autograd.functional.hessian(loss, at[0]).numpy(), (at.numpy(), z.numpy(), labels.numpy())
    for block in (1 << 16, 50):
        monkeypatch.setattr(linear, "BLOCK", block)
        sums = linear_sums(family, *arrays)
        assert np.allclose(sums["loss"], [loss(t) for t in at])
        assert np.allclose(sums["grad"], [torch.autograd.functional.jacobian(loss, t).numpy() for t in at])
        assert np.allclose(unpack_hessian(family, sums["hess"]), hessian, atol=1e-10)
        if family != "temperature":
            assert np.allclose(linear_sums(family, *arrays, "diagonal")["diag"], hessian.diagonal())
        if family == "vector":
            cross = linear_sums(family, *arrays, "diagonal")["cross"]
            assert np.allclose(cross, hessian[:4, 4:].diagonal())
        if family == "matrix":
            blocks = unpack_symmetric(linear_sums(family, *arrays, "blocks")["blocks"])
            whole = hessian.reshape(4, 5, 4, 5)
            assert np.allclose(blocks, np.stack([whole[c, :, c] for c in range(4)]), atol=1e-10)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_identity_and_a_wider_family_keep_the_map(family):
    z = centre(skewed(20, 3)[0].numpy())
    assert np.allclose(apply_linear(family, identity(family, 3), z), z)
    bias = np.array([0.7, 0.1, -0.3, 0.2])
    if family in ("vector", "matrix"):
        assert np.allclose(
            apply_linear(family, widen("bias", bias, family, len(bias) - 1), z), apply_linear("bias", bias, z)
        )


@pytest.mark.parametrize(
    ("name", "family", "ridge"),
    [("fed-bias", "bias", 0.1), ("fed-vector", "vector", 10.0), ("fed-matrix", "matrix", 100.0)],
)
def test_the_pooled_fit_is_the_minimum_of_the_penalised_likelihood(name, family, ridge):
    """Against scipy's optimiser on the same objective, started elsewhere."""
    logits, labels = skewed(800, 4)
    fitted = fedcal.calibrate([(logits, labels)], name)
    program = start(4)
    query = next(program)
    while True:  # what the server learns of the samples: the prior's units follow from it
        try:
            query = program.send(query.reply(Prepared(lambda: (logits, labels))))
        except StopIteration as finished:
            clients = finished.value
            break
    prior = prior_of(family, ridge, clients)

    def objective(t):
        if prior.scale(t) <= 0:
            return np.inf, np.zeros(len(t))
        sums = linear_sums(family, t[None], centre(logits.numpy()), labels.numpy(), "none")
        value, gradient = prior(t)
        return float(sums["loss"][0]) + value, sums["grad"][0] + gradient

    begin = np.full(n_parameters(family, 4), 0.3)
    found = minimize(objective, begin, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    assert objective(fitted.params[family])[0] <= found.fun + 1e-9
    assert np.allclose(fitted.params[family], found.x, atol=1e-4)


def test_a_matrix_that_its_ridge_holds_is_still_a_vector():
    """What a strong ridge takes away is what only a matrix has: scales of classes and intercepts stay."""
    clients = [skewed(2000, 5)]
    matrix = fedcal.calibrate(clients, "fed-matrix:ridge=1e9").params["matrix"].reshape(5, 6)
    vector = fedcal.calibrate(clients, f"fed-vector:ridge={DIAGONAL}").params["vector"]
    assert np.allclose(np.append(matrix[:, :5].diagonal(), matrix[:, 5]), vector, atol=1e-5)
    assert np.abs(vector[:5] / vector[:5].mean() - 1).max() > 0.02  # no temperature


def test_lbfgs_reaches_newtons_matrix(monkeypatch):
    from fedcal.exact import stages

    logits, labels = skewed(2000, 5)
    newton = fedcal.calibrate([(logits, labels)], "fed-matrix").predict_proba(logits)
    monkeypatch.setattr(stages, "MATRIX_NEWTON_MAX", 0)
    assert torch.allclose(fedcal.calibrate([(logits, labels)], "fed-matrix").predict_proba(logits), newton, atol=1e-3)


def test_bias_takes_out_a_lean_and_raises_accuracy():
    logits, labels = skewed(4000, 5, seed=1)
    held, held_labels = skewed(4000, 5, seed=2)
    fitted = fedcal.calibrate(dealt(logits, labels, 10), "fed-bias")
    before, after = held.softmax(1), fitted.predict_proba(held)
    assert fedcal.accuracy(after, held_labels) > fedcal.accuracy(before, held_labels) + 0.02
    assert fedcal.ece(after, held_labels) < 0.03 < fedcal.ece(before, held_labels)


DEGENERATE = {
    "one sample": ([[1.0, 2.0, 0.0]], [1]),
    "three samples": ([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [2.0, 2.0, 2.0]], [1, 0, 2]),
    "one class": (torch.randn(80, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(80)),
    "a class nobody has": (torch.randn(200, 4, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 3),
    "constant logits": (torch.zeros(90, 3), torch.arange(90) % 3),
    "all right": (10 * torch.eye(3)[torch.arange(90) % 3], torch.arange(90) % 3),
    "all wrong": (10 * torch.eye(3)[torch.arange(90) % 3], (torch.arange(90) + 1) % 3),
    "huge": (1e4 * torch.randn(90, 3, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3),
    "tiny": (1e-4 * torch.randn(90, 3, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 3),
    "ties": (torch.ones(90, 3) * (torch.arange(90) % 2)[:, None], torch.arange(90) % 3),
    "two classes": (torch.randn(90, 2, generator=torch.Generator().manual_seed(0)), torch.arange(90) % 2),
}


@pytest.mark.filterwarnings("ignore:fed-ts. the fit ended", "ignore:scores of")
@pytest.mark.parametrize("case", DEGENERATE)
@pytest.mark.parametrize("name", [name for name in LOGIT_METHODS if METHODS[name].additive])
def test_degenerate_federations_stay_sane(name, case):
    logits, labels = DEGENERATE[case]
    logits = torch.as_tensor(logits, dtype=torch.float64)
    fitted = fedcal.calibrate([(logits, labels)], name)
    probs = fitted.predict_proba(logits)
    assert torch.isfinite(probs).all() and torch.allclose(probs.sum(1), torch.ones(len(probs), dtype=torch.float64))
    probs = fitted.predict_proba(logits, client=0)
    assert torch.isfinite(probs).all()


def test_a_temperature_at_its_lower_limit_is_told():
    """20 samples without an error: only with the warning can a user know that the probabilities are now 0 and 1."""
    logits, labels = (torch.as_tensor(of) for of in DEGENERATE["all right"])
    with pytest.warns(fedcal.FedCalWarning, match="ended at 0.05, the lowest temperature") as told:
        fedcal.calibrate([(logits[:20], labels[:20])], "fed-ts")
    assert [one.filename for one in told] == [__file__]


def test_a_thousand_clients_of_one_sample():
    logits, labels = skewed(1000, 4)
    single = fedcal.calibrate([(logits[i : i + 1], labels[i : i + 1]) for i in range(1000)], "fedcal-plus")
    assert torch.isfinite(single.predict_proba(logits)).all()
    assert "fallback" not in single.params
    assert fedcal.nll(single.predict_proba(logits), labels) < fedcal.nll(logits.softmax(1), labels)


def test_every_reply_is_a_sum_of_constant_size():
    """The server sees only what `total` gives it, and no message grows with the number of samples."""
    sizes = {}
    for n in (300, 3000):
        fitted = fedcal.calibrate(dealt(*skewed(n, 4), 5), "fedcal-plus")
        sizes[n] = fitted.ledger.bytes_up
    assert sizes[300] == sizes[3000]


def test_keep_leaves_the_order_alone_and_improve_may_move_it():
    logits, labels = skewed(3000, 5, seed=3)
    clients = dealt(logits, labels, 8)
    for informed in (True, False):
        kept = fedcal.calibrate(clients, "fedcal-plus", accuracy="keep", informed=informed).apply(logits)
        assert torch.equal(kept.argsort(dim=1, stable=True), logits.argsort(dim=1, stable=True))
    improved = fedcal.calibrate(clients, "fedcal-plus").apply(logits)
    assert (
        float((improved.argmax(1) == labels).double().mean())
        > float((logits.argmax(1) == labels).double().mean()) + 0.02
    )


def test_a_well_trained_model_is_left_at_its_temperature():
    """Where a bias or a matrix gains nothing, the choice says no: the argmax stays."""
    rng = torch.Generator().manual_seed(0)
    for seed in range(5):
        logits = 2 * torch.randn(1500, 5, generator=rng, dtype=torch.float64)
        labels = torch.multinomial((logits / 1.5).softmax(1), 1, generator=rng)[:, 0]
        fitted = fedcal.calibrate(dealt(logits, labels, 6, seed), "fedcal-plus")
        assert "temperature" in fitted.params


def test_maps_mend_what_a_temperature_cannot():
    """Confidence bent by a power: the top label is right with p³ and p is said."""
    rng = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(12_000, 3, generator=rng, dtype=torch.float64)
    p, top = logits.softmax(1).max(1)
    right = torch.rand(12_000, generator=rng, dtype=torch.float64) < p**3
    labels = torch.where(right, top, (top + 1) % 3)
    clients = dealt(logits[:8000], labels[:8000], 10)
    ece = {
        name: fedcal.ece(fedcal.calibrate(clients, name).predict_proba(logits[8000:]), labels[8000:])
        for name in ("fed-ts", "fed-beta", "fed-hist")
    }
    assert ece["fed-beta"] < 0.6 * ece["fed-ts"] and ece["fed-hist"] < 0.6 * ece["fed-ts"]


def test_rounds_and_bytes_are_counted():
    fitted = fedcal.calibrate(dealt(*skewed(1000, 4), 5), "fed-ts")
    books = fitted.ledger
    assert 2 <= books.rounds <= 12 and books.updates == 5 * books.rounds
    assert books.bytes_up == 2 * 8 and books.bytes_down == 8  # slope and curvature; 1/T
    assert books.total_up == 2 * books.total_down == books.rounds * 16


def test_one_round_of_fed_op_is_enough_to_end():
    logits, labels = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
    assert fedcal.calibrate([(logits, labels)], "fed-op:rounds=1").params


def test_fed_op_trains_by_summed_gradients():
    logits, labels = skewed(3000, 4, true_t=4.0)
    clients = dealt(logits, labels, 5)
    fitted = fedcal.calibrate(clients, "fed-op")
    assert fedcal.nll(fitted.predict_proba(logits), labels) < fedcal.nll(logits.softmax(1), labels)
