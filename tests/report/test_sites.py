"""Sites' own probabilities as table rows, JSON and a page."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedcal.measure.views import measure, unchanged
from fedcal.report.sites import COLUMNS, MOST, curve, metrics_json, table_row, write_sites


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
    assert row["ECE %"] == f"{100 * found['ece']:.1f}" and row["right %"] == f"{100 * found['accuracy']:.1f}"
    assert row["95 %"] == f"{100 * found['ece_low']:.1f}–{100 * found['ece_high']:.1f}"


def test_json_has_every_metric_and_names_the_worst_client(measured):
    found = metrics_json(measured.rows("before"))
    assert found["pooled"]["n"] == 120 and list(found["clients"]) == ["a", "<b>"]
    eces = {name: client["ece"] for name, client in found["clients"].items()}
    assert found["worst_ece"] == max(eces.values()) == eces[found["worst_client"]]


def test_the_curve_is_that_of_the_bins(measured):
    tally = measured.pooled("after")
    drawn = curve("all", tally)
    assert drawn.ece == tally.reliability.ece() and drawn.count.sum() == 120
    np.testing.assert_array_equal(drawn.accuracy, tally.reliability.curve()[1])


def test_the_page_shows_the_table_and_a_diagram_each(measured, tmp_path):
    before, after = measured.rows("before"), measured.rows("after")
    rows = [table_row(name, tally) for name, tally in after.items()]
    write_sites(tmp_path / "page.html", "2 sites", COLUMNS, rows, after, before)
    html = (tmp_path / "page.html").read_text()
    assert html.count("<svg") == 3 and "Reliability diagram of pooled" in html and "before calibration" in html
    assert "<b>" not in html and '<th scope="row">&lt;b&gt;</th>' in html


def test_only_the_first_sites_get_a_diagram(tmp_path):
    found = measure({f"site-{i:02d}": drawn(i, 5) for i in range(MOST + 5)}, {"before": unchanged})
    write_sites(tmp_path / "page.html", "many", COLUMNS, [], found.rows("before"))
    assert (tmp_path / "page.html").read_text().count("<svg") == 1 + MOST
