"""Sites' own probabilities as table rows and JSON."""

from __future__ import annotations

import pytest
import torch

from fedcal.measure.views import measure, unchanged
from fedcal.report.sites import COLUMNS, metrics_json, table_row


def drawn(seed, n=60):
    rng = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(n, 3, generator=rng, dtype=torch.float64), torch.randint(3, (n,), generator=rng)


@pytest.fixture
def measured():
    samples = {"a": drawn(0), "<b>": drawn(1)}
    return measure(samples, {"before": unchanged, "after": lambda _, logits: logits / 3})


def test_a_row_has_a_cell_per_column(measured):
    tally = measured.pooled("before")
    row, found = dict(zip(COLUMNS, table_row("all", tally), strict=True)), tally.summary(interval=True)
    assert (row[""], row["n"], row["NLL"]) == ("all", "120", f"{found['nll']:.3f}")
    assert row["ECE %"] == f"{100 * found['ece']:.1f}" and row["acc. %"] == f"{100 * found['accuracy']:.1f}"
    assert row["95 %"] == f"{100 * found['ece_low']:.1f}–{100 * found['ece_high']:.1f}"


def test_json_has_every_metric_and_names_the_worst_client(measured):
    found = metrics_json(measured.rows("before"))
    assert found["pooled"]["n"] == 120 and list(found["clients"]) == ["a", "<b>"]
    eces = {name: client["ece"] for name, client in found["clients"].items()}
    assert found["worst_ece"] == max(eces.values()) == eces[found["worst_client"]]
