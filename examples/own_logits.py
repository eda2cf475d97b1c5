"""Calibrate your own model: one .npz per client in, the ECE before and after out.

    python examples/own_logits.py [FOLDER] [METHOD]

Each FOLDER/NAME.npz is one client and holds cal_logits (N, K), cal_labels (N,), test_logits and test_labels; neither
part may have been trained on. Without a folder, four clients with skewed labels and a model that is too confident are
made up.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import fedcal


def make_up(folder: Path, n_classes: int = 5, too_confident: float = 2.5) -> None:
    """Labels follow softmax(z) exactly; the logits are 2.5 z: the right temperature is 2.5."""
    rng = np.random.default_rng(0)
    for name in ("a", "b", "c", "d"):
        favour = np.log(rng.dirichlet(np.full(n_classes, 0.5)) + 0.01)  # this client's label skew
        z = rng.normal(size=(1500, n_classes)) * 1.5 + favour
        labels = (z + rng.gumbel(size=z.shape)).argmax(1)  # a draw from softmax(z)
        half = {"cal": slice(0, 500), "test": slice(500, None)}
        parts = {f"{k}_logits": too_confident * z[s] for k, s in half.items()}
        np.savez(folder / f"{name}.npz", **parts, **{f"{k}_labels": labels[s] for k, s in half.items()})


def main(folder: Path, method: str) -> None:
    clients = {path.stem: np.load(path) for path in sorted(folder.glob("*.npz"))}
    scaler = fedcal.calibrate({n: (c["cal_logits"], c["cal_labels"]) for n, c in clients.items()}, method=method)
    for title, predict in (("before", lambda z: torch.as_tensor(z).softmax(1)), (method, scaler.predict_proba)):
        # Each client sends bin sums of its test set; the server adds them up. Never average the clients' ECEs.
        sums = [fedcal.Reliability.of(predict(c["test_logits"]), c["test_labels"]) for c in clients.values()]
        whole = sum(sums, fedcal.Reliability.empty())
        low, high = whole.interval()
        print(f"{title:8s} ECE {whole.ece():6.2%}  95 % [{low:.2%}, {high:.2%}]  floor {whole.floor():.2%}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        if len(sys.argv) < 2:
            make_up(Path(temporary))
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary), sys.argv[2] if len(sys.argv) > 2 else "fedcal-plus")
