"""Files: JSON and safetensors, written whole or not at all, each with a digest. Nothing that is read here can run code."""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedcal.base.arrays import Params
from fedcal.base.codec import pack, parse_json, seal, unpack, unseal
from fedcal.base.limits import MOST_BYTES
from fedcal.errors import FedCalError

T = TypeVar("T")

RESULTS_SCHEMA = 2  # of results.json, which a run writes and a report reads


def write_bytes(path: Path, data: bytes, private: bool = False) -> None:
    """Write a file atomically: a reader, or a run killed meanwhile, sees the old file or the new one.

    Args:
        path: of the file. Folders that are missing are made.
        data: its content.
        private: whether nobody but this user may read it, nor look into folders that are made for it: for files that hold
            samples, what follows from few of them, or keys.

    Raises:
        FedCalError: where it cannot be written, or is a folder, a device or a pipe, which a file must not replace.
    """
    if path.is_dir():
        raise FedCalError(f"cannot write {path}: it is a folder; name a file")
    if path.exists() and not path.is_file():
        raise FedCalError(f"cannot write {path}: it is a device or a pipe; name a file")
    try:
        make_folder(path.parent, private)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.")
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


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a file whole.

    Args:
        path: of a regular file: a device or a pipe may never end.
        most: bytes that it may have.

    Raises:
        FedCalError: where it is missing, no file, or too large.
    """
    try:
        size = regular_size(path)
        if size > most:
            raise FedCalError(f"{path} has {size} bytes, where {most} are the most: is it the right file?")
        return path.read_bytes()
    except OSError as error:
        raise FedCalError(f"{path} cannot be read: {error.strerror or error}") from None


def regular_size(path: Path) -> int:
    """Return a file's size in bytes.

    Raises:
        FedCalError: where it is neither a file nor a folder, but a device or a pipe.
        OSError: where it is missing.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise FedCalError(f"{path} is a device or a pipe, not a file: copy what it gives into a file first")
    return found.st_size


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path | None]) -> None:
    """Refuse to write over what is read, or over another output: also through links.

    Args:
        outputs: what will be written, by the option that says so; None where nothing is.
        inputs: what is read.

    Raises:
        FedCalError: which names both.
    """
    written = [(option, path) for option, path in outputs.items() if path is not None]
    for number, (option, path) in enumerate(written):
        for read in inputs:
            if read is not None and _same_file(path, read):
                raise FedCalError(f"{option} {path} is {read}, which is read: choose another file to write")
        for other, its_path in written[:number]:
            if _same_file(path, its_path):
                raise FedCalError(f"{option} {path} and {other} {its_path} are one file: choose two")


def _same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them is not there yet
        return os.path.realpath(one) == os.path.realpath(other)


# --- JSON ------------------------------------------------------------------------------------------------------------


def write_json(path: Path, content: dict[str, Any], private: bool = False) -> None:
    """Sorted and indented, with a digest, so that equal content is equal bytes."""
    text = json.dumps(seal(content), indent=1, sort_keys=True, allow_nan=False)
    write_bytes(path, f"{text}\n".encode(), private)


def finite(value: Any) -> Any:
    """Replace NaN and infinity by None, at any depth: JSON has neither."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object that `write_json` wrote, or an error that names the file."""
    if not path.exists():
        raise FedCalError(f"{path} is missing: is {path.parent} a run folder?")
    try:
        return unseal(parse_json(read_bytes(path), str(path)), str(path))
    except FedCalError as error:
        raise FedCalError(f"{error}: run it again") from None


# --- arrays ---------------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: Mapping[str, Any], about: dict[str, Any], private: bool = False) -> None:
    """Arrays or tensors, with `about` as JSON in the header."""
    write_bytes(path, pack(tensors, about), private)


def read_tensors(path: Path) -> tuple[Params, dict[str, Any]]:
    """Arrays and the header's `about`, in which `write_tensors` wrote them."""
    if not path.exists():
        raise FedCalError(f"{path} is missing")
    data = read_bytes(path)
    try:
        return unpack(data)
    except FedCalError as error:
        raise FedCalError(
            f"{path} is damaged or not a file of fedcal's ({error}): give another one, or move it away"
        ) from None


def nest(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """The names put under `prefix/`."""
    return {f"{prefix}/{name}": value for name, value in tensors.items()}


def unnest(prefix: str, tensors: Mapping[str, T]) -> dict[str, T]:
    """What stands under `prefix/`, without it."""
    return {name[len(prefix) + 1 :]: value for name, value in tensors.items() if name.startswith(f"{prefix}/")}


def unnest_each(tensors: Mapping[str, T]) -> dict[str, dict[str, T]]:
    """What stands under every prefix, which is what precedes a name's first slash."""
    found: dict[str, dict[str, T]] = {}
    for name, value in tensors.items():
        prefix, _, rest = name.partition("/")
        found.setdefault(prefix, {})[rest] = value
    return found
