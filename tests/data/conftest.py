"""Small stand-ins for the canonical files, and a folder with the real ones where there is one."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io

from fedcal.data.sources import SOURCES, Download, File, Source


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def mat_bytes(images: np.ndarray, labels: np.ndarray) -> bytes:
    out = io.BytesIO()
    scipy.io.savemat(out, {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None]}, do_compression=True)
    return out.getvalue()


def tar_bytes(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Tables for a six-sample mnist, svhn and cifar100; returns what a server would serve under each name."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    digits = rng.integers(0, 256, (6, 28, 28), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8)
    served: dict[str, bytes] = {}

    mnist = []
    for name, array in (("train-images", digits), ("train-labels", labels), ("t10k-images", digits[:2]),
                        ("t10k-labels", labels[:2])):  # fmt: skip
        data = idx_bytes(array)
        file = File(f"{name}-idx{array.ndim}-ubyte.gz", array.shape, md5(data))
        served[file.name] = gzip.compress(data, mtime=0)
        mnist.append(Download(f"http://official.invalid/{file.name}", sha256(served[file.name]), (file,)))
    monkeypatch.setitem(SOURCES, "mnist", Source("mnist", tuple(mnist)))

    svhn = []
    for name, n in (("train_32x32.mat", 6), ("test_32x32.mat", 2)):
        served[name] = mat_bytes(images[:n], np.where(labels[:n] == 0, 10, labels[:n]))
        file = File(name, (n, 3073), counts=(1,) * n + (0,) * (10 - n))
        svhn.append(Download(f"http://official.invalid/{name}", sha256(served[name]), (file,)))
    monkeypatch.setitem(SOURCES, "svhn", Source("svhn", tuple(svhn)))

    records = np.concatenate([labels[:, None] // 5, labels[:, None], images.reshape(6, -1)], axis=1)
    inner = {"train.bin": records.tobytes(), "test.bin": records[:2].tobytes()}
    archive = tar_bytes({f"cifar-100-binary/{name}": data for name, data in inner.items()})
    served["cifar-100-binary.tar.gz"] = archive
    found = tuple(File(name, (len(data) // 3074, 3074), md5(data)) for name, data in inner.items())
    download = Download("http://official.invalid/cifar-100-binary.tar.gz", sha256(archive), found)
    monkeypatch.setitem(SOURCES, "cifar100", Source("cifar-100-binary", (download,)))
    return served


@pytest.fixture
def mnist_dir(small: dict[str, bytes], tmp_path: Path) -> Path:
    """A data folder with the small mnist in place."""
    (tmp_path / "mnist").mkdir()
    for file in SOURCES["mnist"].files:
        (tmp_path / "mnist" / file.name).write_bytes(small[file.name])
    return tmp_path


@pytest.fixture
def real_data() -> Path:
    folder = os.environ.get("FEDCAL_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the canonical files: set FEDCAL_DATA to their folder")
    return Path(folder)
