"""FedCal: calibrated confidence for federated models, globally and at every client."""

import importlib
from typing import TYPE_CHECKING, Any

from fedcal.errors import FedCalError, FedCalWarning
from fedcal.measure.metrics import accuracy, brier, classwise_ece, ece, equal_mass_ece, mce, nll, top_k
from fedcal.measure.reliability import Reliability
from fedcal.methods import METHODS
from fedcal.nets.matching import match
from fedcal.protocol import Scaler
from fedcal.simulate.config import Config
from fedcal.transport.memory import calibrate

if TYPE_CHECKING:
    from fedcal.assess.evaluation import evaluate
    from fedcal.serve.estimator import FederatedCalibrator
    from fedcal.serve.model import CalibratedModel, export_onnx
    from fedcal.simulate.runs import run

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "CalibratedModel",
    "Config",
    "FedCalError",
    "FedCalWarning",
    "FederatedCalibrator",
    "Reliability",
    "Scaler",
    "accuracy",
    "brier",
    "calibrate",
    "classwise_ece",
    "ece",
    "equal_mass_ece",
    "evaluate",
    "export_onnx",
    "match",
    "mce",
    "nll",
    "run",
    "top_k",
]

_LATER = {  # loaded when asked for: scikit-learn takes its time
    "CalibratedModel": "fedcal.serve.model",
    "FederatedCalibrator": "fedcal.serve.estimator",
    "evaluate": "fedcal.assess.evaluation",
    "export_onnx": "fedcal.serve.model",
    "run": "fedcal.simulate.runs",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'fedcal' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
