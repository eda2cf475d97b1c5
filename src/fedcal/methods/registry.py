"""All methods that users can name: METHODS, in the order of the tables. A new method is added here."""

from __future__ import annotations

from fedcal.methods.avg_t import AvgT
from fedcal.methods.ens import Ens
from fedcal.methods.fed_head import FedHead
from fedcal.methods.fed_linear import FedLinear
from fedcal.methods.fed_map import FedMap
from fedcal.methods.fed_op import FedOP
from fedcal.methods.fed_ts import FedTS
from fedcal.methods.fedcal import LITERAL, FedCal
from fedcal.methods.fedcal_plus import FedCalPlus
from fedcal.methods.lr_ts import LRTS
from fedcal.methods.method import Method
from fedcal.methods.uncal import Uncal
from fedcal.methods.val_ts import ValTS

_ALL: tuple[Method, ...] = (
    Uncal(),
    ValTS(),
    Ens(),
    AvgT(),
    LRTS(),
    FedCal(),
    FedCal("fedcal-literal", "Algorithm 1 as printed: fitted in training rounds, on training data", **LITERAL),
    FedCal("fedcal-no-wm", "ablation: from the client's own net, not matched", start="own"),
    FedCal("fedcal-small", "ablation: 8 hidden units", hidden=8),
    FedCal("fedcal-no-op", "ablation: a net that need not preserve order", net="plain"),
    FedTS(),
    FedLinear(),
    FedLinear("fed-vector", "a scale and a bias for each class, exactly, from sums", family="vector", ridge=10.0),
    FedLinear("fed-matrix", "a matrix and a bias, exactly, from sums", family="matrix", ridge=100.0),
    FedMap(),
    FedMap("fed-hist", "temperature, then a histogram map of the top confidence", kind="hist"),
    FedOP(),
    FedCalPlus(),
    FedHead(),
)
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
"""All methods by name, in the order of the tables.

Examples:
    >>> import fedcal
    >>> list(fedcal.METHODS)[:4]
    ['uncal', 'val-ts', 'ens', 'avg-t']
    >>> fedcal.METHODS["fed-ts"].leaves
    'two sums: slope and curvature'
"""
