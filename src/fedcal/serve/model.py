"""Model and scaler as one module: served by PyTorch, torch.export or ONNX.

    calibrated = fedcal.CalibratedModel(model, scaler, client="siteA").eval()
    calibrated(x)                                            # calibrated probabilities
    fedcal.export_onnx(calibrated, x, "calibrated.onnx")     # the same within 1e-5, in onnxruntime

The scaler works in float64 inside, also in the exported graph. A traced graph leaves out one thing: order that rounding
lost among near-ties is not restored (base/logits.py).
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedcal.base.arrays import tensor
from fedcal.base.checks import check_kind, probs_as_logits, two_columns, within_spread
from fedcal.base.last_layer import with_features
from fedcal.base.logits import keep_order, ordered_softmax
from fedcal.base.store import write_bytes
from fedcal.errors import FedCalError, check_known, reason_of
from fedcal.protocol import Scaler

OUTPUTS = ("probabilities", "logits")
TOLERANCE = 1e-5  # on probabilities, of the exported graph against this module


class CalibratedModel(nn.Module):
    """A model that returns logits or probabilities, followed by a scaler: the global one, or a client's personal one.

    Args:
        model: takes a batch, returns (N, K) logits; of two classes also a score of class 1, (N,) or (N, 1). For a scaler of
            features (`fed-head`) it must end with torch.nn.Linear; a copy of it is taken.
        scaler: from `fedcal.calibrate`, or a fitted estimator's `scaler_`.
        client: whose personal scaler to use; the global one if not given.
        output: "probabilities", or calibrated "logits" (their softmax is the probabilities).
        probs: whether the model returns probabilities; if not given, what the scaler was fitted on.

    Results have the type of what the model returns, float32 at least.

    Examples:
        >>> import fedcal, torch
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(8, 3)  # stands for your model
        >>> x, labels = torch.randn(300, 8), torch.randint(3, (300,))
        >>> scaler = fedcal.calibrate([(model(x).detach(), labels)], "fed-ts")
        >>> calibrated = fedcal.CalibratedModel(model, scaler).eval()
        >>> probs = calibrated(x)
        >>> probs.shape, bool(torch.allclose(probs.sum(1), torch.ones(300)))
        (torch.Size([300, 3]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        scaler: Scaler,
        client: str | int | None = None,
        output: Literal["probabilities", "logits"] = "probabilities",
        *,
        probs: bool | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise FedCalError(f"model must be a torch.nn.Module that returns scores, not {type(model).__name__}")
        if not isinstance(scaler, Scaler):
            raise FedCalError(f"scaler must be what fedcal.calibrate returns, not {type(scaler).__name__}")
        check_known("output", output, OUTPUTS)
        self.model = with_features(model) if scaler.method.takes == "features" else model
        self.scaler = ScalerModule(scaler, client, bool(scaler.probs if probs is None else check_kind(probs)))
        self.output = output

    def forward(self, x: Tensor) -> Tensor:
        """Return calibrated probabilities, or logits (see `output`), of a batch.

        Args:
            x: what the model takes.
        """
        scores = self.model(x)
        calibrated = self.scaler(scores)
        dtype = torch.promote_types(scores.dtype, torch.float32)
        if self.output == "probabilities":
            return ordered_softmax(calibrated, dtype)
        return keep_order(calibrated.to(dtype), calibrated)

    @torch.no_grad()
    def predict_set(self, x: Tensor, alpha: float | None = None) -> Tensor:
        """Return conformal sets of a batch as booleans, (N, K), on the device of what the model returns.

        Args:
            x: what the model takes.
            alpha: the share of labels that sets may miss; if not given, the one that the scaler was calibrated for.

        Raises:
            FedCalError: the scaler has no sets, or alpha is out of range.
        """
        scores = self.scaler.rows(self.model(x))
        return self.scaler.fitted.predict_set(scores, alpha, self.scaler.client, probs=self.scaler.probs)


class ScalerModule(nn.Module):
    """A fitted scaler, its numbers as buffers: logits or probabilities in, calibrated logits in float64 out."""

    def __init__(self, scaler: Scaler, client: str | int | None = None, probs: bool = False) -> None:
        super().__init__()
        self.fitted, self.client, self.probs = scaler, client, probs
        personal = scaler.personal_of(client)
        for prefix, params in (("global", scaler.params), ("personal", personal)):
            for name, value in params.items():
                # Some are float32, as nets are trained; unlike NumPy, torch multiplies no two types.
                self.register_buffer(f"{prefix}_{name}", tensor(value).to(torch.float64, copy=True))
        self.names = {"global": list(scaler.params), "personal": list(personal)}

    def rows(self, scores: Tensor) -> Tensor:
        """Return what the scaler takes of what the model returns: the same, or for a method of features one column more."""
        if scores.ndim not in (1, 2):
            raise FedCalError(f"the model must return logits of shape (samples, classes), not {tuple(scores.shape)}")
        if self.fitted.method.takes == "features":
            scores = torch.nn.functional.pad(scores, (0, 1))
            if scores.shape[1] != self.fitted.method.width(self.fitted.n_classes):
                raise FedCalError(
                    "the model's last layer is not the one that this scaler was fitted on: give that model"
                )
        return scores

    def forward(self, scores: Tensor) -> Tensor:
        columns = two_columns(self.rows(scores), self.probs)
        logits = probs_as_logits(columns) if self.probs else within_spread(columns.double())
        self.fitted.check_width(logits)
        params, personal = ({n: getattr(self, f"{part}_{n}") for n in names} for part, names in self.names.items())
        return self.fitted.method.apply_personal(params, personal, logits)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ScalerModule:
        """`.to(device)` moves the scaler; `.half()` is for the model and leaves the scaler's precision alone."""
        return super()._apply(lambda value: value.to(fn(value).device), recurse)


def export_onnx(calibrated: CalibratedModel, example: Tensor, path: str | Path) -> float:
    """Write model and scaler as one ONNX file that takes batches of any size. Needs `pip install 'fedcal[onnx]'`.

    The graph is run in onnxruntime on `example` before the file is written.

    Args:
        calibrated: the model to export; it is exported in `eval()` mode.
        example: a batch of inputs.
        path: where to write, atomically.

    Returns:
        The largest difference in a probability between onnxruntime and PyTorch.

    Raises:
        FedCalError: a package is missing, an argument is not as it should be, or the difference is more than 1e-5.

    Examples:
        >>> import fedcal, torch
        >>> _ = torch.manual_seed(0)
        >>> model, x = torch.nn.Linear(8, 3), torch.randn(100, 8)
        >>> scaler = fedcal.calibrate([(model(x).detach(), torch.randint(3, (100,)))], "fed-ts")
        >>> fedcal.export_onnx(fedcal.CalibratedModel(model, scaler), x, "calibrated.onnx") < 1e-5
        True
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise FedCalError(f"export_onnx needs {error.name}: pip install 'fedcal[onnx]'") from None
    if not isinstance(calibrated, CalibratedModel):
        raise FedCalError(f"export_onnx takes a CalibratedModel, not {type(calibrated).__name__}")
    if not isinstance(example, Tensor) or example.ndim == 0 or not len(example):
        raise FedCalError("example must be a tensor that holds a batch of at least one input")
    with _serving(calibrated):
        expected = calibrated(example)
        graph = _trace(calibrated, example)
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: example.detach().cpu().numpy()})[0]
    pair = torch.from_numpy(found), expected.detach().cpu()
    if calibrated.output == "logits":
        pair = tuple(logits.softmax(dim=1) for logits in pair)
    difference = float((pair[0] - pair[1]).abs().max())
    if not difference <= TOLERANCE:
        raise FedCalError(
            f"onnxruntime differs by {difference:.2g} in a probability, more than {TOLERANCE:g}: not written"
        )
    write_bytes(Path(path), graph)
    return difference


def _trace(calibrated: CalibratedModel, example: Tensor) -> bytes:
    """The ONNX graph, its first dimension free."""
    batch = example if len(example) > 1 else torch.cat([example, example])  # a size of 1 would be taken as fixed
    try:
        with _quiet():
            program: Any = torch.onnx.export(
                calibrated,
                (batch,),
                input_names=["input"],
                output_names=[calibrated.output],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = reason_of(error.__cause__ or error)
        raise FedCalError(f"torch.onnx cannot export this model ({reason}): see if torch.export can") from error
    return program.model_proto.SerializeToString()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's remarks about itself: a deprecation in its own code, and that it does without torchvision."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    was = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        log.disabled = was


@contextlib.contextmanager
def _serving(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients; the mode as it was afterwards."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode
