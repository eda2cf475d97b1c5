"""Where the canonical files of each dataset come from, and what they hold.

A download is checked by the md5 its publisher (or torchvision's list) gives for the bytes as served. A file
on disk is checked by its *content*: the shape it decodes to, and the md5 of the decompressed bytes or the
number of samples of each class. So a copy that was compressed again, or came from a Linux distribution, is as
good as the original.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One file on disk. `shape` is that of the uint8 array it decodes to (see formats.py)."""

    name: str
    shape: tuple[int, ...]
    md5: str = ""
    counts: tuple[int, ...] = ()  # samples of each class, where no md5 of the content can be stated


@dataclass(frozen=True)
class Download:
    """One address, the md5 of the bytes it serves, and the files they give: one, or a tar.gz of several."""

    url: str
    md5: str
    files: tuple[File, ...]

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Source:
    """All downloads of a dataset and the sub-folder their files lie in; none at all for an embedded set."""

    folder: str = ""
    downloads: tuple[Download, ...] = ()

    @property
    def files(self) -> tuple[File, ...]:
        """Training files first, the test file (or images, labels) last."""
        return tuple(file for download in self.downloads for file in download.files)


# MNIST's first home (yann.lecun.com) no longer serves the files; this is the mirror torchvision uses.
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_SVHN = "http://ufldl.stanford.edu/housenumbers/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"


def _single(base: str, md5: str, file: File) -> Download:
    return Download(base + file.name, md5, (file,))


# fmt: off
SOURCES: dict[str, Source] = {
    "digits": Source(),
    "heart": Source(),
    "synthetic": Source(),
    "mnist": Source("mnist", (
        _single(_MNIST, "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                File("train-images-idx3-ubyte.gz", (60000, 28, 28), "6bbc9ace898e44ae57da46a324031adb")),
        _single(_MNIST, "d53e105ee54ea40749a09fcbcd1e9432",
                File("train-labels-idx1-ubyte.gz", (60000,), "a25bea736e30d166cdddb491f175f624")),
        _single(_MNIST, "9fb629c4189551a2d022fa330f9573f3",
                File("t10k-images-idx3-ubyte.gz", (10000, 28, 28), "2646ac647ad5339dbf082846283269ea")),
        _single(_MNIST, "ec29112dd5afa0611ce80d1b7f02629c",
                File("t10k-labels-idx1-ubyte.gz", (10000,), "27ae3e4e09519cfbb04c329615203637")),
    )),
    "fashion-mnist": Source("fashion-mnist", (
        _single(_FASHION, "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                File("train-images-idx3-ubyte.gz", (60000, 28, 28), "f4a8712d7a061bf5bd6d2ca38dc4d50a")),
        _single(_FASHION, "25c81989df183df01b3e8a0aad5dffbe",
                File("train-labels-idx1-ubyte.gz", (60000,), "9018921c3c673c538a1fc5bad174d6f9")),
        _single(_FASHION, "bef4ecab320f06d8554ea6380940ec79",
                File("t10k-images-idx3-ubyte.gz", (10000, 28, 28), "8181f5470baa50b63fa0f6fddb340f0a")),
        _single(_FASHION, "bb300cfdad3c16e7a12a480ee83cd310",
                File("t10k-labels-idx1-ubyte.gz", (10000,), "15d484375f8d13e6eb1aabb0c3f46965")),
    )),
    "svhn": Source("svhn", (
        _single(_SVHN, "e26dedcc434d2e4c54c9b2d4a06d8373",
                File("train_32x32.mat", (73257, 3073),
                     counts=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659))),
        _single(_SVHN, "eb5a983be6a315427106f1b164d9cef3",
                File("test_32x32.mat", (26032, 3073),
                     counts=(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595))),
    )),
    "cifar10": Source("cifar-10-batches-bin", (
        Download(_CIFAR + "cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", (
            File("data_batch_1.bin", (10000, 3073), "5dd7e06a14cb22eb9f671a540d1b7c25"),
            File("data_batch_2.bin", (10000, 3073), "5ea93a67294ea407fff1d09f752e9692"),
            File("data_batch_3.bin", (10000, 3073), "942cd6a4bcdd0dd3c604fbe906cb4421"),
            File("data_batch_4.bin", (10000, 3073), "ae636b3ba5c66a11e91e8cb52e771fcb"),
            File("data_batch_5.bin", (10000, 3073), "53f37980c15c3d472c316c40844f3f0d"),
            File("test_batch.bin", (10000, 3073), "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )),
    )),
    "cifar100": Source("cifar-100-binary", (
        Download(_CIFAR + "cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", (
            File("train.bin", (50000, 3074), "6172c7755cfe09b2fe270c85cebc1b15"),
            File("test.bin", (10000, 3074), "4499cfba6c016c1be1438163640a0898"),
        )),
    )),
}
# fmt: on
