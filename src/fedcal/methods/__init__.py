"""The methods, one small file each, by the names users give."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from fedcal.errors import FedCalError, unknown
from fedcal.methods.avg_t import AvgT
from fedcal.methods.ens import Ens
from fedcal.methods.fed_linear import FedLinear
from fedcal.methods.fed_map import FedMap
from fedcal.methods.fed_op import FedOP
from fedcal.methods.fed_ts import FedTS
from fedcal.methods.fedcal import LITERAL, FedCal
from fedcal.methods.fedcal_plus import FedCalPlus
from fedcal.methods.lr_ts import LRTS
from fedcal.methods.method import Method, Update
from fedcal.methods.uncal import Uncal
from fedcal.methods.val_ts import ValTS

METHODS: dict[str, Method] = {
    "uncal": Uncal(),
    "val-ts": ValTS(),
    "ens": Ens(),
    "avg-t": AvgT(),
    "lr-ts": LRTS(),
    "fedcal": FedCal(),
    "fedcal-literal": FedCal("Algorithm 1 as printed: fitted in training rounds, on training data", **LITERAL),
    "fedcal-no-wm": FedCal("ablation: from the client's own net, not matched", start="own"),
    "fedcal-small": FedCal("ablation: 8 hidden units", hidden=8),
    "fedcal-no-op": FedCal("ablation: a net that need not preserve order", net="plain"),
    "fed-ts": FedTS(),
    "fed-bias": FedLinear("temperature and class bias, exactly, from sums"),
    "fed-vector": FedLinear("a scale and a bias for each class, exactly, from sums", family="vector", ridge=10.0),
    "fed-matrix": FedLinear("a matrix and a bias, exactly, from sums", family="matrix", ridge=100.0),
    "fed-beta": FedMap("temperature, then a beta map of the top confidence"),
    "fed-hist": FedMap("temperature, then a histogram map of the top confidence", kind="hist"),
    "fed-op": FedOP(),
    "fedcal-plus": FedCalPlus(),
}

DEFAULT = "fedcal-plus"  # the best of them, wherever no method is named


def get_method(name: str, **options: Any) -> Method:
    """The method of this name, with options of its own (its fields) set anew."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    known = [field.name for field in fields(METHODS[name])]
    for option in options:
        if option not in known:
            raise FedCalError(f"{name}: {unknown('option', option, known)}")
    return replace(METHODS[name], **options)


__all__ = ["DEFAULT", "METHODS", "Method", "Update", "get_method"]
