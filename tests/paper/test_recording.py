"""A cell trained, recorded and fitted from the record, against the same federation run the ordinary way."""

import json

import pytest
import torch

import fedcal
from fedcal import Config
from paper import cells, logits
from paper.recording import Recording
from paper.results import read
from paper.studies import few_rounds, few_samples

CELL = Config(data="digits", model="mlp", clients=4, clients_per_round=2, rounds=3, epochs=1, beta=0.5)
NAMES = ("uncal", "val-ts", "fed-ts", "fedcal", "fedcal-literal")
FITTED = {name: cells.FITTED[name] for name in NAMES}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    where = tmp_path_factory.mktemp("cells")
    said = []
    folders = list(cells.train([CELL], where / "runs", said.append))
    found = cells.fit(folders, where / "results", said.append, FITTED, workers=1)
    return where, folders, found[0], said


def test_the_record_gives_what_the_run_gives(recorded):
    _, _, found, _ = recorded
    expected = fedcal.run(fedcal.Config(**{**vars(CELL), "method": NAMES}))["methods"]
    for name in NAMES:
        for metric in ("accuracy", "ece", "nll", "ece_floor"):
            near = 1e-6 if name in ("uncal", "val-ts", "fed-ts") else 2e-3  # nets are trained in stacks here
            assert found["methods"][name]["global"][metric] == pytest.approx(expected[name]["global"][metric], abs=near)


def test_the_rounds_are_recorded(recorded):
    _, folders, _, _ = recorded
    record = Recording(folders[0])
    seen = record.round(1)
    assert len(seen) == 2
    for name, (found, labels) in seen.items():
        assert found.shape == (len(labels), 10) and torch.equal(labels, record.train_labels[name])


def test_studies_read_the_same_samples_and_measure_both_variants(recorded):
    _, folders, _, _ = recorded
    for split, found in zip(("cal", "test"), logits.read(folders[0]), strict=True):
        expected = Recording(folders[0]).samples(split)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[c][i], expected[c][i]) for c in expected for i in (0, 1))
    improve, keep = (few_rounds.measure(folders[0], parts=0)[name] for name in few_rounds.METHODS)
    uncal = recorded[2]["methods"]["uncal"]["global"]
    assert keep["global"]["accuracy"] == uncal["accuracy"] and improve["rounds"] <= 20
    assert improve["global"]["nll"] < uncal["nll"] > keep["global"]["nll"]


def test_parts_of_the_calibration_samples_are_disjoint_and_test_samples_stay_closed(recorded, monkeypatch):
    _, folders, _, _ = recorded
    cal, _ = logits.read(folders[0])
    parts = [logits.deal(cal, 3, i) for i in range(3)]
    for name, (z, y) in cal.items():
        assert sum(len(of[name][1]) for of, _ in parts if name in of) == len(y)
        for of, rest in parts:
            both = torch.cat([*(p[name][0] for p in (of, rest) if name in p)])
            assert torch.equal(both.sort(0).values, z.sort(0).values)
    monkeypatch.setattr(logits, "read", lambda path: (cal, None))
    found = few_rounds.measure(folders[0], parts=2)["fedcal-plus"]
    assert 0 < found["global"]["ece"] < 1 and len(found["family"]) == 2


def test_few_samples_are_measured_on_all_others(recorded, monkeypatch):
    _, folders, _, _ = recorded
    cal, _ = logits.read(folders[0])
    monkeypatch.setattr(few_samples, "SIZES", (50,))
    (row,) = few_samples.measure(folders[0], draws=1)
    n = sum(len(y) for _, y in cal.values())
    few, others = logits.deal(cal, max(2, round(n / 50)), 0)
    assert row["n"] == sum(len(y) for _, y in few.values()) < n
    z, y = (torch.cat([pair[i] for pair in others.values()]) for i in (0, 1))
    fitted = fedcal.calibrate(few, "fedcal-plus")
    for name, scores in (("uncal", z), ("fedcal-plus", torch.as_tensor(fitted.apply(z)))):
        assert row[name] == pytest.approx(float(torch.nn.functional.cross_entropy(scores, y)), abs=1e-9)
    (line,) = few_samples.table([row], "digits").rows
    assert line[:2] == [50, 1] and line[-2].startswith(f"{row['uncal'] - row['fedcal-plus']:.3f}, ")


def test_a_second_time_nothing_is_done_again(recorded, monkeypatch):
    where, folders, found, _ = recorded
    monkeypatch.setattr(cells, "_train_group", lambda *a: pytest.fail("trained again"))
    monkeypatch.setattr(cells, "fit_cell", lambda *a: pytest.fail("measured again"))
    assert list(cells.train([CELL], where / "runs", print)) == folders
    assert cells.fit(folders, where / "results", print, FITTED) == [found]
    assert list(read(where / "results" / "digits.json")) == [found["name"]]
    assert json.loads(json.dumps(found))["training"]["commit"]


def test_features_are_recorded_also_later_and_fed_head_is_fitted_on_them(tmp_path):
    from paper import head

    where = tmp_path / "runs"
    list(cells.train([CELL], where, print))
    [folder] = cells.train([CELL], where, print, tune=True, features=True)  # added to the recording that is there
    record = Recording(folder)
    rows, test = record.rows()
    for name, (found, labels) in rows.items():
        cal = record.samples()[name][0]
        assert found.shape == (len(labels), 10 + 128 + 1) and int((found[:, -1] == 0).sum()) == len(cal)
        assert torch.allclose(found[: len(cal), :10].double(), cal) and len(test[name][1]) == len(test[name][0])
    result = head.fit_cell(folder)
    assert set(head.FITTED) == set(result["methods"]) and result["methods"]["fed-head"]["cost"]["rounds"] <= 50
    head.present([result], tmp_path / "out")
    page = (tmp_path / "out" / "head.md").read_text(encoding="utf-8")
    assert "digits β=0.5" in page and "one more local round" in page
