from __future__ import annotations

import copy

import pytest

from fedcal.report import words


def scores(ece, low, high, floor=0.01):
    return {"n": 450, "ece": ece, "ece_low": low, "ece_high": high, "ece_floor": floor}


def results(**methods):
    client = {"ece": 0.1, "ece_floor": 0.08}
    return {"methods": {name: {"global": g, "local": client, "own": client} for name, g in methods.items()}}


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (scores(0.03, 0.02, 0.05), "fedcal lowers the global ECE from 9.8 % to 3.0 %."),
        (
            scores(0.15, 0.13, 0.17),
            "fedcal raises the global ECE from 9.8 % to 15.0 %: worse than no calibration.",
        ),
        (
            scores(0.09, 0.07, 0.10),
            "fedcal moves the global ECE from 9.8 % to 9.0 %; the 95 % intervals overlap.",
        ),
        (scores(0.03, None, None), "fedcal moves the global ECE from 9.8 % to 3.0 %; no interval is known."),
    ],
)
def test_the_first_sentence_claims_what_the_intervals_allow(after, said):
    first = words.headline(results(uncal=scores(0.098, 0.08, 0.12), fedcal=after))[0]
    assert first.replace("\u00a0", " ") == said


def test_methods_that_hurt_are_named():
    said = " ".join(words.headline(results(uncal=scores(0.1, 0.09, 0.11), ens=scores(0.3, 0.2, 0.4))))
    assert "No federated method lowers the global ECE" in said
    assert "Worse than no calibration: ens." in said


def test_a_better_rival_is_named():
    said = words.headline(results(fedcal=scores(0.05, 0.04, 0.06), ens=scores(0.02, 0.01, 0.03)))
    assert any(s.replace("\u00a0", " ").startswith("ens is lower still, 2.0 %.") for s in said)


def test_below_the_floor_is_no_victory_over_noise():
    said = words.headline(results(fedcal=scores(0.02, 0.01, 0.04, floor=0.03)))
    assert "no more than a perfectly calibrated model" in said[1]


def test_nothing_measured(heart):
    empty = copy.deepcopy(heart)
    for method in empty["methods"].values():
        method["global"]["ece"] = None
    assert words.headline(empty) == ["No method has a global ECE: the test set is empty or no confidence was defined."]
