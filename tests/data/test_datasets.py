from __future__ import annotations

import pytest
import torch

from fedcal.data import DATASETS, Dataset, files, load
from fedcal.data.class_names import CIFAR100
from fedcal.data.sources import SOURCES
from fedcal.errors import FedCalError

SIZES = {
    "digits": (1797, (1, 8, 8), 10),
    "heart": (920, (22,), 2),
    "synthetic": (30_000, (16,), 10),
    "mnist": (70_000, (1, 28, 28), 10),
    "fashion-mnist": (70_000, (1, 28, 28), 10),
    "svhn": (99_289, (3, 32, 32), 10),
    "cifar10": (60_000, (3, 32, 32), 10),
    "cifar100": (60_000, (3, 32, 32), 100),
}


def same(a: Dataset, b: Dataset) -> bool:
    pairs = ((a.train_x, b.train_x), (a.train_y, b.train_y), (a.test_x, b.test_x), (a.test_y, b.test_y))
    return all(torch.equal(p.nan_to_num(), q.nan_to_num()) for p, q in pairs)


@pytest.mark.parametrize("name", SIZES)
def test_each_set_is_what_it_says(name, request):
    if not DATASETS[name].embedded and not files.status(name, request.getfixturevalue("real_data")).present:
        pytest.skip(f"{name} is not in FEDCAL_DATA")
    dataset = load(name)
    n, shape, n_classes = SIZES[name]
    assert len(dataset.train_y) + len(dataset.test_y) == n
    assert (dataset.shape, dataset.n_classes) == (shape, n_classes)
    assert dataset.train_x.dtype == dataset.test_x.dtype == (torch.uint8 if len(shape) == 3 else torch.float32)
    assert dataset.train_y.dtype == dataset.test_y.dtype == torch.int64
    assert dataset.train_y.unique().tolist() == dataset.test_y.unique().tolist() == list(range(n_classes))
    assert DATASETS[name].classes == dataset.classes


def test_mnist_from_its_four_files(mnist_dir):
    dataset = load("mnist", mnist_dir)
    assert dataset.train_x.shape == (6, 1, 28, 28) and dataset.test_x.shape == (2, 1, 28, 28)
    assert dataset.train_y.tolist() == [0, 1, 2, 3, 4, 5]


def test_cifar100_takes_the_fine_label(small, tmp_path):
    (tmp_path / "cifar-100-binary").mkdir()
    for file in SOURCES["cifar100"].files:
        n = file.shape[0]
        records = bytes(k for i in range(n) for k in (7, i, *[i] * 3072))  # coarse 7, fine i, all pixels i
        (tmp_path / "cifar-100-binary" / file.name).write_bytes(records)
    dataset = load("cifar100", tmp_path)
    assert dataset.train_y.tolist() == [0, 1, 2, 3, 4, 5]
    assert dataset.train_x[4].unique().tolist() == [4]


def test_a_missing_file_is_one_line_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCAL_DATA", str(tmp_path / "my data"))
    with pytest.raises(FedCalError, match=r"train_32x32\.mat is missing") as error:
        load("svhn")
    assert f"fedcal data fetch svhn --data-dir '{tmp_path}/my data'" in str(error.value)
    assert "\n" not in str(error.value)


def test_bad_arguments():
    with pytest.raises(FedCalError, match="unknown data set 'cifar-10': did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(FedCalError, match="limit must be at least 1"):
        load("digits", limit=0)


@pytest.mark.parametrize("name", ["digits", "heart", "synthetic"])
def test_the_seed_decides_the_split(name):
    assert same(load(name, seed=1), load(name, seed=1))
    assert not same(load(name, seed=1), load(name, seed=2))


def test_splits_are_stratified():
    digits = load("digits")
    share = digits.test_y.bincount() / (digits.test_y.bincount() + digits.train_y.bincount())
    assert torch.allclose(share, torch.tensor(0.25), atol=0.01)
    heart = load("heart")
    assert heart.train_client is not None and heart.test_client is not None
    train = (2 * heart.train_client + heart.train_y).bincount()
    test = (2 * heart.test_client + heart.test_y).bincount()
    assert torch.allclose(test / (train + test), torch.tensor(0.3), atol=0.06)  # 8 healthy Swiss: 2 of 8


def test_limit_keeps_a_random_part_with_its_clients():
    whole, part = load("heart"), load("heart", limit=100)
    assert (len(part.train_y), len(part.test_y)) == (100, 20)
    assert part.train_client is not None and len(part.train_client) == 100
    assert same(part, load("heart", limit=100))
    assert same(whole, load("heart", limit=10**6))
    assert len(load("digits", limit=1).test_y) == 1


def test_a_dataset_of_ones_own_is_checked():
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 2])
    with pytest.raises(FedCalError, match="mine: 3 train inputs but 2 labels"):
        Dataset("mine", ("a", "b", "c"), x, y[:2], x, y)
    with pytest.raises(FedCalError, match=r"mine: test labels lie in 0\.\.2, expected 0\.\.1"):
        Dataset("mine", ("a", "b"), x, y.clamp(max=1), x, y)


def test_cifar100_has_a_hundred_names_in_order():
    assert len(set(CIFAR100)) == 100 and list(CIFAR100) == sorted(CIFAR100)
