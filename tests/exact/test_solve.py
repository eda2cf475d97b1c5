"""Solvers: bounded, whatever they are sent; and L-BFGS as exact as Newton."""

import numpy as np
import pytest
import torch

import fedcal
from fedcal.errors import FedCalWarning
from fedcal.exact import stages
from fedcal.exact.solve import Prior, by_class, lbfgs, newton
from grid_cases import Case

START = torch.tensor([1.0, 0.0], dtype=torch.float64)
PRIOR = Prior(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64), g=1.0)
SOLVERS = {"newton": lambda: newton(START, PRIOR), "lbfgs": lambda: lbfgs(START, PRIOR, by_class)}


def steps(solver, reply) -> int:
    """How many times a solver asks, of one who replies so, before it comes to a finite end."""
    t, asked, found = next(solver), 1, None
    while found is None:
        try:
            t, asked = solver.send(reply(t)), asked + 1
        except StopIteration as finished:
            found = finished.value
    assert torch.isfinite(found).all()
    return asked


def sums(loss: float, gradient: float, hessian: float) -> dict[str, torch.Tensor]:
    one = torch.ones(2, dtype=torch.float64)
    return {
        "loss": torch.tensor(loss, dtype=torch.float64),
        "grad": gradient * one,
        "hess": hessian * torch.eye(2, dtype=torch.float64),
        "diag": hessian * one,
    }


NONSENSE = {
    "a negative Hessian": lambda t: sums(1.0, 1.0, -1e10),
    "a gradient beyond all measure": lambda t: sums(1.0, 1e300, 1e-300),
    "not a number": lambda t: sums(np.nan, np.nan, np.nan),
    "infinite": lambda t: sums(np.inf, 1.0, 1.0),
    "nothing": lambda t: sums(0.0, 0.0, 0.0),
    "a loss that only rises": lambda t: sums(float(t.abs().sum()), -1.0, 1.0),
}


@pytest.mark.filterwarnings("ignore::fedcal.errors.FedCalWarning")
@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE)
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_whatever_is_replied_a_solver_ends(solver, reply):
    assert steps(solver(), reply) <= 200


@pytest.mark.parametrize("solver", [newton, lambda *args, **kw: lbfgs(args[0], args[1], by_class, **kw)])
def test_a_solver_that_stops_short_says_so(solver):
    flat = Prior(torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    with pytest.warns(FedCalWarning, match="limit of 5 steps"):
        steps(solver(START, flat, max_rounds=5), lambda t: sums(-float(t.sum()), -1.0, 1.0))  # falls for ever


def test_a_solver_that_finds_no_step_says_so():
    with pytest.warns(FedCalWarning, match="no step"):
        steps(newton(START, PRIOR), lambda t: sums(1e9 * float((t - START).abs().sum()), -1.0, 1.0))


def test_a_start_far_off_is_no_end():
    """All softmaxes are 0 or 1 there, and Newton's first steps far too long."""
    same = np.tile([[3.0, 0.0, -1.0]], (3000, 1))
    clients = [(same, np.arange(3000) % 3), ([[1.0, 2.0, 3.0]], [2])]
    far = torch.tensor([300.0, -300.0, 0.0, 0.0], dtype=torch.float64)
    start = stages.prior_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "prior_of", lambda *args: (far, start(*args)[1]) if args[0] == "bias" else start(*args))
        p = fedcal.calibrate(clients, "fed-bias").predict_proba(same[:1])
    np.testing.assert_allclose(p, 1 / 3, atol=0.01)


def test_the_scale_of_a_map_stays_positive():
    below = torch.tensor([-100.0, 0.0], dtype=torch.float64)
    assert PRIOR.reach(START, below) == pytest.approx(0.009)
    assert PRIOR.reach(START, -below) == 1.0


@pytest.mark.parametrize("method", ["fed-bias", "fed-vector", "fed-matrix"])
def test_many_classes_are_fitted_as_exactly_as_few(method, monkeypatch):
    """Messages that grow with the number of parameters alone lead to the fit that a full Hessian leads to."""
    clients = Case((300, 200), 10).clients()
    logits = clients["client-0"][0]
    newton_fit = fedcal.calibrate(clients, method)
    monkeypatch.setattr(stages, "NEWTON_MAX", 0)
    monkeypatch.setattr(stages, "BLOCKS_MAX", 0)
    other_fit = fedcal.calibrate(clients, method)
    np.testing.assert_allclose(other_fit.predict_proba(logits), newton_fit.predict_proba(logits), rtol=0, atol=2e-6)
    assert other_fit.ledger.bytes_up <= 8 * (4 * newton_fit.params[method.removeprefix("fed-")].numel() + 1)
