"""A federation's logits, read from an archive or from the recording of its training.

Archives (.npz) hold cal_logits, cal_labels, cal_client, test_logits, test_labels, test_client and train_counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from fedcal.base.seeds import numpy_rng

Split = dict[str, tuple[torch.Tensor, torch.Tensor]]  # each client's logits and labels


def read(path: Path) -> tuple[Split, Split]:
    """Each client's calibration and test samples, from an archive, a recording's folder or its `final.safetensors`."""
    read_split = _of_archive if path.suffix == ".npz" else _of_recording
    return read_split(path, "cal"), read_split(path, "test")


def _of_archive(path: Path, split: str) -> Split:
    a = np.load(path, allow_pickle=False)
    logits, labels = torch.from_numpy(a[f"{split}_logits"]).double(), torch.from_numpy(a[f"{split}_labels"]).long()
    of = a[f"{split}_client"]
    return {str(c): (logits[of == c], labels[of == c]) for c in range(len(a["train_counts"]))}


def _of_recording(path: Path, split: str) -> Split:
    tensors, found = load_file(path / "final.safetensors" if path.is_dir() else path), f"{split}/logits/"
    names = sorted(key.removeprefix(found) for key in tensors if key.startswith(found))
    return {c: (tensors[f"{found}{c}"].double(), tensors[f"{split}/labels/{c}"]) for c in names}


def halves(clients: Split) -> tuple[Split, Split]:
    """Each client's samples, split at random into two."""
    first, second = {}, {}
    for name, (logits, labels) in clients.items():
        order = numpy_rng(0, "halves", name).permutation(len(labels))
        a, b = order[: len(order) // 2], order[len(order) // 2 :]
        first[name], second[name] = (logits[a], labels[a]), (logits[b], labels[b])
    return first, second


def deal(clients: Split, parts: int, number: int) -> tuple[Split, Split]:
    """Part `number` of each client's samples, dealt at random into equal parts, and all the others."""
    chosen, others = {}, {}
    for name, (logits, labels) in clients.items():
        rng = numpy_rng(0, "deal", name)
        order, offset = rng.permutation(len(labels)), int(rng.integers(parts))  # small clients do not all begin with 0
        part = (order + offset) % parts
        of, rest = (torch.from_numpy(rows) for rows in (part == number, part != number))
        if bool(of.any()):
            chosen[name] = logits[of], labels[of]
        others[name] = logits[rest], labels[rest]
    return chosen, others
