"""The verdict in plain words says what the figures say."""

from __future__ import annotations

import re

import numpy as np

import fedcal
from fedcal.assess.verdict import status
from fedcal.report.evaluation import next_steps
from scores import classes, draw


def test_a_site_of_several_classes_is_not_said_to_have_too_many_or_too_few_events():
    """All classes' events are as many as are predicted: the mean of the classes' ratios tells nothing of the level."""
    rng = np.random.default_rng(0)
    rare = rng.choice(5, 4000, p=[0.6, 0.2, 0.1, 0.07, 0.03])
    sites = {"a": classes(1000, 5, 1, 1.0), "b": (rng.normal(size=(4000, 5)) + 1.5 * np.eye(5)[rare], rare)}
    result = fedcal.evaluate(sites)
    assert result.sites["b"]["oe_ratio"]["low"] > 1 or result.sites["b"]["oe_ratio"]["high"] < 1
    said = " ".join(result.verdict)
    assert re.search(r"Not calibrated in .* sites: .*\bb\b", said) and "events" not in said


def test_a_site_of_two_classes_is():
    result = fedcal.evaluate({"a": draw(2000, 1, a=0.0, b=1.0), "b": draw(2000, 2, a=1.0, b=1.0)})
    assert re.search(r"b \(too low, 1\.\d\d events for each one predicted\)", " ".join(result.verdict))


def test_wrong_probabilities_of_classes_are_found_though_the_confidence_is_right():
    """The predicted class is right as often as it says, but two of the other classes have changed places."""
    rng = np.random.default_rng(0)
    z = 1.5 * rng.normal(size=(3000, 4))
    labels = (z + rng.gumbel(size=z.shape)).argmax(1)
    right = fedcal.evaluate({"a": (z, labels)})
    assert right.verdict[0] == "These 3000 samples show no sign of miscalibration."
    rows, order = np.arange(len(z)), np.argsort(z, axis=1)
    wrong = z.copy()
    wrong[rows, order[:, 0]], wrong[rows, order[:, 2]] = z[rows, order[:, 2]], z[rows, order[:, 0]]
    result = fedcal.evaluate({"a": (wrong, labels)})
    assert result.pooled["tests"]["score"]["p"] > 0.05, "the confidence is as right as before"
    assert result.verdict[0] == "The confidence is right overall, but the probabilities of the classes are not."
    assert re.fullmatch(r"Furthest off is the probability of class [0-3]: \d+\.\d %\.", result.verdict[2])
    assert next_steps(status(result.pooled, result.sites, result.groups), False, False, True)[0][0].startswith(
        "Calibrate"
    )
    missed = np.flatnonzero(labels == order[:, 0])[:5]  # as by small forests: outcomes with a probability of 0
    wrong[missed, labels[missed]] = -100
    result = fedcal.evaluate({"a": (wrong, labels)})
    assert result.pooled["ici"]["low"] is None and result.pooled["tests"]["score"]["p"] > 0.05
    assert result.verdict[0] == "The confidence is right overall, but the probabilities of the classes are not."
