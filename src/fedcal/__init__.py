"""FedCal: calibrated confidence for federated models, globally and at every client."""

from typing import TYPE_CHECKING

from fedcal.base.lazy import lazily
from fedcal.errors import FedCalError, FedCalWarning

if TYPE_CHECKING:
    from fedcal import plot
    from fedcal.assess.evaluation import evaluate
    from fedcal.measure.metrics import accuracy, brier, classwise_ece, ece, equal_mass_ece, mce, nll, top_k
    from fedcal.measure.reliability import Reliability
    from fedcal.methods import METHODS
    from fedcal.monitor import Monitor
    from fedcal.nets.matching import match
    from fedcal.protocol import Privacy, Scaler
    from fedcal.serve.estimator import FederatedCalibrator
    from fedcal.serve.model import CalibratedModel, export_onnx
    from fedcal.simulate.config import Config
    from fedcal.simulate.runs import run
    from fedcal.transport.memory import calibrate

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "CalibratedModel",
    "Config",
    "FedCalError",
    "FedCalWarning",
    "FederatedCalibrator",
    "Monitor",
    "Privacy",
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
    "plot",
    "run",
    "top_k",
]

_METRICS = ("accuracy", "brier", "classwise_ece", "ece", "equal_mass_ece", "mce", "nll", "top_k")
__getattr__, __dir__ = lazily(
    __name__,
    {
        **dict.fromkeys(_METRICS, "fedcal.measure.metrics"),
        "CalibratedModel": "fedcal.serve.model",
        "Config": "fedcal.simulate.config",
        "FederatedCalibrator": "fedcal.serve.estimator",
        "METHODS": "fedcal.methods",
        "Monitor": "fedcal.monitor",
        "Privacy": "fedcal.protocol",
        "Reliability": "fedcal.measure.reliability",
        "Scaler": "fedcal.protocol",
        "calibrate": "fedcal.transport.memory",
        "evaluate": "fedcal.assess.evaluation",
        "export_onnx": "fedcal.serve.model",
        "match": "fedcal.nets.matching",
        "plot": "fedcal.plot",
        "run": "fedcal.simulate.runs",
    },
)
