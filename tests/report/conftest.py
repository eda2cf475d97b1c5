"""Two small real runs, each made once, and one of them stretched to many clients and classes.

A test that needs an extreme (an undefined value, a method that hurts) changes its own copy of the real results.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

import fedcal
from fedcal.report import Run, load
from fedcal.report.results import Results

DIGITS = fedcal.Config(
    data="digits", model="logistic", clients=8, beta=0.3, rounds=3, epochs=1,
    method=("uncal", "val-ts", "ens", "fed-ts", "fedcal-plus"),
)  # fmt: skip
HEART = fedcal.Config(data="heart", rounds=1, method=("uncal", "ens", "fed-ts"))


@pytest.fixture(scope="session")
def digits_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes, clients without names of their own, and the reference that sees pooled data."""
    folder = tmp_path_factory.mktemp("digits")
    fedcal.run(DIGITS, folder)
    return folder


@pytest.fixture(scope="session")
def heart_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes and four hospitals, all with names."""
    folder = tmp_path_factory.mktemp("heart")
    fedcal.run(HEART, folder)
    return folder


@pytest.fixture(scope="session")
def digits_run(digits_dir: Path) -> Run:
    return load(digits_dir)


@pytest.fixture
def digits(digits_run: Run) -> Results:
    return copy.deepcopy(digits_run.results)


@pytest.fixture
def rounds(digits_run: Run) -> list[dict[str, object]]:
    return copy.deepcopy(digits_run.rounds)


@pytest.fixture
def heart(heart_dir: Path) -> Results:
    return load(heart_dir).results


@pytest.fixture
def run_dir(tmp_path: Path, heart_dir: Path) -> Path:
    """A copy of a run folder to spoil; without its report."""
    return Path(shutil.copytree(heart_dir, tmp_path / "run", ignore=shutil.ignore_patterns("report.html")))


@pytest.fixture
def many(digits: Results) -> Results:
    """The real run, its clients and classes repeated until there are a hundred of each, and its test set enlarged."""

    def stretched(values: list) -> list:
        return (values * 100)[:100]

    data = digits["data"]
    data["classes"] = [f"class-{k}" for k in range(100)]
    data["clients"] = [f"client-{c:02d}" for c in range(100)]
    for key in ("train_counts", "cal_counts", "test_counts"):
        data[key] = stretched([stretched(row) for row in data[key]])
    data["kl"] = stretched(data["kl"])
    for method in digits["methods"].values():
        method["global"]["n"] = 10_000
        method["clients"] = {
            kind: {key: stretched(values) for key, values in by_client.items()}
            for kind, by_client in method["clients"].items()
        }
    return digits
