"""Fits: bounded, whatever they are sent; and as exact with a part of the Hessian as with all of it."""

import numpy as np
import pytest
import torch

import fedcal
from fedcal.errors import FedCalWarning
from fedcal.exact import stages
from fedcal.exact.groups import Group
from fedcal.exact.linear import pack_symmetric
from fedcal.exact.solve import Descent, Prior, inverse_of
from grid_cases import Case

START = np.array([1.0, 0.0, 0.0])
PRIOR = Prior(START, np.array([0.0, 1.0, 1.0]))
FLAT = Prior(START, np.zeros(3))


def group(curvature: str, prior: Prior = PRIOR, rounds: int = 60) -> Group:
    return Group("bias", [Descent(START, prior, 1e-10, rounds)], curvature)


def steps(of: Group, reply) -> int:
    """How many times a fit asks, of one who replies so, before it comes to a finite end."""
    asked, descent = 0, of.descents[0]
    with np.errstate(all="ignore"):  # as at the server
        while not descent.done:
            points = of.ask()
            of.receive(reply(points.at[0]))
            asked += 1
    assert np.isfinite(descent.t).all() and PRIOR.scale(descent.t) > 0
    return asked


def sums(loss: float, gradient: float, hessian: float) -> dict[str, np.ndarray]:
    one = np.ones(3)
    return {
        "loss": np.array([loss]),
        "grad": gradient * one[None],
        "hess": hessian * np.array([1.0, 0, 0, 1, 0, 1]),
        "diag": hessian * one,
    }


NONSENSE = {
    "a negative Hessian": lambda t: sums(1.0, 1.0, -1e10),
    "a gradient beyond all measure": lambda t: sums(1.0, 1e300, 1e-300),
    "not a number": lambda t: sums(np.nan, np.nan, np.nan),
    "infinite": lambda t: sums(np.inf, 1.0, 1.0),
    "nothing": lambda t: sums(0.0, 0.0, 0.0),
    "a loss that only rises": lambda t: sums(float(np.abs(t).sum()), -1.0, 1.0),
}


@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("curvature", ["full", "diagonal"])
def test_whatever_is_replied_a_fit_ends(curvature, reply):
    """Also where curvature is named for what it is not: both kinds travel here."""
    kept = ("loss", "grad", {"full": "hess"}.get(curvature, "diag"))
    assert steps(group(curvature), lambda t: {name: reply(t)[name] for name in kept}) <= 60


def test_a_fit_that_stops_short_says_so(monkeypatch):
    clients = Case((300, 200), 4).clients()
    monkeypatch.setattr(stages, "ROUNDS", 2)
    with pytest.warns(FedCalWarning, match="limit of steps"):
        fedcal.calibrate(clients, "fed-vector")


def test_a_fit_goes_on_with_the_step_that_was_due():
    """Not with the best point that it has seen, which would tell it nothing new, and halve its step."""
    of = group("full", rounds=2)
    seen: list[np.ndarray] = []

    def reply(t: np.ndarray) -> dict[str, np.ndarray]:  # a Hessian four times too large: steps that are too short
        return sums(float(((t - 3) ** 2).sum()) / 2, 0.0, 4.0) | {"grad": (t - 3)[None]}

    while not of.descents[0].done:
        seen.append(of.ask().at[0])
        of.receive(reply(seen[-1]))
    assert of.descents[0].stopped and (of.descents[0].t == seen[-1]).all()  # the best one
    of.descents[0].go_on(1e-10, 60)
    next_one = of.ask().at[0]
    assert not any((next_one == one).all() for one in seen)
    assert reply(next_one)["loss"] < reply(seen[-1])["loss"]


@pytest.mark.parametrize(("hessian", "taken"), [(1e-6, False), (1.0, True)])
def test_a_large_step_is_not_taken_unchecked(hessian, taken):
    """With a curvature that is far too small, a last step that nobody has checked would lead anywhere."""
    of = group("full", FLAT, rounds=1)
    of.descents[0].trusting = True
    of.ask()
    of.receive(sums(1.0, 0.5, hessian))
    assert of.descents[0].stopped and (of.descents[0].t != START).any() == taken


def test_a_fit_that_finds_no_step_says_so():
    of = group("full", FLAT)
    steps(of, lambda t: sums(1e9 * float(np.abs(t - START).sum()), -1.0, 1.0))
    assert "no step" in of.descents[0].stopped


@pytest.mark.parametrize("family", ["bias", "vector", "matrix"])
@pytest.mark.parametrize("share", [1.0, 0.8])
def test_inverses_are_of_the_hessian_with_the_priors(family, share):
    """All of the Hessian, or what couples each class with itself where it couples nothing else."""
    rng, k = np.random.default_rng(0), 3
    clients = stages.Clients(k, 100, np.ones(k), 1.0, 0.7, True)
    prior = stages.prior_of(family, 5.0, clients)
    t = 0.7 * prior.identity + 0.1 * rng.normal(size=len(prior.identity))
    dense = torch.autograd.functional.jacobian(lambda t: _gradient(prior, t), torch.from_numpy(t)).numpy()
    diagonal = 1 + rng.random(len(t))
    own = inverse_of(family, {"diag": diagonal}, prior, t, share)
    if family == "vector":
        own = inverse_of(family, {"diag": diagonal, "cross": np.zeros(k)}, prior, t, share)
    gradient = rng.normal(size=len(t))
    expected = np.linalg.solve(share * np.diag(diagonal) + dense, gradient)
    assert np.allclose(own(gradient), expected)
    if family == "matrix":
        blocks = np.stack([np.diag(row) for row in diagonal.reshape(k, k + 1)])
        packed = np.stack([pack_symmetric(block) for block in blocks])
        assert np.allclose(inverse_of(family, {"blocks": packed}, prior, t, share)(gradient), expected)
    else:
        whole = {"hess": pack_symmetric(np.diag(diagonal))}
        assert np.allclose(inverse_of(family, whole, prior, t, share)(gradient), expected)


def _gradient(prior: Prior, t: torch.Tensor) -> torch.Tensor:
    """The prior's gradient, such that it can be differentiated."""
    towards, precision, identity = map(torch.from_numpy, (prior.towards, prior.precision, prior.identity))
    b = towards @ t
    return precision * (t - b * identity) + (1 / prior.m - 1 / b) * towards


def test_a_start_far_off_is_no_end():
    """All softmaxes are 0 or 1 there, and Newton's first steps far too long."""
    same = np.tile([[3.0, 0.0, -1.0]], (3000, 1))
    clients = [(same, np.arange(3000) % 3), ([[1.0, 2.0, 3.0]], [2])]
    far = np.array([300.0, -300.0, 0.0, 0.0])
    group_of = stages.group_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "group_of", lambda *args: group_of(*args[:-1], far))
        p = fedcal.calibrate(clients, "fed-bias").predict_proba(same[:1])
    np.testing.assert_allclose(p, 1 / 3, atol=0.01)


def test_the_scale_of_a_map_stays_positive():
    below = np.array([-100.0, 0.0, 0.0])
    assert PRIOR.reach(START, below) == pytest.approx(0.009)
    assert PRIOR.reach(START, -below) == 1.0


@pytest.mark.parametrize("method", ["fed-bias", "fed-vector", "fed-matrix"])
def test_many_classes_are_fitted_as_exactly_as_few(method, monkeypatch):
    """Messages that grow with the number of parameters alone lead to the fit that a full Hessian leads to."""
    clients = Case((300, 200), 10).clients()
    logits = clients["client-0"][0]
    newton_fit = fedcal.calibrate(clients, method)
    for limit in ("NEWTON_MAX", "MATRIX_NEWTON_MAX", "BLOCKS_MAX"):
        monkeypatch.setattr(stages, limit, 0)
    other_fit = fedcal.calibrate(clients, method)
    np.testing.assert_allclose(other_fit.predict_proba(logits), newton_fit.predict_proba(logits), rtol=0, atol=2e-6)
    assert other_fit.ledger.bytes_up <= 8 * (4 * newton_fit.params[method.removeprefix("fed-")].size + 1)


@pytest.mark.parametrize(("method", "most"), [("fed-bias", 8), ("fed-vector", 10), ("fedcal-plus", 15)])
@pytest.mark.parametrize("n", [100, 1000])
def test_many_classes_without_any_loss_are_fitted(method, most, n):
    """All probabilities are 0 or 1, so that only the prior knows how the scale is curved: it took steps of 1e284."""
    rng, k = np.random.default_rng(n), 130
    y = rng.integers(k, size=n)
    logits = rng.normal(size=(n, k)) + 1e3 * np.eye(k)[y]
    fitted = fedcal.calibrate([(logits, y)], method)
    assert fitted.ledger.rounds <= most
    assert (fitted.predict_proba(logits[:50])[np.arange(50), y[:50]] > 0.999).all()
