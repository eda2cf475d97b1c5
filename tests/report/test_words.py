from __future__ import annotations

import pytest

from fedcal.report import words


def scores(ece, low, high, floor=0.01, **against):
    """What a test changes in a method's global scores; `against` is by method, _ for -."""
    return {
        "ece": ece,
        "ece_low": low,
        "ece_high": high,
        "ece_floor": floor,
        "ece_against": {name.replace("_", "-"): list(change) for name, change in against.items()},
    }


def changed(results, methods):
    """The real results of these methods alone, with other global scores."""
    found = {name: results["methods"][name] for name in methods}
    for name, new in methods.items():
        found[name]["global"].update(new)
    return results | {"methods": found}


def headline(results):
    return [sentence.replace("\u00a0", " ") for sentence in words.headline(results)]


LOWERS = "fedcal-plus lowers the global ECE from 9.8 % to 3.0 %."
RAISES = "fedcal-plus raises the global ECE from 9.8 % to 15.0 %: worse than no calibration."
UNCLEAR = "fedcal-plus moves the global ECE from 9.8 % to 9.0 %: these samples do not tell the two apart."


def test_a_real_run_in_sentences(digits):
    first, floor, *_, clients = headline(digits)
    before, after = (digits["methods"][name]["global"] for name in ("uncal", "fedcal-plus"))
    assert first.endswith(f"from {100 * before['ece']:.1f} % to {100 * after['ece']:.1f} %.")
    assert f"{100 * after['ece_floor']:.1f} % on these {after['n']} test samples" in floor
    own = digits["methods"]["fedcal-plus"]["own"]["ece"]
    assert f"{100 * own:.1f} % with each client's own" in clients


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
def test_the_first_sentence_claims_what_the_difference_allows(digits, after, said):
    assert headline(changed(digits, {"uncal": scores(0.098, 0.08, 0.12), "fedcal-plus": after}))[0] == said


def test_methods_that_hurt_are_named(digits):
    worse = scores(0.3, 0.05, 0.4, uncal=[0.2, 0.1, 0.3])
    said = " ".join(headline(changed(digits, {"uncal": scores(0.1, 0.09, 0.11), "ens": worse})))
    assert "No federated method lowers the global ECE" in said
    assert "Worse than no calibration: ens." in said


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ([-0.03, -0.04, -0.01], "ens is lower still, 2.0 %."),
        ([-0.03, -0.07, 0.01], "ens is lower still, 2.0 %, though these samples do not tell the two apart."),
    ],
)
def test_a_better_rival_is_named(digits, difference, said):
    rival = scores(0.02, 0.01, 0.05, fedcal_plus=difference)
    assert said in headline(changed(digits, {"fedcal-plus": scores(0.05, 0.04, 0.06), "ens": rival}))


def test_below_the_floor_is_no_victory_over_noise(digits):
    said = headline(changed(digits, {"fedcal-plus": scores(0.02, 0.01, 0.04, floor=0.03)}))
    assert "no more than a perfectly calibrated model" in said[1]


def test_nothing_measured(heart):
    for method in heart["methods"].values():
        method["global"]["ece"] = None
    assert words.headline(heart) == ["No method has a global ECE: the test set is empty or no confidence was defined."]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ((-0.05, -0.07, -0.02), "5.00 points lower"),
        ((0.01, -0.02, 0.03), "1.00 points higher"),
        ((0.02, 0.01, 0.03), "a clear"),
        ((0.0, 0.0, 0.0), "nothing changed"),
    ],
)
def test_a_difference_in_words(change, said):
    text = words.difference(change)
    unclear = change[1] <= 0 <= change[2] and any(change)
    assert said in text and ("not told apart" in text) == unclear
