"""FedCal: calibrated confidence for federated models, globally and at every client."""

import importlib
from typing import TYPE_CHECKING, Any

from fedcal.errors import FedCalError, FedCalWarning
from fedcal.measure.metrics import accuracy, brier, classwise_ece, ece, equal_mass_ece, mce, nll, top_k
from fedcal.measure.reliability import Reliability
from fedcal.methods import METHODS
from fedcal.nets.matching import match
from fedcal.protocol.rounds import Calibration, calibrate
from fedcal.protocol.scaler_file import load_scaler, save_scaler
from fedcal.simulate.config import Config
from fedcal.simulate.runs import run

if TYPE_CHECKING:
    from fedcal.serve.estimator import FederatedCalibrator
    from fedcal.serve.model import CalibratedModel, export_onnx

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "CalibratedModel",
    "Calibration",
    "Config",
    "FedCalError",
    "FedCalWarning",
    "FederatedCalibrator",
    "Reliability",
    "accuracy",
    "brier",
    "calibrate",
    "classwise_ece",
    "ece",
    "equal_mass_ece",
    "export_onnx",
    "load_scaler",
    "match",
    "mce",
    "nll",
    "run",
    "save_scaler",
    "top_k",
]

_LATER = {  # loaded when asked for: scikit-learn takes its time
    "CalibratedModel": "fedcal.serve.model",
    "FederatedCalibrator": "fedcal.serve.estimator",
    "export_onnx": "fedcal.serve.model",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'fedcal' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
