"""The verdict in plain words says what the figures say."""

from __future__ import annotations

import re

import numpy as np

import fedcal
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
