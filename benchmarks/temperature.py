"""Temperature fits against scikit-learn's, on the same float64 logits."""

from __future__ import annotations

import torch
from sklearn.calibration import _TemperatureScaling
from timing import Row, side_by_side

from fedcal.exact.temperature import fit_temperature

SIZES = (10_000, 10), (100_000, 10), (50_000, 100)


def compare(repeats: int) -> list[Row]:
    """Small, long and wide. Goals: a third of the time at most, and the same temperature to 1e-6."""
    return [one_size(n, k, repeats) for n, k in SIZES]


def one_size(n: int, k: int, repeats: int) -> Row:
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, k, generator=rng, dtype=torch.float64)
    labels = torch.multinomial((logits / 1.7).softmax(1), 1, generator=rng)[:, 0]

    def ours() -> float:
        return fit_temperature(logits, labels).temperature

    def theirs() -> float:
        return float(1 / _TemperatureScaling().fit(logits.numpy(), labels.numpy()).beta_)

    apart = abs(ours() - theirs())
    return Row(
        f"temperature, {n:,} × {k}",
        "scikit-learn",
        *side_by_side(ours, theirs, repeats),
        accuracy=f"ΔT {apart:.0e}",
        accurate=apart <= 1e-6,
        speedup_wanted=3.0,
    )
