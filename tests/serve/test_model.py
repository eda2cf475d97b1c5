"""Model and scaler as one module: equal to `predict_proba`, in PyTorch, in torch.export and in onnxruntime."""

import functools
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedcal
from conversations import LOGIT_METHODS
from fedcal import CalibratedModel, FedCalError, export_onnx
from fedcal.protocol import Scaler

# torch's own code: it copies its pytrees by a class that it deprecates.
pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")

K = 4


def site(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    z = torch.randn(n, K, generator=rng, dtype=torch.float64)
    noise = -torch.log(-torch.log(torch.rand(n, K, generator=rng, dtype=torch.float64)))
    return 3 * z, (z + torch.tensor([0.8, 0.0, 0.0, -0.8]) * (1 + seed) + noise).argmax(1)


@functools.cache
@torch.enable_grad()
def fitted(name: str, **options) -> Scaler:
    rounds = 2 if name.startswith("fedcal") and name != "fedcal-plus" else None
    return fedcal.calibrate([site(200, 0), site(150, 1)], name, rounds=rounds, **options)


def net(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, K)).eval()


def inputs(n: int, scale: float = 5.0) -> torch.Tensor:
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(1)) * scale


MAPPED = {"beta": torch.tensor([0.9, 0.7, -0.2]), "hist": torch.tensor([[-1.0, 0.5, 2.0], [-1.2, 0.1, 1.4]])}


def keep() -> Scaler:
    """fedcal-plus that keeps the order, with confidence maps that go far."""
    calibration = fitted("fedcal-plus", accuracy="keep")
    assert "order" in calibration.params
    return replace(
        calibration, params=calibration.params | {name: value.double().numpy() for name, value in MAPPED.items()}
    )


# --- PyTorch -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 10.0, 1000.0])
@pytest.mark.parametrize("output", ["probabilities", "logits"])
@pytest.mark.parametrize("name", ["fedcal", "fedcal-literal", "fed-op", "ens", "fed-ts", "fed-hist"])
def test_decisions_stay_with_gradients_and_in_float32(name, output, scale):
    """A plain call, without `no_grad`: a scaler that keeps the order keeps the model's decisions."""
    logits = (scale * site(300, 3)[0].float()).requires_grad_()
    out = CalibratedModel(nn.Identity(), fitted(name), output=output)(logits)
    assert out.dtype == torch.float32 and torch.equal(out.argmax(1), logits.argmax(1))
    if name != "fed-hist":  # the gradient of a lift is not defined where a class's share vanishes
        out.sum().backward()
        assert logits.grad is not None and bool(logits.grad.isfinite().all())


def test_logits_beyond_all_measure_give_probabilities():
    row = torch.tensor([[1.7e308, 1.7e308, -1.7e308, 0.0]], dtype=torch.float64)
    calibration = fitted("fedcal-plus")
    assert torch.equal(CalibratedModel(nn.Identity(), calibration)(row), calibration.predict_proba(row))


@pytest.mark.parametrize("client", [None, 0])
@pytest.mark.parametrize("name", LOGIT_METHODS)
@torch.no_grad()
def test_equals_predict_proba(name, client):
    calibration, model, x = fitted(name), net(), inputs(50)
    probs = CalibratedModel(model, calibration, client)(x)
    expected = calibration.predict_proba(model(x), client)
    assert probs.dtype == torch.float32 and torch.equal(probs, expected.float())
    logits = CalibratedModel(model, calibration, client, output="logits")(x)
    assert torch.allclose(logits.softmax(1), expected.float(), atol=1e-6)


@torch.no_grad()
def test_is_a_module():
    calibration, x = fitted("fedcal-plus"), inputs(20)
    first = CalibratedModel(net(), calibration, 0)
    assert not list(first.scaler.parameters()) and "scaler.personal_shift" in first.state_dict()
    second = CalibratedModel(net(1), calibration, 1)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    assert CalibratedModel(net().double(), calibration)(x.double()).dtype == torch.float64
    half = first.bfloat16()  # the model; the scaler stays as exact as it was
    assert all(value.dtype == torch.float64 for value in half.scaler.buffers())
    assert half(x.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("name", ["fedcal", "fedcal-plus", "fed-bias", "keep"])
def test_gradients_pass_through(name):
    model = net()
    CalibratedModel(model, keep() if name == "keep" else fitted(name))(inputs(400)).log().sum().backward()
    assert all(bool(value.grad is not None and value.grad.isfinite().all()) for value in model.parameters())


@pytest.mark.parametrize("client", [None, 0])
@torch.no_grad()
def test_models_that_return_probabilities(client):
    (z, y), x = site(200, 0), inputs(50)
    calibration, model = fedcal.calibrate([(z.softmax(1), y)], probs=True), nn.Sequential(net(), nn.Softmax(1))
    expected = calibration.predict_proba(model(x), client).float()
    assert torch.equal(CalibratedModel(model, calibration, client)(x), expected)  # as the calibration was fitted
    assert torch.equal(CalibratedModel(model, calibration, client, probs=True)(x), expected)
    by_logits = CalibratedModel(net(), calibration, client, probs=False)(x)
    assert torch.allclose(by_logits, expected, atol=1e-4)
    with pytest.raises(FedCalError, match="probs must be True or False"):
        CalibratedModel(model, calibration, probs="yes")


class OneScore(nn.Module):
    """A binary model: one score per sample, as (N,) or (N, 1), a logit or a probability."""

    def __init__(self, flat: bool, probs: bool) -> None:
        super().__init__()
        self.net, self.flat, self.probs = net(), flat, probs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.net(x)[:, :1]
        out = out.sigmoid() if self.probs else out
        return out[:, 0] if self.flat else out


def one_score(flat: bool, probs: bool) -> tuple[nn.Module, Scaler]:
    scores = 2 * torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = torch.bernoulli((scores / 2).sigmoid(), generator=torch.Generator().manual_seed(1))
    return OneScore(flat, probs), fedcal.calibrate([(scores.sigmoid() if probs else scores, labels)], probs=probs)


@pytest.mark.parametrize("probs", [True, False])
@pytest.mark.parametrize("flat", [True, False])
@torch.no_grad()
def test_binary_models(flat, probs):
    (model, calibration), x = one_score(flat, probs), inputs(50)
    calibrated = CalibratedModel(model, calibration)
    assert torch.equal(calibrated(x), calibration.predict_proba(model(x)).float()) and calibrated(x).shape == (50, 2)
    program = torch.export.export(calibrated, (inputs(3),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert torch.allclose(program.module()(x), calibrated(x), atol=1e-6)


@pytest.mark.parametrize("flat", [True, False])
@torch.no_grad()
def test_onnx_of_probabilities(flat, tmp_path):
    pytest.importorskip("onnxscript", reason="needs fedcal[onnx]")
    pytest.importorskip("onnxruntime", reason="needs fedcal[onnx]")
    model, calibration = one_score(flat, probs=True)
    assert export_onnx(CalibratedModel(model, calibration), inputs(4), tmp_path / "one.onnx") <= 1e-5
    several = CalibratedModel(nn.Sequential(net(), nn.Softmax(1)), fitted("fedcal-plus"), 0, probs=True)
    assert export_onnx(several, inputs(4, 100.0), tmp_path / "several.onnx") <= 1e-5  # some of them are 0


@pytest.mark.parametrize("name", ["lr-ts:rounds=1", "fed-matrix"])
def test_a_scaler_whose_arrays_are_float32(name):
    """A file may hold them: NumPy multiplies them with float64, torch refuses to."""
    scaler = fedcal.calibrate([site(200, 0), site(150, 1)], name)
    stored = replace(scaler, params={part: value.astype(np.float32) for part, value in scaler.params.items()})
    stored.personal = {}
    x = site(20, 2)[0]
    found = CalibratedModel(nn.Identity(), stored)(x)
    np.testing.assert_allclose(found, stored.predict_proba(x), atol=1e-12)


def test_refusals():
    calibration = fitted("avg-t")
    cases = {
        "torch.nn.Module": lambda: CalibratedModel(len, calibration),
        "fedcal.calibrate returns": lambda: CalibratedModel(net(), {}),
        "unknown output 'logit'": lambda: CalibratedModel(net(), calibration, output="logit"),
        "unknown client '7'": lambda: CalibratedModel(net(), calibration, 7),
        "logits of 8 classes for a scaler of 4": lambda: CalibratedModel(net()[:2], calibration)(inputs(3)),
        "not (3, 2, 2)": lambda: CalibratedModel(nn.Unflatten(1, (2, 2)), calibration)(torch.zeros(3, 4)),
    }
    for words, call in cases.items():
        with pytest.raises(FedCalError) as caught:
            call()
        assert words in str(caught.value)


# --- graphs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "client"), [("fedcal", 0), ("fedcal-plus", 1), ("ens", None)])
@torch.no_grad()
def test_torch_export(name, client):
    calibrated = CalibratedModel(net(), fitted(name), client)
    program = torch.export.export(calibrated, (inputs(3),), dynamic_shapes=({0: torch.export.Dim("batch")},))
    for n in (1, 40):
        assert torch.allclose(program.module()(inputs(n)), calibrated(inputs(n)), atol=1e-6)


SAME = {"val-ts", "fed-ts", "fedcal-no-wm", "fedcal-small"}  # the graphs of avg-t and fedcal with other numbers
CASES = {name: (lambda name=name: fitted(name)) for name in LOGIT_METHODS if name not in SAME} | {
    "fedcal-plus keep": keep
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@torch.no_grad()
def test_onnx(case, tmp_path):
    pytest.importorskip("onnxscript", reason="needs fedcal[onnx]")
    runtime = pytest.importorskip("onnxruntime", reason="needs fedcal[onnx]")
    calibration, model = case(), net()
    calibrated = CalibratedModel(model, calibration, client=1)
    assert export_onnx(calibrated, inputs(1), tmp_path / "x.onnx") <= 1e-5
    session = runtime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    for x in (inputs(1), inputs(300), inputs(300, 100.0), inputs(2, 0.0)):
        found = session.run(["probabilities"], {"input": x.numpy()})[0]
        assert np.abs(found - calibration.predict_proba(model(x), client=1).numpy()).max() <= 1e-5


@pytest.mark.filterwarnings("ignore:scores of")  # the labels follow a mixture of the columns
@pytest.mark.parametrize("accuracy", ["improve", "keep"])
def test_onnx_of_ties_and_of_large_logits(accuracy, tmp_path):
    """Classes that share the top stay equal, and logits a thousand times as large are no NaN."""
    pytest.importorskip("onnxscript", reason="needs fedcal[onnx]")
    runtime = pytest.importorskip("onnxruntime", reason="needs fedcal[onnx]")
    rng = np.random.default_rng(1)
    z = np.round(2 * rng.normal(size=(900, K)))
    y = (z @ (np.eye(K) + 0.8 * rng.normal(size=(K, K))) + rng.gumbel(size=z.shape)).argmax(1)
    scaler = fedcal.calibrate([(z, y)], "fedcal-plus", accuracy=accuracy)
    assert ("order" in scaler.params) == (accuracy == "keep") and (np.sort(z)[:, -1] == np.sort(z)[:, -2]).any()
    export_onnx(CalibratedModel(nn.Identity(), scaler), torch.tensor(z[:9]), tmp_path / "x.onnx")
    session = runtime.InferenceSession(tmp_path / "x.onnx", providers=["CPUExecutionProvider"])
    for scale in (1, 1000, 1e300):
        found = session.run(None, {session.get_inputs()[0].name: scale * z})[0]
        np.testing.assert_allclose(found, scaler.predict_proba(scale * z), atol=1e-6)


def test_onnx_leaves_the_mode_and_writes_nothing_when_refused(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript", reason="needs fedcal[onnx]")
    pytest.importorskip("onnxruntime", reason="needs fedcal[onnx]")
    calibrated = CalibratedModel(net(), fitted("fed-bias"), output="logits").train()
    path = tmp_path / "x.onnx"
    assert export_onnx(calibrated, inputs(2), path) <= 1e-5
    assert calibrated.training and calibrated.model.training
    path.unlink()
    monkeypatch.setattr("fedcal.serve.model.TOLERANCE", -1.0)
    for words, call in {
        "not written": lambda: export_onnx(calibrated, inputs(2), path),
        "a batch": lambda: export_onnx(calibrated, inputs(0), path),
        "takes a CalibratedModel": lambda: export_onnx(net(), inputs(2), path),
    }.items():
        with pytest.raises(FedCalError, match=words):
            call()
    assert not list(tmp_path.iterdir())


class Branches(nn.Module):
    """A model that no graph can hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :K] if float(x.sum()) > 0 else -x[:, :K]


def test_onnx_of_a_model_that_branches(tmp_path):
    pytest.importorskip("onnxscript", reason="needs fedcal[onnx]")
    pytest.importorskip("onnxruntime", reason="needs fedcal[onnx]")
    with pytest.raises(FedCalError, match="cannot export this model") as caught:
        export_onnx(CalibratedModel(Branches(), fitted("avg-t")), inputs(2), tmp_path / "x.onnx")
    assert len(str(caught.value).splitlines()) == 1


def test_onnx_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(FedCalError, match=r"needs onnxruntime: pip install 'fedcal\[onnx\]'"):
        export_onnx(CalibratedModel(net(), fitted("uncal")), inputs(2), tmp_path / "x.onnx")
