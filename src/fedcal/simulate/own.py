"""Users' own data and model in a run: read, checked, and named in the config.

A config names data as NAME@HASH and a model as MODULE:FUNCTION. These are labels, to tell whether a resumed run has the same
data and model. Nothing is ever loaded by them: a run folder may come from a stranger, and importing runs code.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedcal.data import Dataset
from fedcal.data.datasets import limited
from fedcal.data.own import ARRAYS, own_dataset
from fedcal.data.own_files import read_own
from fedcal.errors import FedCalError
from fedcal.learn.own import Model, is_own, label_of
from fedcal.simulate.config import Config


def with_own(config: Config, data: Any, model: Model | None) -> tuple[Config, Dataset | None]:
    """Read a user's own data, and name data and model in the config.

    Args:
        config: of the run.
        data: the user's, as `fedcal.run` takes them; None for the config's.
        model: the user's; None for the config's.

    Returns:
        The config, and the data set, if it is the user's.

    Raises:
        FedCalError: the data are not as they should be, or the config has another model.
    """
    dataset = None
    if data is not None:
        dataset = _read(config, data)
        natural = "natural" if dataset.client_names else None
        config = replace(config, data=dataset.name, partition=config.partition or natural)
    if model is not None:
        if config.model is not None and not is_own(config.model):
            raise FedCalError(f"the config has model {config.model!r}, and another one is given: leave one of them out")
        config = replace(config, model=config.model or label_of(model))
    return config, dataset


def _read(config: Config, data: Any) -> Dataset:
    """The data, split and limited as the config says."""
    name = ARRAYS
    if isinstance(data, str | Path):
        data, name = read_own(Path(data)), Path(data).stem
    dataset = own_dataset(
        data, name=name, standardise=config.standardise, test_fraction=config.test_fraction, seed=config.seed
    )
    return dataset if config.limit is None else limited(dataset, config.limit, config.seed)
