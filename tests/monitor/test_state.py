"""The monitor names the site, the class and the cure; it goes on after a restart; it takes nothing twice."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedcal
from fedcal.base.codec import pack, unpack
from fedcal.monitor import Action
from fedcal.monitor.state import BOUNDS, CALIBRATION, LABELS, POOLED, PREDICTIONS
from fedcal.monitor.verdict import Null

PRIORS = {"north": [0.5, 0.3, 0.2], "south": [0.2, 0.5, 0.3], "east": [0.3, 0.3, 0.4]}


def draw(rng, prior, n=80, scale=1.0):
    labels = rng.choice(3, n, p=prior)
    x = 2 * np.eye(3)[labels] + rng.normal(size=(n, 3))
    return scale * 2 * x, labels


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(3)
    samples = {site: draw(rng, prior, 1500) for site, prior in PRIORS.items()}
    return fedcal.calibrate(samples), samples


def stream(federation, weeks, change=None, labelled=True, reference=True, seed=0):
    """A monitor after some weeks, in the second half of which `change` says (site's prior, scale)."""
    scaler, samples = federation
    monitor, rng = fedcal.Monitor(scaler), np.random.default_rng(seed)
    if reference:
        for site in PRIORS:
            monitor.add(monitor.sums(scaler, site, "calibration", *samples[site], reference=True))
    for week in range(weeks):
        for site, usual in PRIORS.items():
            prior, scale = (change or {}).get(site, (usual, 1.0)) if week >= weeks // 2 else (usual, 1.0)
            logits, labels = draw(rng, prior, scale=scale)
            monitor.add(monitor.sums(scaler, site, f"w{week}", logits, labels if labelled else None))
    return monitor


def test_numbers_may_be_of_numpy(federation):
    scaler = federation[0]
    monitor = fedcal.Monitor(scaler, alpha=np.float32(0.5), tolerance=np.float32(0.25))
    assert (type(monitor.alpha), monitor.alpha, type(monitor.tolerance)) == (float, 0.5, float)


def test_shares_of_alpha_sum_to_1():
    assert sum((POOLED, CALIBRATION, LABELS, PREDICTIONS, BOUNDS)) == pytest.approx(1)


def test_no_drift(federation):
    verdict = stream(federation, 20).verdict()
    assert not verdict.drifted and verdict.actions == {} and verdict.headline == "No drift found in 4800 samples."
    assert len(verdict.findings) == 1 + 2 * 3 and max(one.peak for one in verdict.findings) < np.log(20)


def test_a_label_shift_needs_a_new_offset(federation):
    verdict = stream(federation, 24, {"south": ([0.5, 0.2, 0.3], 1.0)}).verdict()
    assert verdict.actions == {"south": Action.NEW_OFFSET} and "south" in verdict.headline
    by = {(one.site, one.null): one for one in verdict.findings if one.drifted}
    labels = by["south", Null.LABELS]
    assert labels.classes[0][:2] in (("0", "more"), ("1", "less")) and labels.since in ("w11", "w12", "w13")
    assert labels.chance < 0.05 and all(site == "south" for site, _ in by)


def test_over_confidence_needs_a_new_fit(federation):
    verdict = stream(federation, 24, {"east": (PRIORS["east"], 3.0)}).verdict()
    assert verdict.actions == {"east": Action.NEW_FIT}
    found = next(one for one in verdict.findings if one.site == "east" and one.null is Null.CALIBRATION)
    assert found.confidence == "over" and "over-confident" in found.cause


def test_predictions_alone_ask_for_labels(federation):
    verdict = stream(federation, 30, {"north": ([0.1, 0.3, 0.6], 1.0)}, labelled=False).verdict()
    assert verdict.actions == {"north": Action.COLLECT_LABELS}
    assert {one.null for one in verdict.findings} == {Null.PREDICTIONS}


def test_a_drift_of_all_sites_is_found_together(federation):
    """So small that no site would notice alone, within these weeks."""
    change = {site: (prior, 1.45) for site, prior in PRIORS.items()}
    verdict = stream(federation, 20, change).verdict()
    assert verdict.actions == {"": Action.NEW_FIT} and "all sites together" in verdict.headline


def test_without_a_prior_shift_a_new_fit_is_all_there_is(federation):
    _, samples = federation
    scaler = fedcal.calibrate(samples, "fed-bias")
    verdict = stream((scaler, samples), 0, reference=False)
    assert verdict.verdict().headline == "No batch was sent yet."
    rng, monitor = np.random.default_rng(0), fedcal.Monitor(scaler, ["north"])
    with pytest.raises(fedcal.FedCalError, match="nothing to compare"):
        monitor.add(monitor.sums(scaler, "north", "w", samples["north"][0]))
    monitor.add(monitor.sums(scaler, "north", "r", *samples["north"], reference=True))
    for week in range(10):
        monitor.add(monitor.sums(scaler, "north", f"w{week}", *draw(rng, [0.05, 0.15, 0.8])))
    assert monitor.verdict().actions == {"north": Action.NEW_FIT}


def test_where_the_probabilities_follow_the_labels_nothing_has_to_be_mended(federation):
    """Cases become harder or easier to tell apart by their features (a covariate shift): posteriors stay right."""
    scaler, _ = federation
    rng, monitor = np.random.default_rng(1), fedcal.Monitor(scaler)
    for week in range(12):
        logits, labels = draw(rng, PRIORS["south"], 400)
        kept = rng.random(400) < (0.1 if week >= 6 else 1) ** (logits[:, 1] < np.median(logits[:, 1]))
        monitor.add(monitor.sums(scaler, "south", f"w{week}", logits[kept], labels[kept]))
    verdict = monitor.verdict()
    assert verdict.actions == {"south": Action.COLLECT_LABELS}
    assert verdict.headline == "The label distribution has changed at south."


def test_it_goes_on_after_a_restart(federation, tmp_path):
    monitor = stream(federation, 6, {"south": ([0.5, 0.2, 0.3], 1.0)})
    monitor.save(tmp_path / "state")
    again = fedcal.Monitor.load(tmp_path / "state")
    assert again.verdict() == monitor.verdict()
    scaler, samples = federation
    for one in (monitor, again):
        assert one.add(one.sums(scaler, "south", "w6", *(part[:50] for part in samples["south"])))
    monitor.save(tmp_path / "one")
    again.save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    json.dumps(again.verdict().to_json(), allow_nan=False)


def test_nothing_is_taken_twice_nor_anything_elses(federation):
    scaler, samples = federation
    monitor = fedcal.Monitor(scaler)
    z, y = (part[:50] for part in samples["north"])
    batch = monitor.sums(scaler, "north", "w0", z, y)
    assert monitor.add(batch)
    before = monitor.verdict()
    assert not monitor.add(batch) and monitor.verdict() == before
    other = fedcal.calibrate({"north": samples["south"]})
    moved = fedcal.Scaler(scaler.method, scaler.params, 3, {"north": {"shift": np.array([1.0, 0.0, 0.0])}})
    for refused, words in (
        (monitor.sums(scaler, "north", "w0", z[:40], y[:40]), "sent before with other sums"),
        (monitor.sums(scaler, "north", "again", z, y), "has the sums of batch 'w0'"),
        (monitor.sums(scaler, "west", "w0", z, y), "unknown site"),
        (monitor.sums(other, "north", "w1", z, y), "another scaler"),
        (monitor.sums(scaler, "north", "w1", z, y, tolerance=0.5), "tolerance 0.5"),
        (monitor.sums(scaler, "north", "r", z, y, reference=True), "after its first batch"),
        (monitor.sums(moved, "north", "w1", z, y), "offset has changed"),
    ):
        with pytest.raises(fedcal.FedCalError, match=words):
            monitor.add(refused)
        assert monitor.verdict() == before


@pytest.mark.parametrize("labelled", [True, False])
def test_other_samples_that_the_model_is_as_sure_of_are_not_taken_for_the_same(federation, labelled):
    """Five samples of one class, all with a probability above 0.9999999: only their small digits tell them apart."""
    scaler, samples = federation
    monitor, rng = fedcal.Monitor(scaler), np.random.default_rng(0)
    monitor.add(monitor.sums(scaler, "north", "r", *samples["north"], reference=True))
    y = np.zeros(5, int) if labelled else None
    weeks = [22 * np.eye(3)[[0] * 5] + rng.normal(size=(5, 3)) for _ in range(50)]
    misses = [1 - scaler.predict_proba(z, "north")[:, 0] for z in weeks]
    assert np.min(misses) > 1e-14 and np.max(misses) < 1e-7
    for number, z in enumerate(weeks):
        assert monitor.add(monitor.sums(scaler, "north", f"w{number}", z, y))
    with pytest.raises(fedcal.FedCalError, match="has the sums of batch 'w7'"):
        monitor.add(monitor.sums(scaler, "north", "again", weeks[7][::-1].copy(), y))


def test_a_new_offset_is_noticed_beside_a_reference(federation, tmp_path):
    """Its predictions would differ from the reference's without any drift."""
    scaler, samples = federation
    z, y = samples["north"]
    monitor = fedcal.Monitor(scaler)
    monitor.add(monitor.sums(scaler, "north", "r", z, y, reference=True))
    monitor.save(tmp_path / "state")
    moved = fedcal.Scaler(scaler.method, scaler.params, 3, {"north": {"shift": np.array([1.0, 0.0, 0.0])}})
    for again in (monitor, fedcal.Monitor.load(tmp_path / "state")):
        for other in (moved, replace(scaler, personal={})):
            for labels in (y[:50], None):
                with pytest.raises(fedcal.FedCalError, match="offset has changed"):
                    again.add(again.sums(other, "north", "w0", z[:50], labels))
        assert again.add(again.sums(scaler, "north", "w0", z[:50], y[:50]))


def test_scores_of_few_values_may_give_the_same_sums_twice(federation, tmp_path):
    """Other samples with the same sums cannot be told from the same samples: only who knows that may add them."""
    scaler, _ = federation
    monitor, z = fedcal.Monitor(scaler, ["north"]), np.tile([2.0, 0.0, 1.0], (5, 1))
    first, second = (
        monitor.sums(scaler, "north", name, z, y) for name, y in {"w0": [0, 0, 0, 1, 2], "w1": [0, 1, 0, 2, 0]}.items()
    )
    monitor.add(first)
    with pytest.raises(fedcal.FedCalError, match="if these are other samples, allow the same sums"):
        monitor.add(second)
    assert monitor.add(second, same_sums=True)
    monitor.save(tmp_path / "state")
    for one in (monitor, fedcal.Monitor.load(tmp_path / "state")):
        before = one.verdict()
        assert before.findings[-1].samples == 10
        assert not one.add(first, same_sums=True) and not one.add(second) and one.verdict() == before


def test_bad_settings_are_one_line(federation):
    scaler, _ = federation
    bare = replace(scaler, personal={})
    for call, words in (
        (lambda: fedcal.Monitor(bare), "no sites"),
        (lambda: fedcal.Monitor(scaler, ["a", "a"]), "twice"),
        (lambda: fedcal.Monitor(scaler, ["a\nb"]), "cannot name a site"),
        (lambda: fedcal.Monitor(scaler, alpha=0), "alpha 0"),
        (lambda: fedcal.Monitor(scaler, alpha=0.9), "alpha 0.9"),
        (lambda: fedcal.Monitor(scaler, tolerance=float("nan")), "tolerance nan"),
        (lambda: fedcal.Monitor.load("nowhere"), "missing"),
    ):
        with pytest.raises(fedcal.FedCalError, match=words):
            call()


@pytest.mark.parametrize(
    ("change", "tensor", "words"),
    [
        ({"sites": ["north"]}, None, "no site"),
        ({"sites": []}, None, "sites"),
        ({"alpha": 3}, None, "alpha"),
        ({"classes": ["0"]}, None, "missing"),
        ({"taken": {"north": [["r", "0" * 32, "reference", 0]]}}, None, "no samples"),
        ({}, ("reference-0/counts", -torch.ones(3).double()), "label counts"),
        ({"streams": []}, None, "no place"),
        ({"taken": {"west": []}}, None, "no site"),
        ({"kind": "scaler"}, None, "not a monitor's"),
        ({}, ("stream-0/curve", torch.zeros(3).double()), "incomplete"),
        ({}, ("stream-0/started", torch.full((18,), float("nan")).double()), "incomplete"),
        ({}, ("stream-0/started", torch.full((18,), float("inf")).double()), "incomplete"),
        ({}, ("stream-0/bounds", torch.zeros(2, 3)), "incomplete"),
        ({}, ("more", torch.zeros(1)), "no place"),
    ],
)
def test_states_that_were_changed_are_refused(federation, tmp_path, change, tensor, words):
    scaler, samples = federation
    monitor = fedcal.Monitor(scaler)
    monitor.add(monitor.sums(scaler, "north", "r", *samples["north"], reference=True))
    monitor.add(monitor.sums(scaler, "south", "w0", *samples["south"]))
    monitor.save(tmp_path / "state")
    tensors, about = unpack((tmp_path / "state").read_bytes())
    (tmp_path / "state").write_bytes(pack(tensors | dict([tensor] if tensor else []), about | change))
    with pytest.raises(fedcal.FedCalError, match=words):
        fedcal.Monitor.load(tmp_path / "state")


def test_evidence_far_below_any_doubt_gives_a_verdict(federation, tmp_path):
    """No batch comes to so little evidence, but a state that was changed may hold it."""
    scaler, samples = federation
    monitor = fedcal.Monitor(scaler)
    monitor.add(monitor.sums(scaler, "south", "w0", *samples["south"]))
    monitor.save(tmp_path / "state")
    tensors, about = unpack((tmp_path / "state").read_bytes())
    little = {name: np.full_like(value, -1e6) for name, value in tensors.items() if name.endswith("/curve")}
    (tmp_path / "state").write_bytes(pack(tensors | little, about))
    found = fedcal.Monitor.load(tmp_path / "state").verdict().findings
    assert little and all(not one.drifted and one.chance == 1 for one in found)
