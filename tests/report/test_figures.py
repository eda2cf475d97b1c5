from __future__ import annotations

import numpy as np
import pytest

from fedcal.report import figures, prepare


def test_reliability_has_a_panel_a_curve(digits):
    curves = [prepare.prepare_reliability(digits, name) for name in ("uncal", "fedcal")]
    fig, axes = figures.plot_reliability(curves, before=curves[0])
    assert axes.shape == (2, 2)
    assert [ax.get_title(loc="left") for ax in axes[0]] == ["uncal", "fedcal"]
    drawn = axes[0, 1].collections[0].get_offsets()
    full = curves[1].count > 0
    np.testing.assert_allclose(drawn, np.stack([curves[1].confidence[full], curves[1].accuracy[full]], 1))
    assert axes[0, 0].bbox.width > 100, "the layout collapsed"
    assert len(fig.legends) == 1


def test_ece_bars_are_the_percentages(digits):
    data = prepare.prepare_ece(digits)
    _, ax = figures.plot_ece(data)
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], 100 * data.ece)
    assert [label.get_text() for label in ax.get_yticklabels()] == data.methods


def test_clients_without_test_samples_have_no_dot(digits):
    data = prepare.prepare_clients(digits, "local")
    _, ax = figures.plot_clients(data)
    dots = sum(np.isfinite(line.get_xdata()).sum() for line in ax.lines if line.get_marker() == "o")
    assert dots == np.isfinite(data.ece).sum() < data.ece.size


def test_counts_are_written_only_where_they_fit(digits, stress):
    small, large = prepare.prepare_skew(digits), prepare.prepare_skew(stress)
    assert len(figures.plot_skew(small)[1][0].texts) == np.count_nonzero(small.counts)
    assert not figures.plot_skew(large)[1][0].texts


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_saved_files_repeat_to_the_byte(ending, tmp_path, rounds):
    def saved(name):
        fig, _ = figures.plot_training(prepare.prepare_training(rounds)[0])
        return figures.save(fig, tmp_path / f"{name}.{ending}").read_bytes()

    assert saved("one") == saved("two")


def test_undefined_everywhere_still_draws(tmp_path):
    nan = np.full(1, np.nan)
    fig, _ = figures.plot_ece(prepare.MethodErrors(["ens"], nan, nan, nan, nan))
    figures.save(fig, tmp_path / "ece.svg")
    fig, _ = figures.plot_clients(prepare.ClientErrors("own", ["ens"], ["a"], nan[None], nan[None]))
    figures.save(fig, tmp_path / "clients.svg")
    edges, zero, none = np.linspace(0, 1, 3), np.zeros(2), np.full(2, np.nan)
    curve = prepare.Curve("ens", np.nan, edges, zero, none, none, none, none)
    figures.save(figures.plot_reliability([curve])[0], tmp_path / "reliability.svg")


def test_pyplot_stays_out():
    assert "matplotlib.pyplot" not in vars(figures) and not hasattr(figures, "plt")
