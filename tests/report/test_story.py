"""The story of a run: before and after, each client, what to do next."""

from __future__ import annotations

import numpy as np
import pytest

from fedcal.report import story
from fedcal.report.story_figures import plot_change, plot_panel


def test_panels_are_before_after_and_personal(digits):
    panels = story.panels(digits)
    methods = digits["methods"]
    assert [panel.title for panel in panels] == ["Before", "After", "After, at each client"]
    own = methods["fedcal-plus"]["pooled_own"]
    for panel, scores in zip(panels, (methods["uncal"]["global"], methods["fedcal-plus"]["global"], own), strict=True):
        assert (panel.ece, panel.accuracy, panel.floor) == (scores["ece"], scores["accuracy"], scores["ece_floor"])
        assert panel.curve.count.sum() == 450 and (panel.curve.count >= 15).all()
        share = (panel.curve.count * panel.curve.accuracy).sum() / 450
        assert share == pytest.approx(panel.accuracy), "joining bins loses no sample"


def test_many_samples_are_shown_in_bins_of_equal_width(digits):
    for method in digits["methods"].values():
        method["global"]["n"] = method["pooled_own"]["n"] = 10_000
    assert all(len(panel.curve.count) == 15 for panel in story.panels(digits)) and not story.is_grouped(digits)


def test_changes_at_clients(digits):
    accuracy, ece = story.changes(digits)
    before, after = (digits["methods"][name]["clients"] for name in ("uncal", "fedcal-plus"))
    kept = [c for c, n in enumerate(after["own"]["n"]) if n]
    assert ece.clients == [digits["data"]["clients"][c] for c in kept]
    np.testing.assert_allclose(ece.before, [100 * before["local"]["ece"][c] for c in kept])
    np.testing.assert_allclose(accuracy.after, [100 * after["own"]["accuracy"][c] for c in kept])
    assert ece.noise == [after["own"]["n"][c] < story.LEAST for c in kept]
    assert len(story.client_rows(digits)) == 8


def test_many_clients_show_the_largest(many):
    for change in story.changes(many):
        assert len(change.clients) == story.MOST
    assert len(story.client_rows(many)) == 100


def test_steps_name_the_scaler_and_the_small_clients(digits, heart):
    digits["methods"]["fedcal-plus"]["clients"]["own"]["n"][0] = 3
    steps = story.next_steps(digits)
    assert any("scalers/fedcal-plus.safetensors" in command for _, command in steps)
    assert any("client-0" in sentence for sentence, _ in steps)
    heart["methods"] = {"uncal": heart["methods"]["uncal"]}
    assert [command for _, command in story.next_steps(heart)] == [
        "fedcal calibrate site-a.npz site-b.npz --out calibrated"
    ]


def test_nothing_measured(heart):
    for method in heart["methods"].values():
        method["global"]["ece"] = None
    assert story.panels(heart) == story.changes(heart) == story.tiles(heart) == story.client_rows(heart) == []


def test_figures_show_the_data(digits):
    panel, change = story.panels(digits)[0], story.changes(digits)[1]
    (ax,) = plot_panel(panel).axes
    np.testing.assert_allclose(ax.lines[-1].get_ydata(), panel.curve.accuracy)
    assert ax.get_title() == "" and ax.get_xlabel() == "Stated confidence"
    (ax,) = plot_change(change).axes
    np.testing.assert_allclose(ax.collections[-1].get_offsets()[:, 0], change.after)
    assert ax.get_yticklabels()[0].get_text() == f"{change.clients[0]} ({change.n[0]})"
