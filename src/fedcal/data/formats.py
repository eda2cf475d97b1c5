"""The file formats of the image sets, each decoded to one uint8 array. Damaged input is a ValueError.

| suffix | format | decodes to |
|---|---|---|
| .gz | idx (MNIST), gzipped | images (n, h, w) or labels (n,) |
| .bin | CIFAR's binary version | records (n, label bytes + 3072): labels, then pixels channel by channel |
| .mat | MATLAB 5 (SVHN) | the same records, with one label byte 0..9 |

Nothing here can run code: no pickle, and MATLAB's function handles and objects are never asked for.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def content(path: Path) -> bytes:
    """The bytes of the file, decompressed if it is a .gz."""
    data = path.read_bytes()
    if path.suffix != ".gz":
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"expected a whole gzip file ({error})") from None


def decode(data: bytes, suffix: str, shape: tuple[int, ...]) -> Bytes:
    """The array of `shape` that `data` holds."""
    return {".gz": _idx, ".bin": _records, ".mat": _svhn}[suffix](data, shape)


def _idx(data: bytes, shape: tuple[int, ...]) -> Bytes:
    """Two zero bytes, the type (8: uint8), the number of axes, their big-endian lengths, then the values."""
    header = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    if data[: len(header)] != header:
        raise ValueError(f"expected the idx header of uint8 values of shape {shape}")
    return _records(data[len(header) :], shape)


def _records(data: bytes, shape: tuple[int, ...]) -> Bytes:
    if len(data) != np.prod(shape):
        raise ValueError(f"expected {np.prod(shape)} bytes of values, found {len(data)}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _svhn(data: bytes, shape: tuple[int, ...]) -> Bytes:
    """X is (row, column, channel, sample); y is 1..10, where 10 stands for the digit 0."""
    import scipy.io

    n = shape[0]
    try:
        arrays = scipy.io.loadmat(io.BytesIO(data), variable_names=["X", "y"])
        pixels, labels = arrays["X"], arrays["y"].ravel()
    except Exception as error:  # SciPy tells of damage with whatever its parser trips over
        raise ValueError(f"expected a MATLAB 5 file with X and y ({' '.join(str(error).split())})") from None
    if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, n) or labels.shape != (n,):
        raise ValueError(f"expected {n} uint8 images and labels, found X {pixels.shape} and y {labels.shape}")
    if labels.min() < 1 or labels.max() > 10:
        raise ValueError(f"expected labels 1..10, found {labels.min()}..{labels.max()}")
    records = np.empty(shape, np.uint8)
    records[:, 0] = labels % 10
    records[:, 1:].reshape(n, 3, 32, 32)[:] = pixels.transpose(3, 2, 0, 1)  # a view: splits the last axis only
    return records
