"""Top-label ECE against torchmetrics, and both against an exact sum."""

from __future__ import annotations

import math

import numpy as np
import torch
from timing import Row, side_by_side
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

import fedcal

N, K, BINS = 1_000_000, 10, 15


def compare(repeats: int) -> list[Row]:
    """One million float32 samples of ten classes. Goals: faster, and exact to float64."""
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(N, K, generator=rng)
    labels = torch.multinomial((logits / 1.7).softmax(1), 1, generator=rng)[:, 0]
    probs = logits.softmax(1)

    def ours() -> float:
        return fedcal.ece(probs, labels, n_bins=BINS)

    def theirs() -> float:
        return float(multiclass_calibration_error(probs, labels, K, n_bins=BINS))

    # Each is held to its own bins, for a sample on an edge may go either way: ours are (lo, hi] between float64
    # edges, theirs [lo, hi) between float32 ones. What is left is the error of the sums.
    our_error = abs(ours() - exact(probs, labels, np.linspace(0, 1, BINS + 1), side="left"))
    their_error = abs(theirs() - exact(probs, labels, torch.linspace(0, 1, BINS + 1).numpy(), side="right"))
    return [
        Row(
            f"ECE, {N:,} × {K}",
            "torchmetrics",
            *side_by_side(ours, theirs, repeats),
            accuracy=f"error {our_error:.0e}, theirs {their_error:.0e}",
            accurate=our_error < 1e-15,
            speedup_wanted=1.0,
        )
    ]


def exact(probs: Tensor, labels: Tensor, edges: np.ndarray, side: str) -> float:
    """The ECE by Definition 3.2, every sum over samples correctly rounded (math.fsum)."""
    confidence, top = (x.numpy() for x in probs.max(dim=1))
    correct = top == labels.numpy()
    bins = np.searchsorted(edges, confidence, side=side)  # any numbering will do
    gaps = [math.fsum(confidence[bins == b].tolist()) - correct[bins == b].sum() for b in np.unique(bins)]
    return math.fsum(abs(gap) for gap in gaps) / len(correct)
