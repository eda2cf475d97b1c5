"""`fedcal.evaluate`: sites, groups, scalers, what is hidden, and what bad input meets with."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fedcal
from fedcal import FedCalError
from fedcal.assess.evaluation import SiteSums
from scores import classes, draw


def values(measures):
    """The measures of a set by name, as (value, low, high)."""
    return {
        name: tuple(one[end] for end in ("value", "low", "high"))
        for name, one in measures.items()
        if isinstance(one, dict) and set(one) == {"value", "low", "high"}
    }


def same(a, b):
    a, b = values(a), values(b)
    assert a.keys() == b.keys()
    for name, found in a.items():
        for x, y in zip(found, b[name], strict=True):
            assert x == (None if y is None else pytest.approx(y, rel=1e-7, abs=1e-9)), name


@settings(max_examples=4, deadline=None)
@given(cuts=st.lists(st.integers(0, 240), max_size=3), k=st.sampled_from([2, 3]))
def test_pooled_is_equal_for_any_split_empty_sites_included(cuts, k):
    z, y = classes(240, k)
    edges = [0, *sorted(cuts), 240]
    sites = [(z[i:j], y[i:j]) for i, j in itertools.pairwise(edges)]
    same(fedcal.evaluate(sites, min_count=0).pooled, fedcal.evaluate([(z, y)], min_count=0).pooled)


@pytest.fixture(scope="module")
def result():
    sites = {"a": draw(300, 1), "b": draw(250, 2, a=0.9), "c": draw(200, 3), "empty": (np.zeros(0), np.zeros(0, int))}
    rng = np.random.default_rng(0)
    groups = {
        name: {"sex": rng.choice(["f", "m"], len(y)), "old": rng.choice([0, 1], len(y))}
        for name, (_, y) in sites.items()
    }
    return fedcal.evaluate(sites, groups=groups, thresholds=(0.2, 0.5)), sites, groups


def test_sites_groups_and_both_are_those_of_their_samples(result):
    found, sites, groups = result
    assert list(found.sites) == list(sites) and list(found.groups) == ["sex=f", "sex=m", "old=0", "old=1"]
    same(found.sites["b"], fedcal.evaluate([sites["b"]], thresholds=(0.2,)).pooled)
    x, y = (np.concatenate([sites[s][i] for s in sites]) for i in (0, 1))
    women = np.concatenate([groups[s]["sex"] for s in sites]) == "f"
    same(found.groups["sex=f"], fedcal.evaluate([(x[women], y[women])], thresholds=(0.2,)).pooled)
    here = groups["c"]["old"] == 1
    same(
        found.site_groups["c"]["old=1"],
        fedcal.evaluate([(sites["c"][0][here], sites["c"][1][here])], thresholds=(0.2,)).pooled,
    )
    assert found.sites["empty"]["n"] == 0 and found.sites["empty"]["auroc"]["value"] is None
    assert found.spread["auroc"]["sites"] == 3


def test_json_has_every_measure_with_its_interval(result, tmp_path):
    found = result[0]
    found.save(tmp_path / "r.json")
    read = json.loads((tmp_path / "r.json").read_text())
    assert {"pooled", "sites", "groups", "site_groups", "spread", "verdict"} <= read.keys()
    wanted = (
        "auroc auprc accuracy calibration_intercept calibration_slope oe_ratio ici e50 e90 ece smooth_ece brier nll "
        "net_benefit sensitivity specificity ppv npv brier_calibration brier_discrimination brier_uncertainty prevalence"
    )
    for measures in (read["pooled"], read["sites"]["a"], read["groups"]["old=1"]):
        for name in wanted.split():
            assert measures[name]["low"] <= measures[name]["value"] <= measures[name]["high"], name
    assert read["pooled"]["threshold"] == 0.2 and len(read["pooled"]["decision_curve"]["value"]) == 99
    assert [one["threshold"] for one in read["pooled"]["thresholds"]] == pytest.approx(np.arange(1, 10) / 10)


def test_the_verdict_names_the_site_that_is_off(result):
    said = " ".join(result[0].verdict)
    assert said.startswith("The model is not calibrated.") and "b (too low" in said and "95 % interval" in said
    assert "of 3 sites" in said and "of 4 groups" in said
    calm = fedcal.evaluate({"a": draw(400, 5, a=0, b=1), "b": draw(400, 6, a=0, b=1)})
    assert calm.verdict[0] == "These 800 samples show no sign of miscalibration."


def test_many_samples_show_an_error_that_hardly_matters():
    said = fedcal.evaluate([draw(40_000, 5, a=0.06, b=1)]).verdict
    assert said[0] == "The model is not calibrated."
    assert said[-1].startswith("But the error is small: calibration could remove less than 1 % of the Brier score")


def test_scores_that_separate_the_classes_are_judged_where_they_can_be():
    y = np.arange(200) % 2
    right = fedcal.evaluate([(9.0 * (2 * y - 1) + np.linspace(-1, 1, 200), y)])
    assert right.verdict[0].startswith("The calibration cannot be judged: ") and right.pooled["ici"]["value"] is None
    wrong = fedcal.evaluate([(np.linspace(-2, -1, 200), np.ones(200, int))])
    assert wrong.verdict[0] == "The model is not calibrated."


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("p", [0.0, 1.0])
def test_probabilities_of_exactly_0_and_1_give_json(p, tmp_path):
    mixed = np.array([0.0, 1.0] * 20)
    sites = {"a": (np.full(40, p), np.full(40, 1 - int(p))), "b": (mixed, np.arange(40) // 20), "c": (mixed, mixed > 0)}
    fedcal.evaluate(sites, probs=True, min_count=0).save(tmp_path / "r.json")


def test_one_threshold_may_be_a_number():
    same(fedcal.evaluate([draw(100)], thresholds=0.2).pooled, fedcal.evaluate([draw(100)], thresholds=(0.2,)).pooled)


def test_with_a_scaler():
    sites = {"a": classes(400, 3, 1, scale=3), "b": classes(400, 3, 2, scale=3)}
    scaler = fedcal.calibrate(sites, "fedcal-plus")
    held = {"a": classes(400, 3, 3, scale=3), "b": classes(400, 3, 4, scale=3)}
    before, after = fedcal.evaluate(held), fedcal.evaluate(held, scaler)
    assert after.pooled["nll"]["value"] < before.pooled["nll"]["value"]
    assert before.pooled["calibration_slope"]["high"] < 1
    by_hand = {name: (scaler.predict_proba(z, name), y) for name, (z, y) in held.items()}
    same(fedcal.evaluate(held, scaler, personal=True).pooled, fedcal.evaluate(by_hand, probs=True).pooled)


def test_multi_class_has_macro_means_and_every_class():
    z, y = classes(600, 4)
    found = fedcal.evaluate([(z, np.array(list("abcd"))[y])], min_count=0)
    each = found.pooled["classes"]
    assert list(each) == list("abcd") and found.pooled["ece"]["value"] == pytest.approx(
        fedcal.ece(torch.tensor(z).softmax(1), y)
    )
    mean = np.mean([one["auroc"]["value"] for one in each.values()])
    assert found.pooled["auroc"]["value"] == pytest.approx(mean)
    assert found.pooled["brier"]["value"] == pytest.approx(fedcal.brier(torch.tensor(z).softmax(1), y))


def test_errors_of_calibrated_classes_reach_down_to_zero():
    """The mean over classes of absolute errors may be 0; chance alone makes it larger."""
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(300, 3))
    pooled = fedcal.evaluate([(z, (z + rng.gumbel(size=z.shape)).argmax(1))], min_count=0).pooled
    for name in ("ici", "e50", "e90", "brier_calibration"):
        assert pooled[name]["low"] == 0 and 0 < pooled[name]["value"] < pooled[name]["high"]


def test_many_classes_need_little_memory():
    z, y = classes(200, 300)
    parts = [SiteSums.of(torch.from_numpy(z), torch.from_numpy(y), {}, [0.5]).total]
    assert sum(part.moments.nbytes for part in parts) < 8e6


def test_small_cells_and_those_that_would_give_them_away_are_hidden():
    rng = np.random.default_rng(0)
    sites = {"a": draw(300, 1), "b": draw(120, 2), "c": draw(4, 3)}
    found = fedcal.evaluate(sites)
    assert [one.get("hidden", False) for one in found.sites.values()] == [False, True, True]  # b = all − a − c
    assert found.sites["c"]["n"] is None and found.sites["c"]["auroc"] == {"value": None, "low": None, "high": None}
    assert not any(one.get("hidden") for one in fedcal.evaluate(sites, min_count=0).sites.values())
    groups = {name: np.where(rng.random(len(y)) < 0.01, "rare", "usual") for name, (_, y) in sites.items()}
    found = fedcal.evaluate(sites, groups=groups)
    assert found.groups["rare"]["hidden"] and found.groups["usual"]["hidden"]
    assert all("hidden" in one for site in found.site_groups.values() for one in site.values())


def test_hiding_a_class_of_few_samples_changes_no_other_result():
    z, y = classes(400, 4)
    y[y == 3] = 0
    y[:3] = 3
    whole, some = (fedcal.evaluate([(z, y)], min_count=least, probs=False) for least in (0, 5))
    assert some.pooled["classes"]["3"]["hidden"] and "hidden" not in whole.pooled["classes"]["3"]
    for name in ("ici", "e50", "e90", "brier_calibration", "brier_discrimination"):
        assert some.pooled[name] == whole.pooled[name]
        shown = [k for k in "012" if "hidden" not in some.pooled["classes"][k]]
        assert shown and all(some.pooled["classes"][k][name] == whole.pooled["classes"][k][name] for k in shown)


def test_what_hidden_cells_hold_together_is_not_small_either():
    """Two groups of three samples, of which the total less the third group would tell."""
    x, y = draw(400, 1)
    groups = np.array(["x"] * 2 + ["z"] * 2 + ["f"] * 150 + ["m"] * 246)
    found = fedcal.evaluate({"a": (x, y)}, groups={"a": groups})
    assert [one.get("hidden", False) for one in found.groups.values()] == [True, False, True, True]  # f with x and z
    sent = SiteSums.of(np.stack([0 * x, x], 1), y, {"": groups}, [0.5], min_count=5)
    assert list(sent.groups) == ["m"]


def test_a_hidden_site_does_not_show_through_its_groups():
    """c has four samples. b is hidden for it, and so must be the groups that add up to b."""
    sites = {"a": draw(300, 1), "b": draw(120, 2), "c": draw(4, 3)}
    groups = {name: {"sex": np.resize(["f", "m"], len(sites[name][1]))} for name in "ab"} | {"c": {"age": ["o"] * 4}}
    found = fedcal.evaluate(sites, groups=groups)
    assert all(one["hidden"] for one in found.site_groups["b"].values())
    assert found.groups["sex=f"].get("hidden") or found.groups["sex=m"].get("hidden")  # all − f − m would be c


def test_a_rare_class_does_not_follow_from_the_others():
    """Its number from n less the others' at the site, or from that of all sites less the other site's."""
    z, y = classes(300, 4, 1)
    few = np.flatnonzero(y[150:] == 3)[3:] + 150  # three samples of class 3 are left at the second site
    kept = np.setdiff1d(np.arange(150, 300), few)
    found = fedcal.evaluate({"a": (z[:150], y[:150]), "b": (z[kept], y[kept])})
    at_a, at_b, of_all = ({k for k, one in cell["classes"].items() if one.get("hidden")} for cell in (
        found.sites["a"], found.sites["b"], found.pooled))  # fmt: skip
    assert "3" in at_b and len(at_b) > 1 and at_a == at_b and not of_all
    assert not any(cell.get("hidden") for cell in (found.pooled, *found.sites.values()))


def test_a_site_does_not_send_small_groups():
    x, y = draw(100)
    logits = torch.stack([torch.zeros(100, dtype=torch.float64), torch.from_numpy(x)], dim=1)
    groups = {"sex": np.array(["x"] * 3 + ["f"] * 40 + ["m"] * 57)}
    sent = SiteSums.of(logits, torch.from_numpy(y), groups, [0.5], min_count=5)
    assert sent.total.n == 100 and list(sent.groups) == ["sex=m"]  # f would give x away


@pytest.mark.parametrize("y", [np.zeros(50, int), np.ones(50, int)], ids=["none", "all"])
def test_a_group_of_one_class(y):
    x = np.linspace(-2, 2, 50)
    sites, groups = [draw(200), (x, y)], [["a"] * 200, ["b"] * 50]
    one = fedcal.evaluate(sites, groups=groups).groups["b"]
    assert one["n"] == 50 and one["auroc"]["value"] is None and one["calibration_slope"]["value"] is None
    assert one["brier"]["value"] is not None and one["oe_ratio"]["value"] is not None


def test_one_score_and_few_samples():
    same_score = fedcal.evaluate([(np.zeros(60), np.arange(60) % 2)], probs=False).pooled
    assert same_score["auroc"]["value"] == 0.5 and same_score["ici"]["value"] == pytest.approx(0, abs=1e-9)
    few = fedcal.evaluate([(np.array([1.0, -1.0]), np.array([1, 0]))], min_count=0).pooled
    assert few["auroc"]["value"] == 1 and few["n"] == 2
    assert fedcal.evaluate([(np.array([1.0]), np.array([1]))]).verdict == ["Too few samples to say anything."]
    assert fedcal.evaluate([(np.array([1e6, -1e6]), np.array([1, 0]))], min_count=0).pooled["nll"]["value"] == 0


BAD = {
    "groups of other length": ({"groups": [["f"] * 9]}, "site 0: 9 groups for 100 samples"),
    "groups of another site": ({"groups": {"x": ["f"] * 100}}, "unknown site 'x'"),
    "groups without their list": ({"groups": ["f"] * 100}, "each of the sites .1., not 100"),
    "too many groups": ({"groups": [list(range(100))]}, "more than 50 values"),
    "missing groups": ({"groups": [[None] * 100]}, "site 0: groups must be"),
    "groups that are no list": ({"groups": 3}, "groups must be a mapping"),
    "a threshold outside": ({"thresholds": (0.5, 1.2)}, "between 0 and 1, not 1.2"),
    "no threshold": ({"thresholds": ()}, "no threshold"),
    "groups of one name": ({"groups": [{"a=b": ["c"] * 100, "a": ["b=c"] * 100}]}, "both have 'a=b=c'"),
    "a site without a name": ({"groups": {"": ["f"] * 100}}, "a site has no name"),
    "a negative count": ({"min_count": -1}, "min_count must be"),
    "personal without a scaler": ({"personal": True}, "personal=True needs a scaler"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line(name):
    options, expected = BAD[name]
    with pytest.raises(FedCalError, match=expected) as error:
        fedcal.evaluate({"": draw(100)} if "a site" in name else [draw(100)], **options)
    assert "\n" not in str(error.value)


def test_no_samples_at_all():
    with pytest.raises(FedCalError, match="no samples: every site is empty"):
        fedcal.evaluate([(np.zeros((0, 2)), np.zeros(0, int))])
    with pytest.raises(FedCalError, match="site b has none"):
        fedcal.evaluate({"a": draw(9), "b": draw(9)}, groups={"a": ["f"] * 9})


def test_a_scaler_of_features():
    """It takes six features and gives logits of three classes: the results are those of these logits."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(3, 6))
    x = {name: rng.normal(size=(150, 6)) for name in "ab"}
    sites = {name: (v, (v @ truth.T + rng.gumbel(size=(150, 3))).argmax(1)) for name, v in x.items()}
    scaler = fedcal.calibrate(sites, "fed-head", head=(truth + rng.normal(size=(3, 6)), np.zeros(3)))
    sex = {name: np.resize(["f", "m"], 150) for name in sites}
    for personal in (False, True):
        logits = {name: (scaler.apply(v, name if personal else None), y) for name, (v, y) in sites.items()}
        found = fedcal.evaluate(sites, scaler, sex, personal=personal)
        assert found.to_json() == fedcal.evaluate(logits, None, sex, probs=False).to_json()
        assert found.classes == ["0", "1", "2"]
    assert fedcal.evaluate(list(sites.values()), scaler, list(sex.values())).pooled["n"] == 300
    with pytest.raises(FedCalError, match="client b: this scaler was fitted on 6 features"):
        fedcal.evaluate({"a": sites["a"], "b": (sites["b"][0][:, :3], sites["b"][1])}, scaler)
