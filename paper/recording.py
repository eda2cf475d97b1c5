"""Record the logits of a training run, so that scalers can be fitted under any method without training again.

FOLDER/rounds/0001.safetensors   each trained client's own model on its training samples: CLIENT/local/train
FOLDER/final.safetensors         the final model on every client's calibration and test split, and all labels
FOLDER/features.safetensors      if asked for: [logits | features] of every client's calibration, training and test split
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedcal.base.arrays import tensors as tensors_of
from fedcal.base.last_layer import with_features
from fedcal.base.store import read_tensors, unnest, write_tensors
from fedcal.data.samples import Samples
from fedcal.learn.local import predict
from fedcal.simulate.config import Config
from fedcal.simulate.federation import Federation
from fedcal.transport.features import feature_rows

SCHEMA = 1
FEATURES = "features.safetensors"
LOCAL = "local/train"  # of the client's own model on its training samples


def write_round(folder: Path, number: int, logits: dict[str, Tensor]) -> None:
    """Write the logits of a round's clients on their training samples."""
    tensors = {f"{client}/{LOCAL}": value.float() for client, value in logits.items()}
    write_tensors(_round(folder, number), tensors, {"schema": SCHEMA})


def write_final(folder: Path, state: Federation, about: dict[str, Any]) -> None:
    """Write the final model's logits, all labels, and `about` in the header."""
    tensors = {"train_counts": state.skew.train}
    for split in ("cal", "test"):
        for client in state.clients:
            tensors[f"{split}/logits/{client.name}"] = predict(state.model, getattr(client, f"{split}_x")).float()
            tensors[f"{split}/labels/{client.name}"] = getattr(client, f"{split}_y").cpu()
    tensors |= {f"train/labels/{client.name}": client.train_y.cpu() for client in state.clients}
    names = [client.name for client in state.clients]
    about = {"schema": SCHEMA, "config": state.config.to_dict(), "clients": names, "G": state.skew.G, **about}
    write_tensors(folder / "final.safetensors", tensors, about)


def write_features(folder: Path, state: Federation) -> None:
    """Write the final model's logits and features (the input of its last layer) on every split, as they are: in float32."""
    whole, tensors = with_features(state.model), {}
    for split in ("cal", "train", "test"):
        for client in state.clients:
            rows = feature_rows(whole, getattr(client, f"{split}_x"), trained=split == "train")
            tensors[f"{split}/{client.name}"] = rows
    write_tensors(folder / FEATURES, tensors, {"schema": SCHEMA})


class Recording:
    """A finished training run's logits."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        arrays, self.about = read_tensors(folder / "final.safetensors")
        tensors = tensors_of(arrays)
        self.config = Config.from_dict(self.about["config"], str(folder))
        self.names: list[str] = self.about["clients"]
        self.train_counts = tensors["train_counts"]
        self.splits = {split: self._pairs(unnest(split, tensors)) for split in ("cal", "test")}
        self.train_labels = unnest("train/labels", tensors)

    def samples(self, split: str = "cal") -> dict[str, Samples]:
        """The final model's logits on each client's calibration or test split, with the labels."""
        return self.splits[split]

    def round(self, number: int) -> dict[str, Samples]:
        """The logits of the clients of round 1, 2, … on their training samples, with the labels."""
        tensors = tensors_of(read_tensors(_round(self.folder, number))[0])
        logits = {name.removesuffix(f"/{LOCAL}"): value for name, value in tensors.items()}
        return {name: (logits[name].double(), self.train_labels[name]) for name in self.names if name in logits}

    def rows(self) -> tuple[dict[str, Samples], dict[str, Samples]]:
        """Rows with features: each client's calibration and training samples, to fit on; and its test samples."""
        tensors = tensors_of(read_tensors(self.folder / FEATURES)[0])
        cal, train, test = (unnest(split, tensors) for split in ("cal", "train", "test"))
        fit = {
            name: (
                torch.cat([cal[name], train[name]]),
                torch.cat([self.splits["cal"][name][1], self.train_labels[name]]),
            )
            for name in self.names
        }
        return fit, {name: (test[name], self.splits["test"][name][1]) for name in self.names}

    @property
    def n_classes(self) -> int:
        return self.train_counts.shape[1]

    def _pairs(self, tensors: dict[str, Tensor]) -> dict[str, Samples]:
        logits, labels = unnest("logits", tensors), unnest("labels", tensors)
        return {name: (logits[name].double(), labels[name]) for name in self.names}


def _round(folder: Path, number: int) -> Path:
    return folder / "rounds" / f"{number:04d}.safetensors"
