"""Files: JSON and safetensors, written whole or not at all. Nothing that is read here can run code."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedcal.errors import FedCalError

RESULTS_SCHEMA = 2  # of results.json, which a run writes and a report reads


def write_bytes(path: Path, data: bytes, private: bool = False) -> None:
    """Write a file atomically: a reader, or a run killed meanwhile, sees the old file or the new one.

    Args:
        path: of the file. Folders that are missing are made.
        data: its content.
        private: whether nobody but this user may read it, nor look into folders that are made for it: for files that hold
            samples, what follows from few of them, or keys.
    """
    try:
        make_folder(path.parent, private)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o600 if private else 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FedCalError(f"cannot write {path}: {error.strerror or error}; choose a folder you can write to") from None


def make_folder(folder: Path, private: bool = False) -> None:
    """Make a folder and those above it, where they are missing; if private, for this user alone."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()] if private else []
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        one.chmod(0o700)


def append_line(path: Path, line: str) -> None:
    """One more line at the end of a log."""
    try:
        with path.open("a") as file:
            file.write(line + "\n")
    except OSError as error:
        raise FedCalError(
            f"cannot write {path}: {error.strerror or error}; correct that and go on with --resume"
        ) from None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_json(path: Path, content: Any) -> None:
    """Sorted and indented, so that equal content is equal bytes."""
    write_bytes(path, (json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None, at any depth: JSON has neither."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an error that names the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FedCalError(f"{path} is missing: is {path.parent} a run folder?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FedCalError(f"{path} cannot be read as JSON ({str(error).splitlines()[0]}): run it again") from None
    if not isinstance(content, dict):
        raise FedCalError(f"{path} should hold a JSON object, not {type(content).__name__}: run it again")
    return content


def write_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Tensors with `about` as JSON in the header (one key: safetensors does not keep the order of several)."""
    header = {"fedcal": json.dumps(about, sort_keys=True)}
    apart = {name: value.detach().clone().contiguous() for name, value in tensors.items()}  # clients may share tensors
    write_bytes(path, save(apart, metadata=header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and the header's `about`."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("fedcal", "null"))
            if not isinstance(about, dict):
                raise FedCalError(f"{path} was not written by fedcal: delete it, or use another folder")
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise FedCalError(f"{path} is missing") from None
    except (SafetensorError, OSError, json.JSONDecodeError, RecursionError) as error:
        raise FedCalError(
            f"{path} is damaged or no safetensors file ({str(error).splitlines()[0]}): delete it, or use another folder"
        ) from None


def nest(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names put under `prefix/`."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def unnest(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What stands under `prefix/`, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}/")}
