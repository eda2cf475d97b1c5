"""Fits of a last layer at a given ridge: another library's optimum, however the samples are split."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedcal.exact import head_fit
from fedcal.exact.head import HEAD, HEAD_ALL
from fedcal.exact.head_queries import HeadStart
from fedcal.exact.head_samples import HeadSamples
from fedcal.exact.head_units import Units
from fedcal.exact.prepared import ALL, Prepared
from heads import clients_of, dealt, drive, federation, fit_head, whole


@pytest.mark.parametrize(
    ("k", "d", "ridge", "family"),
    [(3, 5, 1.0, HEAD), (2, 1, 0.5, HEAD_ALL), (10, 120, 1.0, HEAD_ALL), (25, 6, 1.0, HEAD)],
)
def test_the_fit_is_the_convex_optimum(k, d, ridge, family):
    """Against scikit-learn: the model's own logits are 0, and the ridge is the same for all parameters."""
    x, y, _ = federation(600, k, d, seed=1)
    samples = whole(x, y, (np.zeros((k, d)), np.zeros(k)), trained=200)
    kept = slice(0, 600 if family == HEAD_ALL else 400)
    found, rounds = drive(fit_head(family, ridge, clients_of(k, 400)), samples)
    mean, cov = x.mean(0), np.cov(x.T, bias=True).reshape(d, d)
    spread = np.sqrt(0.5 * np.diag(cov) + 0.5 * np.diag(cov).mean())
    standard = np.c_[(x - mean) / spread, np.ones(len(x))][kept]
    model = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-12, max_iter=5000, solver="newton-cg")
    one_more = np.r_[y[kept], np.arange(k)]  # all classes, with no weight, so that it fits them all
    model.fit(np.r_[standard, np.zeros((k, d + 1))], one_more, np.r_[np.ones(len(y[kept])), np.full(k, 1e-300)])
    coef = np.r_[-model.coef_, model.coef_] / 2 if k == 2 else model.coef_
    if k == 2:  # its two-class form has one row: the same optimum at twice the ridge
        model = LogisticRegression(C=2 / ridge, fit_intercept=False, tol=1e-12, max_iter=5000, solver="newton-cg")
        model.fit(standard, y[kept])
        coef = np.r_[-model.coef_, model.coef_] / 2
    expected = standard @ coef.T
    rows = found[1:].reshape(k, d + 1)
    mine = x[kept] @ rows[:, :d].T + rows[:, d]
    mine, expected = (u - u.mean(1, keepdims=True) for u in (mine, expected))
    assert np.allclose(mine, expected, atol=2e-4 if k > 20 else 2e-5)
    assert rounds <= 60


@pytest.mark.parametrize("parts", [2, 7, 300])
def test_any_split_gives_the_pooled_fit(parts):
    """At a given ridge; folds lie inside each client, so that only the choice among ridges may depend on the split."""
    x, y, head = federation()
    several = [*dealt(x, y, parts), (x[:0], y[:0])]
    clients = [whole(*pair, head, trained=len(pair[1]) // 3) for pair in several if len(pair[1])]
    held_out = sum(len(client.labels) for client in clients)
    together = tuple(np.concatenate([getattr(c.rows, of) for c in clients]) for of in ("logits", "labels"))
    pooled = HeadSamples(Prepared(lambda: together), 6)
    assert len(pooled.labels) == held_out and len(pooled.trained_labels) == 900 - held_out
    expected, _ = drive(fit_head(HEAD_ALL, 3.0, clients_of(4, held_out)), pooled)
    program = fit_head(HEAD_ALL, 3.0, clients_of(4, held_out))
    query, found = next(program), None
    while found is None:
        replies = [query.reply(client) for client in clients]
        try:
            query = program.send({name: sum(reply[name] for reply in replies) for name in replies[0]})
        except StopIteration as done:
            found = done.value
    assert np.allclose(found, expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("rounds", [2, 60])
def test_a_fit_that_does_not_come_to_its_end_stays_as_it_was_judged(rounds, monkeypatch):
    """What it is judged by, the fits without a fold, did not come to theirs either."""
    monkeypatch.setattr(head_fit, "CHOOSING_ROUNDS", 2)
    monkeypatch.setattr(head_fit, "FOLD_ROUNDS", rounds)
    x, y, head = federation(600, 10, 110, seed=2)

    def program():
        clients = clients_of(10, 400)
        units = Units.of((yield HeadStart()), clients)
        candidates = yield from head_fit.fit_heads((2.0,), units, clients)
        before = [of.whole for of in candidates]
        yield from head_fit.finish_heads(candidates)
        return candidates, before

    (candidates, before), _ = drive(program(), whole(x, y, head, trained=200))
    for of, judged in zip(candidates, before, strict=True):
        assert of.folds[ALL].arrived == (rounds == 60) == (of.whole != judged).any()
