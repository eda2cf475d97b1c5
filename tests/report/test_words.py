from __future__ import annotations

import copy

import pytest

from fedcal.report import words


def scores(ece, low, high, floor=0.01, **against):
    found = {"n": 450, "ece": ece, "ece_low": low, "ece_high": high, "ece_floor": floor}
    return found | ({"ece_against": against} if against else {})


def results(**methods):
    client = {"ece": 0.1, "ece_floor": 0.08}
    return {"methods": {name: {"global": g, "local": client, "own": client} for name, g in methods.items()}}


LOWERS = "fedcal lowers the global ECE from 9.8 % to 3.0 %."
RAISES = "fedcal raises the global ECE from 9.8 % to 15.0 %: worse than no calibration."
UNCLEAR = "fedcal moves the global ECE from 9.8 % to 9.0 %: these samples do not tell the two apart."


@pytest.mark.parametrize(
    ("after", "said"),
    [
        # the difference on the same samples decides, whatever the two intervals do
        (scores(0.03, 0.02, 0.09, uncal=[-0.068, -0.08, -0.05]), LOWERS),
        (scores(0.15, 0.1, 0.17, uncal=[0.052, 0.01, 0.07]), RAISES),
        (scores(0.09, 0.07, 0.10, uncal=[-0.008, -0.02, 0.001]), UNCLEAR),
        (scores(0.09, 0.01, 0.02, uncal=[-0.008, -0.02, 0.001]), UNCLEAR),
        # where it was not measured, the intervals must be apart
        (scores(0.03, 0.02, 0.05), LOWERS),
        (scores(0.15, 0.13, 0.17), RAISES),
        (scores(0.09, 0.07, 0.10), UNCLEAR),
        (scores(0.09, 0.07, 0.10, uncal=[None, None, None]), UNCLEAR),
        (scores(0.09, None, None), UNCLEAR),
    ],
)
def test_the_first_sentence_claims_what_the_difference_allows(after, said):
    first = words.headline(results(uncal=scores(0.098, 0.08, 0.12), fedcal=after))[0]
    assert first.replace("\u00a0", " ") == said


def test_methods_that_hurt_are_named():
    worse = scores(0.3, 0.05, 0.4, uncal=[0.2, 0.1, 0.3])
    said = " ".join(words.headline(results(uncal=scores(0.1, 0.09, 0.11), ens=worse)))
    assert "No federated method lowers the global ECE" in said
    assert "Worse than no calibration: ens." in said


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ([-0.03, -0.04, -0.01], "ens is lower still, 2.0 %."),
        ([-0.03, -0.07, 0.01], "ens is lower still, 2.0 %, though these samples do not tell the two apart."),
    ],
)
def test_a_better_rival_is_named(difference, said):
    found = results(fedcal=scores(0.05, 0.04, 0.06), ens=scores(0.02, 0.01, 0.05, fedcal=difference))
    assert said in [s.replace("\u00a0", " ") for s in words.headline(found)]


def test_below_the_floor_is_no_victory_over_noise():
    said = words.headline(results(fedcal=scores(0.02, 0.01, 0.04, floor=0.03)))
    assert "no more than a perfectly calibrated model" in said[1]


def test_nothing_measured(heart):
    empty = copy.deepcopy(heart)
    for method in empty["methods"].values():
        method["global"]["ece"] = None
    assert words.headline(empty) == ["No method has a global ECE: the test set is empty or no confidence was defined."]
