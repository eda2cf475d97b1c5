"""A fitted calibration as one safetensors file: the global scaler, the clients' own ones, and which method they are of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fedcal.base.checks import check_kind
from fedcal.base.labels import check_classes
from fedcal.base.store import nest, read_tensors, unnest, write_tensors
from fedcal.errors import FedCalError
from fedcal.methods import method_from_json, method_to_json
from fedcal.protocol.rounds import Calibration

SCHEMA = 1


def save_scaler(path: str | Path, calibration: Calibration) -> None:
    """Write what is needed to serve."""
    about = {
        "schema": SCHEMA,
        **method_to_json(calibration.method),
        "n_classes": calibration.n_classes,
        "classes": list(calibration.classes),
        "probs": calibration.probs,
        "clients": sorted(calibration.own),
    }
    write_tensors(Path(path), scaler_tensors(calibration), about)


def load_scaler(path: str | Path) -> Calibration:
    """A calibration that serves as the saved one did."""
    tensors, about = read_tensors(Path(path))
    if about.get("schema") != SCHEMA or "method" not in about:
        raise FedCalError(
            f"{path} is not a scaler that this fedcal knows: write it anew with `fedcal calibrate` or `run`"
        )
    try:
        method = method_from_json(about)
        own = {client: unnest(_under(client), tensors) for client in about["clients"]}
        classes, probs = _check_about(about)
        found = Calibration(method, unnest("global", tensors), own, n_classes=int(about["n_classes"]))
        found.classes, found.probs = classes, probs
        return found
    except (KeyError, TypeError, ValueError) as error:
        raise FedCalError(f"{path} is damaged ({error}): write it anew") from None


def _check_about(about: dict[str, Any]) -> tuple[tuple[Any, ...], bool | None]:
    """The classes' labels, and whether probabilities are taken; files of earlier versions say neither."""
    classes, probs = about.get("classes", []), check_kind(about.get("probs"))
    if not isinstance(classes, list):
        raise TypeError("classes")
    return tuple(check_classes(classes, int(about["n_classes"])).tolist() if classes else ()), probs


def scaler_tensors(calibration: Calibration) -> dict[str, Tensor]:
    """The global scaler under `global/`, each client's own under `own/NAME/`."""
    tensors = nest("global", calibration.params)
    for client, own in calibration.own.items():
        tensors |= nest(_under(client), own)
    return tensors


def _under(client: str) -> str:
    """Where a client's own scaler stands; a slash in its name must not look like a step down."""
    return f"own/{client.replace('%', '%25').replace('/', '%2F')}"
