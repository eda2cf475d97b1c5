"""A fitted calibration as one safetensors file: the global scaler, the clients' own ones, and which method they are of."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from fedcal.calibrate.fit import Training
from fedcal.calibrate.methods import METHODS, Method, get_method
from fedcal.calibrate.rounds import Calibration
from fedcal.errors import FedCalError
from fedcal.store import nest, read_tensors, unnest, write_tensors

SCHEMA = 1


def save_scaler(path: str | Path, calibration: Calibration, name: str) -> None:
    """Write what is needed to serve; `name` is the method's in `METHODS`."""
    about = {
        "schema": SCHEMA,
        "method": name,
        "options": asdict(calibration.method),
        "n_classes": calibration.n_classes,
        "clients": sorted(calibration.own),
    }
    write_tensors(Path(path), scaler_tensors(calibration), about)


def load_scaler(path: str | Path) -> tuple[str, Calibration]:
    """The method's name and a calibration that serves as the saved one did."""
    tensors, about = read_tensors(Path(path))
    if (
        about.get("schema") != SCHEMA
        or about.get("method") not in METHODS
        or not isinstance(about.get("options"), dict)
    ):
        raise FedCalError(
            f"{path} is not a scaler that this fedcal knows: write it anew with `fedcal calibrate` or `run`"
        )
    try:
        method = method_of(about["method"], about["options"])
        own = {client: unnest(f"own/{client}", tensors) for client in about["clients"]}
        return about["method"], Calibration(method, unnest("global", tensors), own, n_classes=int(about["n_classes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise FedCalError(f"{path} is damaged ({error}): write it anew") from None


def method_of(name: str, options: dict[str, Any]) -> Method:
    """A method from its name and `asdict` of it, as files hold them."""
    options = dict(options)
    if isinstance(options.get("training"), dict):
        options["training"] = Training(**options["training"])
    return get_method(name, **options)


def scaler_tensors(calibration: Calibration) -> dict[str, Tensor]:
    """The global scaler under `global/`, each client's own under `own/NAME/`."""
    tensors = nest("global", calibration.params)
    for client, own in calibration.own.items():
        tensors |= nest(f"own/{client}", own)
    return tensors
