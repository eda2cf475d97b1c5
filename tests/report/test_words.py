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


def test_a_real_run_in_sentences(digits):
    first, error, accuracy, clients = headline(digits)
    before, after = (digits["methods"][name]["global"] for name in ("uncal", "fedcal-plus"))
    assert "fedcal-plus" in first and f"from {100 * before['ece']:.1f} % to {100 * after['ece']:.1f} %" in error
    assert f"would show {100 * after['ece_floor']:.1f} % here" in error and "ECE: how far" in error
    assert f"{100 * after['accuracy']:.1f} %" in accuracy
    own = digits["methods"]["fedcal-plus"]["pooled_own"]
    assert f"accuracy is {100 * own['accuracy']:.1f} % and the ECE {100 * own['ece']:.1f} %" in clients


CALIBRATED = "Calibrated: after fedcal-plus, these 450 test samples show no sign of miscalibration."
BETTER = "Better, but not calibrated yet: fedcal-plus removes a part of the error."
WORSE = "Do not use it: fedcal-plus makes the probabilities worse than no calibration."
UNCLEAR = "These 450 test samples do not show that fedcal-plus helps."


@pytest.mark.parametrize(
    ("after", "status", "said", "verb"),
    [
        # the difference on the same samples decides, whatever the two intervals do
        (scores(0.03, 0.02, 0.09, uncal=[-0.068, -0.08, -0.05]), "better", BETTER, "falls"),
        (scores(0.03, 0.0, 0.09, uncal=[-0.068, -0.08, -0.05]), "calibrated", CALIBRATED, "falls"),
        (scores(0.03, 0.0, 0.09, uncal=[-0.068, -0.08, 0.05]), "calibrated", CALIBRATED, "goes"),
        (scores(0.15, 0.1, 0.17, uncal=[0.052, 0.01, 0.07]), "worse", WORSE, "rises"),
        (scores(0.15, 0.0, 0.17, uncal=[0.052, 0.01, 0.07]), "worse", WORSE, "rises"),
        (scores(0.09, 0.07, 0.10, uncal=[-0.008, -0.02, 0.001]), "unknown", UNCLEAR, "goes"),
        # where it was not measured, the intervals must be apart
        (scores(0.03, 0.02, 0.05), "better", BETTER, "falls"),
        (scores(0.15, 0.13, 0.17), "worse", WORSE, "rises"),
        (scores(0.09, 0.07, 0.10), "unknown", UNCLEAR, "goes"),
        (scores(0.09, 0.07, 0.10, uncal=[None, None, None]), "unknown", UNCLEAR, "goes"),
        (scores(0.09, None, None), "unknown", UNCLEAR, "goes"),
    ],
)
def test_the_verdict_claims_what_the_difference_allows(digits, after, status, said, verb):
    results = changed(digits, {"uncal": scores(0.098, 0.08, 0.12), "fedcal-plus": after})
    first, error, *_ = headline(results)
    assert (words.status(results), first) == (status, said)
    assert f"{verb} from 9.8 %" in error and ("too few to prove" in error) == (verb == "goes")


def test_calibrated_before_and_after(digits):
    fine = scores(0.02, 0.0, 0.05, uncal=[0.0, -0.01, 0.01])
    said = headline(changed(digits, {"uncal": scores(0.02, 0.0, 0.05), "fedcal-plus": fine}))[0]
    assert said == "These 450 test samples show no sign of miscalibration, before or after fedcal-plus."


def test_a_change_of_accuracy_is_claimed_where_intervals_are_apart(digits):
    def said(before, after):
        methods = {"uncal": {"accuracy": before}, "fedcal-plus": {"accuracy": after}}
        return headline(changed(digits, methods))[2]

    assert said(0.7, 0.9) == "Accuracy rises from 70.0 % to 90.0 %."
    assert said(0.9, 0.7) == "Accuracy falls from 90.0 % to 70.0 %."
    assert said(0.7, 0.72) == "Accuracy: 70.0 % before, 72.0 % after."
    assert said(0.7, 0.7) == "Accuracy stays at 70.0 %."


def test_methods_that_hurt_are_named(digits):
    worse = scores(0.3, 0.05, 0.4, uncal=[0.2, 0.1, 0.3])
    results = changed(digits, {"uncal": scores(0.1, 0.09, 0.11), "ens": worse})
    assert headline(results)[0] == "The model is not calibrated, and no federated method lowers its ECE."
    assert words.other_methods(results) == ["Worse than no calibration: ens."]


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ([-0.03, -0.04, -0.01], "ens has a lower global ECE than fedcal-plus, 2.0 %."),
        ([-0.03, -0.07, 0.01], "ens has a lower global ECE than fedcal-plus, 2.0 %, though these samples do not tell"),
    ],
)
def test_a_better_rival_is_named(digits, difference, said):
    rival = scores(0.02, 0.01, 0.05, fedcal_plus=difference)
    others = words.other_methods(changed(digits, {"fedcal-plus": scores(0.05, 0.04, 0.06), "ens": rival}))
    assert others[0].replace("\u00a0", " ").startswith(said)


def test_nothing_measured(heart):
    for method in heart["methods"].values():
        method["global"]["ece"] = None
    assert words.headline(heart) == ["No method has an ECE: the test set is empty or no confidence was defined."]
    assert words.status(heart) == "unknown" and words.other_methods(heart) == []


def test_notes_in_words():
    assert words.remarks({"degenerate": 0.0}) == words.remarks({}) == ""
    said = words.remarks({"degenerate": 0.25, "steps": 31.4, "permuted_share": 0.5, "map_gain": 0.01234})
    assert said.replace("\u00a0", " ") == (
        "25 % of the clients' fits fell back: too few samples; 31 training steps at a client, on average; "
        "weight matching moved 50 % of the hidden units; map gain: 0.0123"
    )


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
    assert said in text and ("no clear difference" in text) == unclear
