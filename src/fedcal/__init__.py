"""FedCal: calibrated confidence for federated models, globally and at every client."""

from fedcal.calibrate.matching import match
from fedcal.calibrate.methods import METHODS
from fedcal.calibrate.rounds import Calibration, calibrate
from fedcal.config import Config
from fedcal.errors import FedCalError
from fedcal.measure.metrics import accuracy, brier, classwise_ece, ece, equal_mass_ece, mce, nll, top_k
from fedcal.measure.reliability import Reliability
from fedcal.run import run

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "Calibration",
    "Config",
    "FedCalError",
    "Reliability",
    "accuracy",
    "brier",
    "calibrate",
    "classwise_ece",
    "ece",
    "equal_mass_ece",
    "match",
    "mce",
    "nll",
    "run",
    "top_k",
]
