"""The introduction's claim: "ensembling global and local models can further enhance accuracy".

Every client trains the final global model once more on its own data: its local model. The ensemble is the mean of both
models' probabilities. Measured on the client's own test samples, and on everyone's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fedcal.base.arrays import tensors
from fedcal.base.store import read_tensors
from fedcal.measure.tally import Tally, over_clients, pooled
from fedcal.simulate.config import Config
from paper import results as files
from paper.cells import about
from paper.plan import BETAS, paper_cells
from paper.present import Table, over_seeds, write_pages
from paper.recording import Recording

KINDS = ("global", "local", "ensemble")
WHERE = {"own": "its own test samples, mean over clients", "everyone": "everyone's test samples, mean over clients"}


def cells(seeds: Sequence[int], device: str, quick: bool) -> list[Config]:
    """MNIST and CIFAR-10 at every β, the federations of Table 1."""
    return [
        cell
        for data in ("mnist", "cifar10")[: 1 if quick else 2]
        for cell in paper_cells(data, BETAS, seeds, device, quick)
    ]


def measure(folder: Path) -> dict[str, Any]:
    """Accuracy and ECE of the three on clients' own test samples (mean over clients) and on everyone's."""
    record, tuned = Recording(folder), tensors(read_tensors(folder / "tuned.safetensors")[0])
    test = record.samples("test")
    logits, labels = (torch.cat([pair[i] for pair in test.values()]) for i in (0, 1))
    known = logits.softmax(dim=1)
    own: dict[str, list[Tally]] = {kind: [] for kind in KINDS}
    everyone: dict[str, list[Tally]] = {kind: [] for kind in KINDS}
    end = 0
    for name, (_, mine) in test.items():
        start, end = end, end + len(mine)
        local = tuned[name].double().softmax(dim=1)
        for kind, p in zip(KINDS, (known, local, (known + local) / 2), strict=True):
            log = p.clamp_min(1e-300).log()
            own[kind].append(Tally.of(log[start:end], labels[start:end]))
            everyone[kind].append(Tally.of(log, labels))
    keys = ("accuracy", "ece", "ece_floor", "nll")
    return {
        **about(record),
        "own": {kind: {key: over_clients(record.names, own[kind])[key] for key in keys} for kind in KINDS},
        "own_pooled": {kind: {key: pooled(own[kind]).summary()[key] for key in keys} for kind in KINDS},
        "everyone": {kind: {key: over_clients(record.names, everyone[kind])[key] for key in keys} for kind in KINDS},
    }


def present(results: Sequence[dict[str, Any]], out: Path) -> None:
    """ensemble.{json,md,tex}, from what `measure` gives of each cell."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault(result["name"].rsplit("-s", 1)[0], []).append(result)
    tables = []
    for where, title in WHERE.items():
        rows = []
        for cell, some in groups.items():
            row: list[Any] = [cell, len(some)]
            for key in ("accuracy", "ece"):
                for kind in KINDS:
                    row.append(over_seeds(some, lambda r, kind=kind, key=key, where=where: r[where][kind][key]))
            rows.append(row)
        head = ["cell", "seeds", *(f"{key}: {kind}" for key in ("accuracy", "ECE") for kind in KINDS)]
        tables.append(Table(f"Ensembles of the global and a client's model, on {title} (in %)", head, rows))
    files.write(out / "ensemble.json", {result["name"]: result for result in results})
    write_pages(out, "ensemble", tables)
