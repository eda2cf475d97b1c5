"""Where the canonical files of each dataset come from, and what they hold.

A download comes over https and is checked by the SHA-256 of the bytes as served. No publisher states one; these are those
of TensorFlow Datasets' list. A file on disk is checked by its *content*: the shape it decodes to, and the md5 of the
decompressed bytes or the number of samples of each class. So a copy that was compressed again, or came from a Linux
distribution, is as good as the original.
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
    """One address, the SHA-256 of the bytes it serves, and the files they give: one, or a tar.gz of several."""

    url: str
    sha256: str
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
_FASHION = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"  # the publisher's own
_SVHN = "https://ufldl.stanford.edu/housenumbers/"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"


def _single(base: str, sha256: str, file: File) -> Download:
    return Download(base + file.name, sha256, (file,))


# fmt: off
SOURCES: dict[str, Source] = {
    "digits": Source(),
    "heart": Source(),
    "synthetic": Source(),
    "mnist": Source("mnist", (
        _single(_MNIST, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                File("train-images-idx3-ubyte.gz", (60000, 28, 28), "6bbc9ace898e44ae57da46a324031adb")),
        _single(_MNIST, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                File("train-labels-idx1-ubyte.gz", (60000,), "a25bea736e30d166cdddb491f175f624")),
        _single(_MNIST, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                File("t10k-images-idx3-ubyte.gz", (10000, 28, 28), "2646ac647ad5339dbf082846283269ea")),
        _single(_MNIST, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
                File("t10k-labels-idx1-ubyte.gz", (10000,), "27ae3e4e09519cfbb04c329615203637")),
    )),
    "fashion-mnist": Source("fashion-mnist", (
        _single(_FASHION, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                File("train-images-idx3-ubyte.gz", (60000, 28, 28), "f4a8712d7a061bf5bd6d2ca38dc4d50a")),
        _single(_FASHION, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                File("train-labels-idx1-ubyte.gz", (60000,), "9018921c3c673c538a1fc5bad174d6f9")),
        _single(_FASHION, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                File("t10k-images-idx3-ubyte.gz", (10000, 28, 28), "8181f5470baa50b63fa0f6fddb340f0a")),
        _single(_FASHION, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
                File("t10k-labels-idx1-ubyte.gz", (10000,), "15d484375f8d13e6eb1aabb0c3f46965")),
    )),
    "svhn": Source("svhn", (
        _single(_SVHN, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                File("train_32x32.mat", (73257, 3073),
                     counts=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659))),
        _single(_SVHN, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                File("test_32x32.mat", (26032, 3073),
                     counts=(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595))),
    )),
    "cifar10": Source("cifar-10-batches-bin", (
        Download(_CIFAR + "cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", (
            File("data_batch_1.bin", (10000, 3073), "5dd7e06a14cb22eb9f671a540d1b7c25"),
            File("data_batch_2.bin", (10000, 3073), "5ea93a67294ea407fff1d09f752e9692"),
            File("data_batch_3.bin", (10000, 3073), "942cd6a4bcdd0dd3c604fbe906cb4421"),
            File("data_batch_4.bin", (10000, 3073), "ae636b3ba5c66a11e91e8cb52e771fcb"),
            File("data_batch_5.bin", (10000, 3073), "53f37980c15c3d472c316c40844f3f0d"),
            File("test_batch.bin", (10000, 3073), "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )),
    )),
    "cifar100": Source("cifar-100-binary", (
        Download(_CIFAR + "cifar-100-binary.tar.gz", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", (
            File("train.bin", (50000, 3074), "6172c7755cfe09b2fe270c85cebc1b15"),
            File("test.bin", (10000, 3074), "4499cfba6c016c1be1438163640a0898"),
        )),
    )),
}
# fmt: on
