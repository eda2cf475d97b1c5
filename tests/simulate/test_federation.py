"""Runs as a whole: same seed same bytes, resuming, the methods' two halves, what leaves a client."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fedcal
from conversations import LOGIT_METHODS
from fedcal import Config, report
from fedcal.base.arrays import tensors as tensors_of
from fedcal.base.seeds import numpy_rng
from fedcal.base.store import read_json, read_tensors
from fedcal.learn.local import copy_state, train_locally
from fedcal.methods import get_method
from fedcal.simulate import federation, runs
from fedcal.simulate.assemble import assemble, sgd

SMALL = Config(
    data="digits", model="logistic", clients=6, clients_per_round=3, rounds=4, cal_fraction=0.3, checkpoint_every=1
)
QUICK = ("uncal", "val-ts", "ens", "avg-t", "lr-ts", "fedcal:rounds=3", "fedcal-literal")
FEW = replace(SMALL, method=("uncal", "lr-ts", "fedcal:rounds=3", "fedcal-literal", "fedcal-plus:accuracy=keep"))


def digests(folder: Path) -> dict[str, str]:
    names = [p for p in sorted(folder.rglob("*")) if p.suffix == ".safetensors" or p.name == "results.json"]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in names}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, fedcal.run(SMALL, folder)


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "few"
    return folder, fedcal.run(FEW, folder)


def test_the_folder_holds_what_it_should(finished):
    folder, results = finished
    assert sorted(p.name for p in folder.iterdir()) == [
        "config.json", "model.safetensors", "report.html", "results.json", "rounds.jsonl", "scalers",
    ]  # fmt: skip
    assert sorted(p.stem for p in (folder / "scalers").iterdir()) == sorted(LOGIT_METHODS)
    assert read_json(folder / "results.json") == results
    records = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [r["round"] for r in records] == [1, 2, 3, 4] and all(len(r["clients"]) == 3 for r in records)


def test_methods_with_options_are_told_apart(few):
    folder, results = few
    specs = ["fedcal-literal", "fedcal-plus:accuracy=keep", "fedcal:rounds=3", "lr-ts", "uncal"]
    assert sorted(results["methods"]) == specs
    names = ["fedcal,rounds=3", "fedcal-literal", "fedcal-plus,accuracy=keep", "lr-ts", "uncal"]
    assert sorted(path.name for path in (folder / "scalers").iterdir()) == [f"{name}.safetensors" for name in names]
    scaler = fedcal.Scaler.load(folder / "scalers" / "fedcal-plus,accuracy=keep.safetensors")
    assert scaler.method == get_method("fedcal-plus", accuracy="keep")
    about = results["methods"]["fedcal:rounds=3"]
    assert (about["method"], about["options"], about["cost"]["rounds"]) == ("fedcal", {"rounds": 3}, 3)
    assert fedcal.Config.from_dict(read_json(folder / "config.json")) == FEW.resolve()
    shown = report.load(folder).results["methods"]
    assert list(shown) == ["uncal", "lr-ts", "fedcal (rounds=3)", "fedcal-literal", "fedcal-plus (keep)"]
    assert set(shown["uncal"]["global"]["ece_against"]) == set(shown) - {"uncal"}
    page = (folder / "report.html").read_text()
    assert '<th scope="row">fedcal-plus (keep)</th>' in page and '<th scope="row">fedcal (rounds=3)</th>' in page


def test_the_schema_of_results(finished):
    _, results = finished
    assert results["schema"] == 2 and set(results["methods"]) == set(LOGIT_METHODS)
    for method in results["methods"].values():
        for group in ("global", "local", "own"):
            for metric in (
                "accuracy",
                "top3",
                "ece",
                "ece_floor",
                "nll",
                "brier",
                "classwise_ece",
                "equal_mass_ece",
                "mce",
            ):
                assert np.isfinite(method[group][metric]), (group, metric)
        assert method["global"]["ece_low"] <= method["global"]["ece_high"]
        assert method["local"]["worst_ece"] >= method["local"]["ece"]


def test_same_seed_same_bytes_and_another_seed_other_ones(finished, tmp_path):
    folder, _ = finished
    fedcal.run(SMALL, tmp_path / "again")
    assert digests(tmp_path / "again") == digests(folder)
    other = replace(SMALL, seed=1, method=("uncal",))
    assert fedcal.run(other)["methods"]["uncal"] != fedcal.run(replace(other, seed=0))["methods"]["uncal"]


def test_without_a_folder_nothing_is_written(few, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fedcal.run(FEW) == few[1]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_run_stopped_and_resumed_gives_the_same_bytes(few, tmp_path, stop):
    """Stopped by an error in the middle of a round's report; then resumed from Python."""

    class StopHere(Exception):
        pass

    def on_round(record):
        if record["round"] == stop:
            raise StopHere

    with pytest.raises(StopHere):
        fedcal.run(FEW, tmp_path / "run", on_round=on_round)
    assert not (tmp_path / "run" / "results.json").exists()
    fedcal.run(FEW, tmp_path / "run", resume=True)
    assert digests(tmp_path / "run") == digests(few[0])
    assert fedcal.run(FEW, tmp_path / "run", resume=True) == few[1]  # nothing left to do


def test_latest_words_survive_a_checkpoint(tmp_path):
    config = replace(SMALL, method=("fedcal:schedule=interleaved,average=latest,rounds=0",))

    def on_round(record):
        if record["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedcal.run(config, tmp_path / "run", on_round=on_round)
    assert fedcal.run(config, tmp_path / "run", resume=True) == fedcal.run(config)


@pytest.mark.parametrize("options", [{"model": "mlp"}, {"model": "cnn", "engine": "reference"}])
def test_resumed_with_other_threads_gives_the_same_bytes(tmp_path, options):
    config = fedcal.Config(
        data="digits", limit=200, clients=2, rounds=2, epochs=1, method=("fed-ts",), threads=1, **options
    )

    def stop(record):
        if record["round"] == 2:
            raise KeyboardInterrupt

    before = torch.get_num_threads()
    try:
        whole = fedcal.run(config, tmp_path / "whole")
        with pytest.raises(KeyboardInterrupt):
            fedcal.run(config, tmp_path / "run", on_round=stop)
        assert fedcal.run(replace(config, threads=3), tmp_path / "run", resume=True) == whole
    finally:
        torch.set_num_threads(before)
    for name in ("model.safetensors", "scalers/fed-ts.safetensors", "report.html"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


KILLS = 20 if os.environ.get("CI") else 6


def test_killed_at_random_moments_then_resumed_gives_the_same_bytes(tmp_path):
    """kill -9, again and again, whatever the run is doing: importing, training, writing, measuring."""
    options = "--model logistic --rounds 12 --clients 6 --checkpoint-every 1 --method avg-t --method fedcal-literal"
    command = [sys.executable, "-m", "fedcal", "run", *options.split(), "--quiet", "--out"]
    whole = time.monotonic()
    subprocess.run([*command, str(tmp_path / "whole")], check=True, timeout=120)
    whole = time.monotonic() - whole
    rng, killed = np.random.default_rng(0), 0
    (tmp_path / "killed").mkdir()  # --resume starts a run in an empty folder, and refuses one that is not there
    for attempt in range(KILLS):
        run = subprocess.Popen([*command, str(tmp_path / "killed"), "--resume"])
        try:
            run.wait(timeout=rng.uniform(0.3, 1.0) * whole)
            (tmp_path / "killed" / "results.json").rename(tmp_path / f"results-{attempt}.json")  # done: start over
            for leftover in tmp_path.glob("killed/*.*"):
                leftover.unlink()
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            run.wait()
            killed += 1
    subprocess.run([*command, str(tmp_path / "killed"), "--resume"], check=True, timeout=120)
    assert killed > 0
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")


@pytest.mark.parametrize("changes", [{"algorithm": "centralised"}, {"prox_mu": 0.1}, {"partition": "iid"},
                                     {"partition": "shards"}, {"momentum": 0.9}, {"data": "heart", "clients": None},
                                     {"data": "synthetic", "limit": 500}])  # fmt: skip
def test_other_kinds_of_runs(changes):
    results = fedcal.run(replace(SMALL, rounds=2, method=("uncal", "avg-t", "fedcal-literal"), **changes))
    assert results["methods"]["avg-t"]["global"]["n"] > 0


def test_tiny_and_single_class_clients_work():
    config = replace(SMALL, beta=0.01, clients=40, clients_per_round=5, min_samples=1, rounds=2, method=QUICK)
    state = assemble(config.resolve())
    assert min(c.n for c in state.clients) <= 2
    assert int((state.skew.train > 0).sum(1).min()) == 1
    results = fedcal.run(config)
    assert all(np.isfinite(m["global"]["nll"]) for m in results["methods"].values())


def test_order_preserving_methods_keep_accuracy_and_top3(finished):
    methods = finished[1]["methods"]
    for name in ("val-ts", "ens", "avg-t", "lr-ts", "fedcal", "fedcal-literal", "fedcal-no-wm", "fedcal-small"):
        for metric in ("accuracy", "top3"):
            assert methods[name]["global"][metric] == methods["uncal"]["global"][metric], (name, metric)


def test_matching_moves_nothing_from_a_shared_start_and_much_from_independent_ones(finished):
    assert finished[1]["methods"]["fedcal-literal"]["notes"]["permuted_share"] == 0
    apart = replace(SMALL, method=("fedcal:start=matched,shared_init=false,rounds=2",))
    (found,) = fedcal.run(apart)["methods"].values()
    assert found["notes"]["permuted_share"] > 0.3


def test_what_leaves_a_client(finished):
    """Never a logit or a label, except for val-ts, which says so; and the bytes are counted."""
    _, results = finished
    cost = {name: method["cost"] for name, method in results["methods"].items()}
    k, h = 10, 64
    assert cost["avg-t"]["bytes_up"] == cost["ens"]["bytes_up"] == 8
    assert cost["lr-ts"]["bytes_up"] == 8 * (k + 1)
    assert cost["fedcal"]["bytes_up"] == 4 * (k * h + h + h * h + h + h * k + k)
    assert [name for name, c in cost.items() if c["pooled_data"]] == ["val-ts"]


def test_saved_scalers_serve_as_the_run_did(finished):
    folder, results = finished
    tensors, about = read_tensors(folder / "scalers" / "val-ts.safetensors")
    assert about["method"] == "val-ts" and set(tensors) == {"global/temperature"}
    state = assemble(SMALL.resolve())
    model, _ = read_tensors(folder / "model.safetensors")
    state.model.load_state_dict(tensors_of(model))
    state.scalers = {"val-ts": fedcal.Scaler.load(folder / "scalers" / "val-ts.safetensors")}
    found = runs.summarise(state, federation.evaluate(state))
    known = results["methods"]["val-ts"]["global"]
    assert found["methods"]["val-ts"]["global"] == known | {"ece_against": {}}  # nothing to compare it with
    for other, (value, low, high) in known["ece_against"].items():
        assert value == pytest.approx(known["ece"] - results["methods"][other]["global"]["ece"], abs=1e-12)
        assert low <= value <= high


def test_a_round_averages_the_chosen_clients_by_n_c():
    """One round by hand: train each chosen client from the same start, then Σ (n_c / N) θ_c."""
    config = replace(SMALL, method=("uncal",)).resolve()
    state = assemble(config)
    start = copy_state(state.model)
    record = federation.run_round(state)
    total = sum(state.clients[c].n for c in record["clients"])
    expected = {name: torch.zeros_like(value) for name, value in start.items()}
    model = assemble(config).model
    for c in record["clients"]:
        model.load_state_dict(start)
        rng = numpy_rng(config.seed, "batches", 0, f"client {c}")
        train_locally(model, state.clients[c].train_x, state.clients[c].train_y, sgd(config), rng)
        for name, value in model.state_dict().items():
            expected[name] += value * state.clients[c].n / total
    for name, value in state.model.state_dict().items():
        assert torch.allclose(value, expected[name], atol=1e-6)


def test_on_synthetic_data_the_true_posterior_is_calibrated():
    from fedcal.data import load
    from fedcal.data.synthetic import log_posterior

    for seed in range(3):
        dataset = load("synthetic", seed=seed)
        bins = fedcal.Reliability.of(log_posterior(dataset.test_x, seed).exp(), dataset.test_y)
        low, high = np.quantile([_calibrated_ece(bins, s) for s in range(200)], [0.005, 0.995])
        assert low <= bins.ece() <= high
        assert bins.ece() == pytest.approx(bins.floor(), rel=0.8)


def _calibrated_ece(bins, seed):
    """The ECE of one imaginary test set on which a model of these confidences is perfectly calibrated."""
    p = bins.confidence_sum / np.maximum(bins.count, 1)
    hits = np.random.default_rng(seed).binomial(bins.count, p)
    return np.abs(bins.confidence_sum - hits).sum() / bins.n


def test_features_are_the_input_of_the_last_layer():
    """fed-head in a run is fed-head on arrays of the model's features; the test set is measured with its features too."""
    from fedcal.base.features import head_of
    from fedcal.base.last_layer import last_linear

    config = replace(SMALL, model="mlp", beta=0.1, rounds=6, method=("uncal", "fed-head")).resolve()
    state = assemble(config)
    federation.train(state, config.rounds, lambda state, record: None)
    federation.finish(state)
    scaler, model = state.scalers["fed-head"], state.model.eval()
    assert scaler.params["model_weight"].shape == (10, 128)
    with torch.no_grad():
        found = {c.name: [model[:-1](part) for part in (c.cal_x, c.train_x, c.test_x)] for c in state.clients}
    clients = {c.name: (found[c.name][0], c.cal_y) for c in state.clients}
    train = {c.name: (found[c.name][1], c.train_y) for c in state.clients}
    expected = fedcal.calibrate(clients, "fed-head", head=head_of(last_linear(model)[1]), train=train)
    assert expected.params.keys() == scaler.params.keys() and "head" in scaler.params
    measured = federation.evaluate(state)
    accuracy = {name: measured["local"].pooled(name).summary()["accuracy"] for name in ("uncal", "fed-head")}
    assert accuracy["fed-head"] > accuracy["uncal"] + 0.1
    test = torch.cat([found[c.name][2] for c in state.clients]), torch.cat([c.test_y for c in state.clients])
    right = float((scaler.predict_proba(test[0]).argmax(1) == test[1]).double().mean())
    assert accuracy["fed-head"] == pytest.approx(right, abs=0.01)


def test_a_model_without_a_linear_end_is_refused():
    from torch import nn

    from fedcal.base.last_layer import last_linear

    with pytest.raises(fedcal.FedCalError, match=r"the model ends with LogSoftmax, not with torch\.nn\.Linear"):
        last_linear(nn.Sequential(nn.Linear(3, 2), nn.LogSoftmax(1)))
    assert last_linear(nn.Sequential(nn.Linear(3, 2), nn.Identity()))[0] == "0"
