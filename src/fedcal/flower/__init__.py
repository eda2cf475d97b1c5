"""FedCal inside Flower: `CalibratedStrategy` on the server, `calibration_mod` on the nodes. Needs `fedcal[flower]`."""

from fedcal.errors import FedCalError

try:
    import flwr  # noqa: F401
except ImportError:
    raise FedCalError("fedcal.flower needs Flower: pip install 'fedcal[flower]'") from None

from fedcal.flower.average import ExactFedAvg
from fedcal.flower.client import calibration_mod, logits_of, own_scaler
from fedcal.flower.grid import LocalGrid
from fedcal.flower.privacy import Privacy
from fedcal.flower.strategy import CalibratedStrategy

__all__ = ["CalibratedStrategy", "ExactFedAvg", "LocalGrid", "Privacy", "calibration_mod", "logits_of", "own_scaler"]
