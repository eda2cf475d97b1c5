"""Own data and an own model in the simulator: on every engine, resumed, and refused in one line where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedcal
import own_models
from fedcal import Config, FedCalError, FedCalWarning
from fedcal.base.store import read_json, read_tensors, write_json
from fedcal.simulate import federation
from fedcal.simulate.own import with_own
from own_models import Tied, Transformer, layer_norm_net, patients, sentences, with_batch_norm, with_dropout

SHORT: dict[str, Any] = {"rounds": 3, "epochs": 2, "batch_size": 16, "method": ("uncal", "fed-ts"), "threads": 2}


def trained(engine: str, data: Any, model: Any, **settings: Any) -> tuple[federation.Federation, dict[str, Any]]:
    """The federation after a run, and its results."""
    found: list[federation.Federation] = []
    config = Config(**{**SHORT, **settings}, engine=engine)  # type: ignore[arg-type]
    results = fedcal.run(config, data=data, model=model, on_start=found.append)
    return found[0], results


@pytest.mark.parametrize(
    ("data", "model"),
    [(sentences, Transformer), (patients, layer_norm_net), (patients, with_batch_norm)],
    ids=["transformer on tokens", "table", "batch normalisation"],
)
def test_the_fast_cpu_engine_equals_the_reference_loop(data: Any, model: Any) -> None:
    given = data()
    (slow, theirs), (fast, ours) = (trained(engine, given, model) for engine in ("reference", "fast"))
    assert type(getattr(fast.train, "__self__", None)).__module__ == "fedcal.learn.cpu"
    assert not hasattr(slow.train, "__self__") and fast.remarks == []
    for name, value in slow.model.state_dict().items():
        torch.testing.assert_close(fast.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    for method in ("uncal", "fed-ts"):
        a, b = theirs["methods"][method]["global"], ours["methods"][method]["global"]
        assert a["nll"] == pytest.approx(b["nll"], rel=1e-4) and a["accuracy"] == pytest.approx(b["accuracy"])


def test_it_learns_and_knows_the_natural_clients() -> None:
    data = patients()
    state, results = trained("auto", data, layer_norm_net, rounds=10, clients_per_round=4)
    assert results["data"]["clients"] == ["a", "b", "c", "d"] and results["data"]["classes"] == ["healthy", "ill"]
    assert results["config"]["partition"] == "natural" and results["config"]["model"] == "own_models:layer_norm_net"
    counts = np.array(results["data"]["train_counts"]) + results["data"]["cal_counts"] + results["data"]["test_counts"]
    for row, name in zip(counts, "abcd", strict=True):  # every sample is with its client, and none is lost
        mine = data["y"][data["client"] == name]
        assert row.tolist() == [int((mine == "healthy").sum()), int((mine == "ill").sum())]
    x = torch.cat([client.train_x for client in state.clients])
    assert x.mean(0).abs().max() < 1e-5, "standardised by training statistics"
    assert results["methods"]["uncal"]["global"]["accuracy"] > 0.7


def test_the_partition_of_the_config_where_there_are_no_clients() -> None:
    data = {key: value for key, value in patients().items() if key != "client"}
    _, results = trained("auto", data, None, clients=3, partition="iid")
    assert len(results["data"]["clients"]) == 3 and results["config"]["model"] == "mlp"


def test_a_test_split_of_ones_own_and_inputs_as_they_are() -> None:
    data, test = patients(), patients(80, seed=1)
    data |= {f"test_{key}": value for key, value in test.items()}
    state, results = trained("auto", data, None, standardise=False)
    assert results["methods"]["uncal"]["global"]["n"] == 80
    client = state.clients[0]
    mine = torch.from_numpy(test["x"][test["client"] == "a"]).float()
    assert torch.equal(client.test_x, mine), "neither standardised nor reordered"


def test_a_single_client_and_clients_without_test_samples() -> None:
    _, results = trained("auto", {**patients(60), "client": np.zeros(60, int)}, None)
    assert results["data"]["clients"] == ["0"]
    data = patients(60)
    data["client"][:1] = "z"  # one sample: nothing to test or to calibrate on
    _, results = trained("auto", data, layer_norm_net)
    assert results["data"]["test_counts"][-1] == [0, 0] and results["data"]["cal_counts"][-1] == [0, 0]


@pytest.mark.filterwarnings("ignore:fed-ts. the fit ended")
def test_images_and_a_module_that_is_given_itself() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=80)
    images = (rng.integers(100, size=(80, 1, 6, 6)) + 100 * y[:, None, None, None]).astype(np.uint8)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    start = net[0].weight.detach().clone()
    state, results = trained("auto", (images, y), net, clients=2)
    assert type(getattr(state.train, "__self__", None)).__module__ == "fedcal.learn.cpu", "convolutions gain"
    assert torch.equal(net[0].weight, start), "the user's module is left as it was"
    assert results["methods"]["uncal"]["global"]["accuracy"] > 0.8


def test_dropout_is_repeated_by_the_reference_loop_and_refused_by_the_fast_one() -> None:
    data = sentences(90)
    before = torch.get_rng_state()
    (one, first), (_, second) = (trained("auto", data, with_dropout) for _ in range(2))
    assert first == second and torch.equal(torch.get_rng_state(), before)
    assert one.remarks == [], "on a CPU, auto takes the reference loop for such a net anyway"
    with pytest.raises(FedCalError, match=r"fast engine cannot train model own_models:with_dropout: it draws random"):
        trained("fast", data, with_dropout)


def test_a_convolutional_net_with_dropout_falls_back_with_a_remark() -> None:
    def build(shape: tuple[int, ...], n_classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(), nn.Linear(32, n_classes))

    rng = np.random.default_rng(0)
    state, _ = trained("auto", (rng.random((60, 1, 6, 6)), rng.integers(2, size=60)), build, clients=2, rounds=1)
    assert len(state.remarks) == 1 and "reference loop: it draws random numbers" in state.remarks[0]


def test_tied_weights_are_saved_and_resumed(tmp_path: Path) -> None:
    """The same bytes as a run that was never stopped; without its data or model it does not go on."""
    data, config = sentences(120), Config(**{**SHORT, "rounds": 4}, checkpoint_every=1)  # type: ignore[arg-type]
    fedcal.run(config, tmp_path / "whole", data=data, model=Tied)

    class Stop(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise Stop

    with pytest.raises(Stop):
        fedcal.run(config, tmp_path / "parts", data=data, model=Tied, on_round=stop)
    stored = Config.from_dict(read_json(tmp_path / "parts" / "config.json"))
    assert stored.model == "own_models:Tied" and stored.data.startswith("arrays@")
    other = {**data, "y": 2 - data["y"]}
    with pytest.raises(FedCalError, match=r"was run on other data \(arrays@\w+; these are arrays@\w+\)"):
        fedcal.run(config, tmp_path / "parts", data=other, model=Tied, resume=True)
    with pytest.raises(FedCalError, match=r"your own, own_models:Tied: give it again"):
        fedcal.run(stored, tmp_path / "parts", data=data, resume=True)
    with pytest.raises(FedCalError, match=r"your own, arrays@\w+: give them again"):
        fedcal.run(stored, tmp_path / "parts", model=Tied, resume=True)
    with pytest.raises(FedCalError, match="was run with model='own_models:Tied'"):
        fedcal.run(config, tmp_path / "parts", data=data, model=Transformer, resume=True)
    fedcal.run(config, tmp_path / "parts", data=data, model=Tied, resume=True)
    for name in ("model.safetensors", "results.json", "scalers/fed-ts.safetensors"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    tensors, _ = read_tensors(tmp_path / "whole" / "model.safetensors")
    assert np.array_equal(tensors["embedding.weight"], tensors["out.weight"])


def test_a_run_folder_never_says_what_to_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack: a stranger's run folder whose config names a module that lies beside it."""
    from fedcal.cli.main import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("import pathlib; pathlib.Path('ran').touch()\ndef build(shape, n): ...\n")
    fedcal.run(Config(**{**SHORT, "rounds": 1, "method": ("uncal",)}), tmp_path / "run", data=patients(40))  # type: ignore[arg-type]
    config = read_json(tmp_path / "run" / "config.json")
    write_json(tmp_path / "run" / "config.json", {**config, "model": "evil:build"})
    (tmp_path / "run" / "results.json").unlink()
    np.savez(tmp_path / "arrays.npz", **patients(40))
    for words in (["run", "--resume", "--out", "run"], ["run", "--resume", "--out", "run", "--data", "arrays.npz"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2
    with pytest.raises(FedCalError, match="no file says what to import"):
        fedcal.run(Config.from_dict(read_json(tmp_path / "run" / "config.json")), data=patients(40))
    assert not (tmp_path / "ran").exists()


class Wide(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 7)


def fails_when_asked(shape: tuple[int, ...], n_classes: int) -> nn.Module:
    raise KeyError("no such thing\nas this")


class Late(nn.Module):
    """Works on the few samples that it is tried on, and fails on more."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(shape[0], n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 8:
            raise RuntimeError("too many\nsamples")
        return self.out(x)


@pytest.mark.filterwarnings("ignore:fed-ts. the fit ended")
def test_a_model_that_ends_in_a_softmax_is_said_to() -> None:
    with pytest.warns(FedCalWarning, match="seems to give probabilities .*; leave out its last softmax"):
        trained("auto", patients(100), lambda: nn.Sequential(nn.Linear(5, 2), nn.Softmax(1)))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Wide, r"gives shape \(\d, 7\) for \d samples: 2 classes need"),
        (fails_when_asked, r"cannot be built \(KeyError: 'no such thing"),
        (lambda a, b, c: None, r"takes \(a, b, c\): write it with \(shape, n_classes\)"),
        (lambda: "a net", "gives str, where an nn.Module is needed"),
        (lambda: nn.Flatten(), "has no parameters to train"),
        (lambda: nn.LazyLinear(2), "has lazy layers"),
        (lambda: nn.Embedding(9, 2), r"fails on inputs of shape \(\d, 5\), float32 \(RuntimeError"),
        (lambda: nn.Linear(5, 2).double(), "float32"),
        (lambda: nn.LSTM(5, 2), "gives tuple, where a tensor of logits is needed"),
        (Late, r"the model fails on inputs of shape \(5,\), float32 \(RuntimeError: too many\)"),
        ("own_models:Transformer", "must be a function that returns an nn.Module, not str"),
    ],
)
def test_models_that_do_not_fit_are_refused_in_one_line(model: Any, said: str) -> None:
    with pytest.raises(FedCalError, match=said) as error:
        trained("auto", patients(100), model)
    assert "\n" not in str(error.value)


def test_what_contradicts_itself() -> None:
    with pytest.raises(FedCalError, match="the config has model 'mlp', and another one is given"):
        fedcal.run(Config(model="mlp"), data=patients(40), model=layer_norm_net)
    with pytest.raises(FedCalError, match="are token ids, and model mlp has no embedding"):
        fedcal.run(Config(**SHORT), data=sentences(60))
    config, dataset = with_own(Config(standardise=True), sentences(60), None)
    assert dataset is not None and dataset.standardised and dataset.train_x.dtype == torch.float64
    assert own_models.VOCABULARY == 20 and json.dumps(config.resolve().to_dict())


# --- on a GPU ----------------------------------------------------------------------------------------------------------

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


class Asks(nn.Module):
    """Looks at a value on the CPU in the middle: a CUDA graph cannot."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(shape[0], n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.out(x)
        return logits * 0.5 if float(logits.detach().abs().max()) > 1e6 else logits


@needs_gpu
@pytest.mark.parametrize(("data", "model"), [(sentences, Transformer), (patients, layer_norm_net)])
def test_the_gpu_engine_equals_the_reference_loop(data: Any, model: Any) -> None:
    given = data()
    settings = {"device": "cuda", "precision": "fp32"}
    (slow, theirs), (fast, ours) = (trained(engine, given, model, **settings) for engine in ("reference", "fast"))
    assert type(getattr(fast.train, "__self__", None)).__module__ == "fedcal.learn.fast" and fast.remarks == []
    for name, value in slow.model.state_dict().items():
        torch.testing.assert_close(fast.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    for method in ("uncal", "fed-ts"):
        a, b = theirs["methods"][method]["global"], ours["methods"][method]["global"]
        assert a["nll"] == pytest.approx(b["nll"], rel=1e-3)


@needs_gpu
@pytest.mark.parametrize(
    ("data", "model", "why"),
    [
        (sentences, with_dropout, "it draws random numbers"),
        (patients, with_batch_norm, "samples of a batch depend on each other"),
        (patients, Asks, "cannot be recorded as a CUDA graph"),
    ],
)
def test_what_the_gpu_engine_cannot_train(data: Any, model: Any, why: str) -> None:
    given = data(120)
    with pytest.raises(FedCalError, match=why):
        trained("fast", given, model, device="cuda")
    (state, first), (_, second) = (trained("auto", given, model, device="cuda") for _ in range(2))
    assert len(state.remarks) == 1 and why in state.remarks[0]
    assert first["methods"]["uncal"]["global"]["nll"] == pytest.approx(second["methods"]["uncal"]["global"]["nll"])
