"""FedCal: calibrated confidence for federated models."""

__version__ = "0.1.0"
