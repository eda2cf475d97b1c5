"""The datasets: whole tensors in memory, as published. What clients hold is cut from them in partition.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedcal.base.seeds import numpy_rng
from fedcal.data import class_names, files, hospitals, synthetic
from fedcal.data.formats import Bytes
from fedcal.data.sources import SOURCES
from fedcal.errors import FedCalError, check_known


@dataclass(frozen=True)
class Dataset:
    """Inputs: uint8 images (n, c, h, w), features (n, d) with NaN where missing, or int64 token ids. Labels: int64."""

    name: str
    classes: tuple[str, ...]
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    train_client: Tensor | None = None  # who holds the sample, where the data says so: index into client_names
    test_client: Tensor | None = None
    client_names: tuple[str, ...] = ()
    standardised: bool = True  # whether clients get inputs of zero mean and unit variance; token ids never do

    def __post_init__(self) -> None:
        for split, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            if len(x) != len(y):
                raise FedCalError(f"{self.name}: {len(x)} {split} inputs but {len(y)} labels")
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.n_classes:
                raise FedCalError(
                    f"{self.name}: {split} labels lie in {int(y.min())}..{int(y.max())}, "
                    f"expected 0..{self.n_classes - 1} for {self.n_classes} classes"
                )

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train_x.shape[1:])


@dataclass(frozen=True)
class Description:
    """What DATASETS says of a set: how to load it, and what suits it."""

    summary: str
    classes: tuple[str, ...]
    model: str  # the default, by its name in fedcal.learn.models
    loader: Callable[[str, str | Path | None, int], Dataset]  # name, data_dir, seed
    embedded: bool = False
    partition: str = "dirichlet"


def load(name: str, data_dir: str | Path | None = None, seed: int = 0, *, limit: int | None = None) -> Dataset:
    """Load a data set.

    Args:
        name: one of DATASETS.
        data_dir: the folder of its files; $FEDCAL_DATA if not given, else the user's cache.
        seed: draws the test split of sets published without one, and the mixture of `synthetic`.
        limit: keep that many training samples at random, and a fifth as many test samples: real data for a quick look.

    Returns:
        Training and test samples as whole tensors.

    Raises:
        FedCalError: the name is unknown, or a file is missing or damaged.
    """
    check_known("data set", name, DATASETS)
    if limit is not None and limit < 1:
        raise FedCalError(f"limit must be at least 1 training sample, got {limit}")
    dataset = DATASETS[name].loader(name, data_dir, seed)
    return dataset if limit is None else limited(dataset, limit, seed)


def limited(dataset: Dataset, limit: int, seed: int) -> Dataset:
    def some(y: Tensor, n: int, split: str) -> Tensor:
        return torch.from_numpy(np.sort(numpy_rng(seed, "limit", split).permutation(len(y))[:n]))

    train = some(dataset.train_y, limit, "train")
    test = some(dataset.test_y, max(1, limit // 5), "test")
    return replace(
        dataset,
        train_x=dataset.train_x[train],
        train_y=dataset.train_y[train],
        test_x=dataset.test_x[test],
        test_y=dataset.test_y[test],
        train_client=None if dataset.train_client is None else dataset.train_client[train],
        test_client=None if dataset.test_client is None else dataset.test_client[test],
    )


def _held_out(strata: Tensor, fraction: float, seed: int) -> Tensor:
    """A mask that holds out `fraction` of each stratum, and at least one of those with two or more."""
    held = torch.zeros(len(strata), dtype=torch.bool)
    for stratum in strata.unique().tolist():
        members = numpy_rng(seed, "test split", stratum).permutation(np.flatnonzero(strata == stratum))
        held[members[: max(round(fraction * len(members)), min(1, len(members) - 1))]] = True
    return held


def _digits(name: str, data_dir: str | Path | None, seed: int) -> Dataset:
    from sklearn.datasets import load_digits  # slow to import, and no other set needs it

    pixels, labels = load_digits(return_X_y=True)  # 0..16
    x = torch.from_numpy(np.rint(pixels * (255 / 16)).astype(np.uint8)).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels.astype(np.int64))
    test = _held_out(y, 0.25, seed)
    return Dataset(name, DATASETS[name].classes, x[~test], y[~test], x[test], y[test])


def _heart(name: str, data_dir: str | Path | None, seed: int) -> Dataset:
    x, y, hospital = hospitals.read()
    test = _held_out(2 * hospital + y, 0.3, seed)
    return Dataset(
        name, DATASETS[name].classes, x[~test], y[~test], x[test], y[test],
        train_client=hospital[~test], test_client=hospital[test], client_names=hospitals.HOSPITALS,
    )  # fmt: skip


def _synthetic(name: str, data_dir: str | Path | None, seed: int) -> Dataset:
    train, test = synthetic.sample(20_000, seed, "train"), synthetic.sample(10_000, seed, "test")
    return Dataset(name, DATASETS[name].classes, *train, *test)


def _idx(name: str, data_dir: str | Path | None, seed: int) -> Dataset:
    """A set in MNIST's four files: images and labels of train, then of test."""
    arrays = [files.read(name, file, data_dir) for file in SOURCES[name].files]
    train_x, test_x = (torch.from_numpy(images[:, None].copy()) for images in arrays[::2])  # bytes are read-only
    train_y, test_y = (torch.from_numpy(labels.astype(np.int64)) for labels in arrays[1::2])
    return Dataset(name, DATASETS[name].classes, train_x, train_y, test_x, test_y)


def _records(name: str, data_dir: str | Path | None, seed: int) -> Dataset:
    """32 × 32 colour images: the last byte before the 3072 pixels is the label (CIFAR-100: the fine one)."""

    def tensors(parts: list[Bytes]) -> tuple[Tensor, Tensor]:
        pixels = np.concatenate([records[:, -3072:] for records in parts])
        labels = np.concatenate([records[:, -3073] for records in parts]).astype(np.int64)
        return torch.from_numpy(pixels).view(-1, 3, 32, 32), torch.from_numpy(labels)

    *train, test = (files.read(name, file, data_dir) for file in SOURCES[name].files)
    return Dataset(name, DATASETS[name].classes, *tensors(train), *tensors([test]))


# fmt: off
DATASETS: dict[str, Description] = {
    "digits": Description(
        "1 797 digits, 8 × 8 grey", class_names.DIGITS, "mlp", _digits, embedded=True),
    "heart": Description(
        "920 patients of 4 hospitals, 13 findings", ("healthy", "disease"), "mlp", _heart, embedded=True,
        partition="natural"),
    "synthetic": Description(
        "30 000 draws of a Gaussian mixture, true posterior known", class_names.DIGITS, "mlp", _synthetic,
        embedded=True),
    "mnist": Description("70 000 digits, 28 × 28 grey", class_names.DIGITS, "cnn", _idx),
    "fashion-mnist": Description("70 000 garments, 28 × 28 grey", class_names.FASHION, "cnn", _idx),
    "svhn": Description("99 289 house digits, 32 × 32 colour", class_names.DIGITS, "cnn", _records),
    "cifar10": Description("60 000 objects, 32 × 32 colour", class_names.CIFAR10, "resnet14", _records),
    "cifar100": Description("60 000 objects, 32 × 32 colour", class_names.CIFAR100, "resnet32", _records),
}
# fmt: on
