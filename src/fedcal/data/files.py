"""Canonical dataset files on disk: where they lie, whether they are there and whole, and how to get them."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedcal.data import formats
from fedcal.data.sources import SOURCES, Download, File, Source
from fedcal.errors import FedCalError, check_known


@dataclass(frozen=True)
class Status:
    """What is on disk: a look at names only (`verify` reads the files)."""

    folder: Path
    missing: tuple[str, ...]

    @property
    def present(self) -> bool:
        return not self.missing


@dataclass(frozen=True)
class Finding:
    """What `verify` found out about one file."""

    file: str
    ok: bool
    message: str


def folder(data_dir: str | Path | None = None) -> Path:
    """The folder that holds all datasets: the one given, else $FEDCAL_DATA, else the user's cache."""
    return Path(data_dir or os.environ.get("FEDCAL_DATA") or pooch.os_cache("fedcal")).expanduser()


def status(name: str, data_dir: str | Path | None = None) -> Status:
    """Which files of the set are there. An embedded set misses none."""
    source = _source(name)
    home = folder(data_dir) / source.folder
    return Status(home, tuple(file.name for file in source.files if not (home / file.name).is_file()))


def read(name: str, file: File, data_dir: str | Path | None = None, *, check: bool = False) -> formats.Bytes:
    """Decode one file of a set; with `check`, also compare its content with what the publisher's holds."""
    root = folder(data_dir)
    path = root / _source(name).folder / file.name
    try:
        data = formats.content(path)
        array = formats.decode(data, path.suffix, file.shape)
        if check:
            _check_content(file, data, array)
        return array
    except FileNotFoundError:
        problem = f"{path} is missing: expected {_expected(file)}"
    except OSError as error:
        problem = f"{path} cannot be read: {error.strerror or error}"
    except ValueError as error:
        problem = f"{path} is damaged: {error}"
    raise FedCalError(f"{problem}; get it with: fedcal data fetch {name} --data-dir {shlex.quote(str(root))}")


def verify(name: str, data_dir: str | Path | None = None) -> list[Finding]:
    """Read every file of the set and judge its content. An embedded set has nothing that could be amiss."""
    source = _source(name)
    if not source.files:
        return [Finding(name, True, "comes with the package")]
    return [_verify(name, file, data_dir) for file in source.files]


def fetch(name: str, data_dir: str | Path | None = None) -> list[str]:
    """Download what is missing or damaged and return the addresses used (none when all was there).

    A file gets its final name only once its checksum is right: whatever breaks a transfer, the same call again completes it.
    """
    source = _source(name)
    home = folder(data_dir) / source.folder
    good = {finding.file for finding in verify(name, data_dir) if finding.ok}
    wanted = [d for d in source.downloads if not good.issuperset(file.name for file in d.files)]
    if wanted:
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedCalError(f"cannot write {home}: {error.strerror or error}; choose another --data-dir") from None
    pooch.get_logger().setLevel("WARNING")  # the bar says it already
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        for download in wanted:
            _download(download, home, _Bar(bars, download.name))
    return [download.url for download in wanted]


def _source(name: str) -> Source:
    check_known("data set", name, SOURCES)
    return SOURCES[name]


def _expected(file: File) -> str:
    return f"{file.shape[0]} samples" + (f", md5 of the content {file.md5}" if file.md5 else "")


def _check_content(file: File, data: bytes, array: formats.Bytes) -> None:
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if file.md5 and found != file.md5:
        raise ValueError(f"expected content with md5 {file.md5}, found {found}")
    if file.counts:
        counts = tuple(np.bincount(array[:, 0], minlength=len(file.counts)).tolist())
        if counts != file.counts:
            raise ValueError(f"expected {file.counts} samples of the classes, found {counts}")


def _verify(name: str, file: File, data_dir: str | Path | None) -> Finding:
    try:
        read(name, file, data_dir, check=True)
    except FedCalError as error:
        return Finding(file.name, False, str(error))
    return Finding(file.name, True, _expected(file))


def _download(download: Download, home: Path, bar: _Bar) -> None:
    try:
        path = pooch.retrieve(
            download.url,
            f"sha256:{download.sha256}",
            download.name,
            home,
            progressbar=bar,  # pyright: ignore[reportArgumentType] (documented, but annotated as bool)
        )
        if download.name.endswith(".tar.gz"):
            _unpack(Path(path), download.files)
        return
    except OSError as error:  # which requests' errors are, too
        reason = " ".join(str(error).split())
    except ValueError:  # pooch's word for a wrong checksum
        reason = f"the bytes do not have SHA-256 {download.sha256}"
    raise FedCalError(
        f"cannot fetch {download.url}: {reason}; try again, or download it by hand and place it in {home}"
    )


def _unpack(archive: Path, files: tuple[File, ...]) -> None:
    """Take `files` out of the archive, each moved into place only when whole; then drop the archive."""
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch, tarfile.open(archive) as tar:
        members = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
        for file in files:
            # bytes are copied under a name we chose: no path inside the archive is ever followed
            stream = tar.extractfile(members[file.name])
            assert stream is not None  # a regular file, as filtered above
            part = Path(scratch) / file.name
            with part.open("wb") as out:
                shutil.copyfileobj(stream, out)
            part.replace(archive.parent / file.name)
    archive.unlink()


class _Bar:
    """Pooch's progress protocol (a settable total, update, reset, close) on a rich bar."""

    def __init__(self, bars: Progress, label: str) -> None:
        self.bars, self.task = bars, bars.add_task(label, total=None)
        self.total = 0

    def update(self, n: int) -> None:
        self.bars.update(self.task, advance=n, total=self.total or None)

    def reset(self) -> None:
        self.bars.reset(self.task)

    def close(self) -> None:
        self.bars.stop_task(self.task)
