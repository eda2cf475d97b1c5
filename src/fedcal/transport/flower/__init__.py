"""FedCal inside Flower: `CalibratedStrategy` on the server, `calibration_mod` on the nodes. Needs `fedcal[flower]`."""

from typing import TYPE_CHECKING

from fedcal.base.lazy import lazily
from fedcal.errors import FedCalError

try:
    import flwr  # noqa: F401
except ImportError:
    raise FedCalError("fedcal.transport.flower needs Flower: pip install 'fedcal[flower]'") from None

if TYPE_CHECKING:
    from fedcal.protocol import Privacy
    from fedcal.transport.flower.average import ExactFedAvg
    from fedcal.transport.flower.client import calibration_mod
    from fedcal.transport.flower.grid import LocalGrid
    from fedcal.transport.flower.node import personal_scaler
    from fedcal.transport.flower.samples import features_of, logits_of
    from fedcal.transport.flower.strategy import CalibratedStrategy

__all__ = [
    "CalibratedStrategy",
    "ExactFedAvg",
    "LocalGrid",
    "Privacy",
    "calibration_mod",
    "features_of",
    "logits_of",
    "personal_scaler",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "CalibratedStrategy": "fedcal.transport.flower.strategy",
        "ExactFedAvg": "fedcal.transport.flower.average",
        "LocalGrid": "fedcal.transport.flower.grid",
        "Privacy": "fedcal.protocol",
        "calibration_mod": "fedcal.transport.flower.client",
        "features_of": "fedcal.transport.flower.samples",
        "logits_of": "fedcal.transport.flower.samples",
        "personal_scaler": "fedcal.transport.flower.node",
    },
)
