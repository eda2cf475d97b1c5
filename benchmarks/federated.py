"""Exact federated fits against other libraries' fits of the pooled data."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from sklearn.calibration import _TemperatureScaling
from timing import Row, side_by_side
from torch import Tensor

import fedcal

CLIENTS = 20


def compare(repeats: int) -> list[Row]:
    """Goals: at most half of their time; the same temperature to 1e-6, and as low an NLL as probmetrics' to 1e-4."""
    return [temperature(repeats), *vector(repeats)]


def drawn(n: int, k: int) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Logits of an over-confident model and labels, pooled and dealt to the clients."""
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    labels = torch.multinomial((logits / 1.7).softmax(1), 1, generator=rng)[:, 0]
    return logits, labels, list(zip(logits.chunk(CLIENTS), labels.chunk(CLIENTS), strict=True))


def temperature(repeats: int, n: int = 100_000, k: int = 10) -> Row:
    """fed-ts over 20 clients, all rounds of it, against scikit-learn on one pile."""
    logits, labels, clients = drawn(n, k)
    pile, truth = logits.numpy(), labels.numpy()

    def ours() -> float:
        return float(fedcal.calibrate(clients, "fed-ts").params["temperature"])

    def theirs() -> float:
        return float(1 / _TemperatureScaling().fit(pile, truth).beta_)

    apart = abs(ours() - theirs())
    return Row(
        f"fed-ts, {n:,} × {k}, {CLIENTS} clients",
        "scikit-learn, pooled",
        *side_by_side(ours, theirs, repeats),
        accuracy=f"ΔT {apart:.0e}",
        accurate=apart <= 1e-6,
        speedup_wanted=2.0,
    )


def vector(repeats: int, n: int = 10_000, k: int = 10) -> list[Row]:
    """fed-vector over 20 clients against probmetrics' structured vector scaling on one pile; nothing if that is not there.

    Install it with `pip install -c constraints.txt --no-deps probmetrics pytorch-minimize numba llvmlite`.
    """
    try:
        from probmetrics.calibrators import SVSCalibrator
    except ImportError:
        warnings.warn("probmetrics is not installed: fed-vector is not compared", stacklevel=2)
        return []
    logits, labels, clients = drawn(n, k)
    probs, truth = logits.softmax(1).numpy(), labels.numpy()

    def ours() -> Tensor:
        return fedcal.calibrate(clients, "fed-vector").params["vector"]

    def theirs() -> object:
        return SVSCalibrator().fit(probs, truth)

    found = fedcal.nll(fedcal.calibrate(clients, "fed-vector").predict_proba(logits), labels)
    reference = np.asarray(SVSCalibrator().fit(probs, truth).predict_proba(probs), np.float64)
    over = found - fedcal.nll(reference, labels)
    return [
        Row(
            f"fed-vector, {n:,} × {k}, {CLIENTS} clients",
            "probmetrics SVS, pooled",
            *side_by_side(ours, theirs, repeats),
            accuracy=f"NLL {over:+.0e}",
            accurate=over <= 1e-4,
            speedup_wanted=2.0,
        )
    ]
