"""FedCal: calibrated confidence for federated models."""

from fedcal.calibrate.matching import match
from fedcal.errors import FedCalError
from fedcal.measure.metrics import ece
from fedcal.measure.reliability import Reliability

__version__ = "0.1.0"
__all__ = ["FedCalError", "Reliability", "ece", "match"]
