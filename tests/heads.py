"""Federations whose samples are features, and fits of their last layers with one client."""

from __future__ import annotations

import numpy as np

from fedcal.exact.head_fit import UNSURE, HeadGroup, fit_together
from fedcal.exact.head_queries import HeadStart
from fedcal.exact.head_samples import HeadSamples, join
from fedcal.exact.head_units import Units, head_curvature_of, own_head, prior_of_head
from fedcal.exact.prepared import Prepared
from fedcal.exact.solve import Descent
from fedcal.exact.stages import Clients


def federation(n=900, k=4, d=6, seed=0, good_head=False, scale=1.0):
    """Features, labels that follow a softmax of them, and a head: the true one, or one that has drifted."""
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=(k, d))
    x = rng.normal(size=(n, d))
    y = (x @ truth.T + rng.gumbel(size=(n, k))).argmax(1)
    head = 2 * truth if good_head else truth + 1.5 * rng.normal(size=(k, d))
    return scale * x, y, (head / scale, np.zeros(k))


def dealt(x, y, parts, seed=0):
    """The samples over so many clients of very different sizes."""
    order = np.random.default_rng(seed).permutation(len(y))
    cuts = np.sort(np.random.default_rng(seed + 1).integers(0, len(y), size=parts - 1))
    return [(x[rows], y[rows]) for rows in np.split(order, cuts)]


def whole(x, y, head, trained=0):
    """All samples as one client's; the last ones as training samples."""
    weight, bias = (np.asarray(part, float) for part in head)
    x = np.asarray(x, float)
    rows = join(x @ weight.T + bias, x)
    rows[len(y) - trained :, -1] = 1.0
    return HeadSamples(Prepared(lambda: (rows, y)), x.shape[1])


def drive(program, samples):
    """Run a program with one client; return what it returns, and the rounds."""
    query, rounds = next(program), 1
    while True:
        try:
            query, rounds = program.send(query.reply(samples)), rounds + 1
        except StopIteration as done:
            return done.value, rounds


def clients_of(k, n):
    return Clients(k, float(n), np.ones(k), 1.0, 1.0, True)


def fit_head(family, ridge, clients):
    """One head at one ridge, on all samples, to the end; in the units of the features as they are."""
    units = Units.of((yield HeadStart()), clients)
    descent = Descent(UNSURE * own_head(units, clients), prior_of_head(ridge, units, clients), 1e-11, 240)
    yield from fit_together([HeadGroup(family, [descent], units, head_curvature_of(units.k))])
    return units.raw(descent.t)
