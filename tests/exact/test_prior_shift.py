"""Prior shift: right where label shift holds, harmless where it does not, and open to newcomers."""

import numpy as np
import pytest
import torch
from scipy.special import gammaln, log_softmax
from scipy.stats import dirichlet_multinomial

import fedcal
from fedcal.data import load, make_clients
from fedcal.data.synthetic import log_posterior
from fedcal.exact import prior_shift


def federation(beta=0.1, n_clients=12, seed=0):
    """True global logits of label-skewed clients: label shift holds exactly."""
    dataset = load("synthetic", seed=seed)
    clients = make_clients(dataset, n_clients=n_clients, beta=beta, cal_fraction=0.2, seed=seed)
    mean, std = _statistics(dataset, clients)
    return [
        tuple((log_posterior(x * std + mean, seed), y) for x, y in ((c.cal_x, c.cal_y), (c.test_x, c.test_y)))
        for c in clients
    ]


def _statistics(dataset, clients):
    """What standardising took away, so that the true posterior (of raw features) can be asked."""
    raw, standard = dataset.test_x, torch.cat([c.test_x for c in clients])
    return raw.mean(0), (raw.std(0) / standard.std(0))


def test_a_client_gains_what_its_label_distribution_says():
    parts = federation()
    fitted = fedcal.calibrate({str(i): cal for i, (cal, _) in enumerate(parts)}, "fedcal-plus")
    assert float(fitted.params["strengths"] @ prior_shift.STRENGTHS) > 0.8
    gains = []
    for i, (_, (logits, labels)) in enumerate(parts):
        if len(labels) > 50:
            local, whole = fitted.predict_proba(logits, client=i), fitted.predict_proba(logits)
            gains.append(fedcal.nll(whole, labels) - fedcal.nll(local, labels))
    assert np.mean(gains) > 0.1 and np.mean(np.array(gains) > -0.02) == 1


def test_a_newcomer_does_as_well_as_one_that_took_part():
    parts = federation(seed=1)
    whole = fedcal.calibrate({str(i): cal for i, (cal, _) in enumerate(parts)}, "fedcal-plus")
    without = fedcal.calibrate({str(i): cal for i, (cal, _) in enumerate(parts) if i != 0}, "fedcal-plus")
    (cal, labels), (test, test_labels) = parts[0]
    with pytest.raises(fedcal.FedCalError, match="unknown client '0'"):
        without.predict_proba(test, client=0)
    without.welcome(0, cal, labels)
    took_part, newcomer = (fedcal.nll(c.predict_proba(test, client=0), test_labels) for c in (whole, without))
    assert newcomer == pytest.approx(took_part, abs=0.03)
    without.welcome("unlabelled", cal)
    unlabelled = fedcal.nll(without.predict_proba(test, client="unlabelled"), test_labels)
    assert unlabelled < fedcal.nll(without.predict_proba(test), test_labels)


def test_without_label_shift_nothing_is_done():
    """Clients alike in labels, unlike in features: the strength must not act on chance counts."""
    rng = torch.Generator().manual_seed(0)
    clients, tests = {}, {}
    for c in range(12):
        weights = torch.randn(4, 3, generator=rng, dtype=torch.float64)
        x = torch.randn(300, 4, generator=rng, dtype=torch.float64) + c
        logits = x @ weights
        labels = torch.multinomial((logits + 0.0).softmax(1), 1, generator=rng)[:, 0]
        clients[str(c)], tests[str(c)] = (logits[:150], labels[:150]), (logits[150:], labels[150:])
    fitted = fedcal.calibrate(clients, "fedcal-plus")
    for name, (logits, labels) in tests.items():
        local, whole = (fedcal.nll(fitted.predict_proba(logits, client=c), labels) for c in (name, None))
        assert local < whole + 0.05


def test_the_shift_by_hand():
    ratio = prior_shift.log_ratio(np.array([3.0, 1.0]), np.array([0.5, 0.5]), np.array(2.0))
    assert np.allclose(ratio, np.log([4 / 6 / 0.5, 2 / 6 / 0.5]))


def test_the_likelihood_of_counts_is_scipys():
    rng = np.random.default_rng(0)
    counts, prior = rng.poisson(2.0, (6, 4)).astype(float), rng.dirichlet(np.ones(4))
    expected = [
        sum(dirichlet_multinomial.logpmf(row, a * prior, row.sum()) - _orders(row) for row in counts.astype(int))
        for a in prior_shift.ALPHAS
    ]
    assert np.allclose(prior_shift.counts_likelihood(counts, prior), expected)


def _orders(counts):
    """log of how many orders of samples have these counts, which does not depend on α."""
    return gammaln(counts.sum() + 1) - gammaln(counts + 1).sum()


def test_leaving_a_label_out_is_what_it_says():
    """The closed form against counting anew without each sample."""
    rng = np.random.default_rng(0)
    u, y = rng.normal(size=(15, 3)), rng.integers(3, size=15)
    prior, alpha = np.array([0.2, 0.3, 0.5]), np.array(1.5)
    expected = 0.0
    for i in range(15):
        counts = np.bincount(np.delete(y, i), minlength=3).astype(float)
        expected += float(log_softmax(u[i] + prior_shift.log_ratio(counts, prior, alpha), 0)[y[i]])
    counts = np.bincount(y, minlength=3).astype(float)[None]
    found = prior_shift.shift_likelihood([(u, y, np.zeros_like(y))], counts, prior, alpha)
    assert float(found[0, -1]) == pytest.approx(expected)


def test_em_finds_the_label_distribution():
    rng = np.random.default_rng(0)
    dataset = load("synthetic")
    keep = torch.from_numpy(rng.random(len(dataset.test_y)) < np.where(dataset.test_y.numpy() < 3, 1.0, 0.1))
    u = log_posterior(dataset.test_x[keep], 0).numpy()
    params = {"prior": np.full(10, 0.1), "alpha": np.array(1.0), "strengths": np.eye(11)[-1]}
    found = np.exp(prior_shift.shift_unlabelled(params, u) + np.log(0.1))
    truth = np.bincount(dataset.test_y[keep].numpy(), minlength=10) / int(keep.sum())
    assert np.abs(found - truth).sum() / 2 < 0.03
