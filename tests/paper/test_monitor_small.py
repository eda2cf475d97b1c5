"""The study computes all batches at once: the same evidence as `fedcal.Monitor`, batch by batch."""

import numpy as np
import pytest
import torch

import fedcal
from fedcal.monitor.verdict import Null
from paper.studies import monitor_small as study


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("population", study.POPULATIONS, ids=lambda one: one.name)
def test_the_evidence_is_the_monitors(population, reference, monkeypatch):
    monkeypatch.setattr(study, "BATCHES", 4)
    one = study.Federation.draw(population, 30, np.random.default_rng(3))
    monitor = fedcal.Monitor(one.scaler)
    for site in study.SITES:
        if reference:
            monitor.add(monitor.sums(one.scaler, site, "calibration", *one.calibration[site], reference=True))
        logits, labels = one.later[site]
        for at in range(0, len(labels), study.PER_BATCH):
            rows = slice(at, at + study.PER_BATCH)
            monitor.add(monitor.sums(one.scaler, site, f"batch {at}", logits[rows], labels[rows]))
    ratios = {Null.CALIBRATION: one.probabilities(0.25), Null.LABELS: one.label_counts(reference)}
    for null, ratio in ratios.items():
        curves = study.evidence(null, ratio, one.scaler.n_classes, len(study.SITES))
        expected = [found.curve for found in monitor.verdict().findings if found.site and found.null is null]
        torch.testing.assert_close(curves, torch.tensor(expected, dtype=torch.float64))


def test_without_a_prior_shift_label_counts_are_no_evidence(monkeypatch):
    monkeypatch.setattr(study, "BATCHES", 20)
    one_class = study.Population("one class", np.array([[1.0, 0.0]] * len(study.SITES)))
    one = study.Federation.draw(one_class, 30, np.random.default_rng(0))
    assert not any("shift" in personal for personal in one.scaler.personal.values())
    curves = study.evidence(Null.LABELS, one.label_counts(False), 2, len(study.SITES))
    assert float(curves.max()) <= 0


def test_a_small_version_counts_alarms_by_calibration_samples(monkeypatch):
    monkeypatch.setattr(study, "BATCHES", 40)
    few, many = (study.part(study.POPULATIONS[0], n, range(5), (0, 0, n)) for n in (30, 3000))
    assert few["probabilities, tolerance 0.25"] > many["probabilities, tolerance 0.25"] == 0
    assert few["label counts, without"] > few["label counts, with a reference"] == 0


def test_batches_must_not_be_sorted_by_their_evidence():
    found = study.sorted_batches(20, 0)
    assert found["in the order in which they came"] == 0 < found["sorted by the best alternative"]
