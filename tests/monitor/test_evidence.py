"""The wealth is a martingale: its mean stays 1 whatever the batch sizes, and it equals the sum over all beginnings."""

import itertools
import math

import pytest
import torch

from fedcal.monitor.evidence import Evidence, cash
from paper.studies import monitor as study


def test_the_recursion_is_the_sum_over_alternatives_and_beginnings():
    torch.manual_seed(0)
    ratios = torch.randn(7, 3, dtype=torch.float64)
    prior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    evidence = Evidence.new(prior.log())
    for row in ratios:
        evidence = evidence.add(row)
    value = 0.0
    for a in range(3):
        for start in range(7):
            value += float(prior[a]) * (cash(start) - cash(start + 1)) * math.exp(float(ratios[start:, a].sum()))
    value += cash(7)
    assert float(evidence.log_value) == pytest.approx(math.log(value), abs=1e-12)
    assert float(evidence.weights.sum()) == pytest.approx(1)


def test_the_mean_is_exactly_1_under_the_null():
    """All outcomes of seven tosses of a coin of 0.3, in batches of 1, 3 and 3, against two alternatives."""
    null, others = 0.3, torch.tensor([0.5, 0.1], dtype=torch.float64)
    mean = 0.0
    for tosses in itertools.product((0, 1), repeat=7):
        y = torch.tensor(tosses, dtype=torch.float64)[:, None]
        ratio = y * (others / null).log() + (1 - y) * ((1 - others) / (1 - null)).log()
        evidence = Evidence.new(torch.tensor([0.5, 0.5], dtype=torch.float64).log())
        for part in ratio.split([1, 3, 3]):
            evidence = evidence.add(part.sum(0))
        mean += float(evidence.log_value.exp()) * null ** sum(tosses) * (1 - null) ** (7 - sum(tosses))
    assert mean == pytest.approx(1, abs=1e-12)


def test_what_waits_is_spent_slowly_and_never_more_than_all():
    assert cash(0) == 1 and all(cash(t) > cash(t + 1) > 0 for t in range(2000))
    assert cash(500) - cash(501) > 1e-5  # after ten years of weekly batches a drift costs 11 nats, not 500


def test_false_alarms_are_rare_and_drifts_are_found():
    """A small version of paper/studies/monitor.py: no tolerance and no drift; then a label shift."""
    rng = torch.Generator().manual_seed(5)
    calm = study.monitor(study.calm(rng), 80, 60, 0.0)
    assert int(study.any_alarm(calm).isfinite().sum()) <= 8  # of 60, 3 are 5 %
    found = study.monitor(study.label_shift(rng), study.DRIFT + 20, 20, 0.25)
    assert bool((found["first"][study.Null.LABELS][:, 0] < study.DRIFT + 15).all())
    assert bool(found["first"][study.Null.LABELS][:, 1:].isinf().all())
