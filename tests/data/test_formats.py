from __future__ import annotations

import gzip

import numpy as np
import pytest

from fedcal.data import formats


def test_svhn_decodes_to_records_with_label_ten_as_zero(small):
    records = formats.decode(small["train_32x32.mat"], ".mat", (6, 3073))
    assert records[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    # the same pixels, in the same order, as CIFAR's layout of the same images
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    assert np.array_equal(records[:, 1:].reshape(6, 3, 32, 32), images)


def test_a_truncated_or_foreign_gzip_is_told(tmp_path, small):
    path = tmp_path / "a.gz"
    for data in (small["train-labels-idx1-ubyte.gz"][:-12], b"no gzip at all", b""):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"gzip|header"):
            formats.decode(formats.content(path), ".gz", (6,))


@pytest.mark.parametrize("wrong", [b"\0\0\x09\x01\0\0\0\x06abcdef", b"\0\0\x08\x01\0\0\0\x05abcde"])
def test_a_wrong_magic_or_count_is_told(wrong):
    with pytest.raises(ValueError, match="header"):
        formats.decode(wrong, ".gz", (6,))


def test_a_wrong_number_of_bytes_is_told():
    with pytest.raises(ValueError, match="expected 6148 bytes of values, found 6147"):
        formats.decode(bytes(6147), ".bin", (2, 3074))


def test_a_damaged_mat_file_is_told(small):
    whole = small["train_32x32.mat"]
    for data in (whole[: len(whole) // 2], b"", b"x" * 4000):
        with pytest.raises(ValueError, match="MATLAB"):
            formats.decode(data, ".mat", (6, 3073))
    with pytest.raises(ValueError, match="expected 7 uint8 images"):
        formats.decode(whole, ".mat", (7, 3073))


def test_content_of_a_gz_is_decompressed(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"inside"))
    (tmp_path / "a.bin").write_bytes(b"as is")
    assert formats.content(tmp_path / "a.gz") == b"inside"
    assert formats.content(tmp_path / "a.bin") == b"as is"
