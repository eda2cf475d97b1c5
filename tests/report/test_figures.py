"""What the figures show: titles, labels, the data of lines, bars and dots."""

from __future__ import annotations

import numpy as np
import pytest

from fedcal.report import figures, prepare


def texts(ax):
    return [text.get_text() for text in ax.texts]


def legend(fig):
    return [text.get_text() for text in fig.legends[0].get_texts()]


def test_reliability_shows_bins_and_the_model_before(digits):
    before, curve = (prepare.prepare_reliability(digits, name) for name in ("uncal", "fedcal-plus"))
    top, bottom = figures.plot_reliability(curve, before).axes
    assert (top.get_title(loc="left"), top.get_title(loc="right")) == ("fedcal-plus", f"ECE {100 * curve.ece:.1f} %")
    assert (top.get_ylabel(), bottom.get_ylabel()) == ("Accuracy", "Samples")
    full = curve.count > 0
    dots = top.collections[0]
    np.testing.assert_allclose(dots.get_offsets(), np.stack([curve.confidence[full], curve.accuracy[full]], 1))
    hollow = [tuple(colour[:3]) == (1.0, 1.0, 1.0) for colour in dots.get_facecolors()]
    assert hollow == curve.in_band[full].tolist()
    np.testing.assert_array_equal(bottom.patches[0].get_data().values, curve.count)
    alone = figures.plot_reliability(before, before).axes[0]
    assert len(top.lines) == len(alone.lines) + 1, "the line of the model before calibration"
    assert top.bbox.width > 100, "the layout collapsed"


def test_ece_bars_are_the_percentages(digits):
    data = prepare.prepare_ece(digits)
    fig = figures.plot_ece(data)
    (ax,) = fig.axes
    np.testing.assert_allclose([bar.get_width() for bar in ax.patches], 100 * data.ece)
    assert [label.get_text() for label in ax.get_yticklabels()] == data.methods
    assert ax.get_xlabel() == "Global ECE, %"
    assert texts(ax) == [f"{100 * value:.1f}" for value in data.ece]
    spans, floors = (np.array([line[:, 0] for line in lines.get_segments()]) for lines in ax.collections)
    np.testing.assert_allclose(spans, 100 * np.stack([data.low, data.high], 1))
    np.testing.assert_allclose(floors[:, 0], 100 * data.floor)
    hatched = [name for name, bar in zip(data.methods, ax.patches, strict=True) if bar.get_hatch()]
    assert hatched == ["val-ts"] and legend(fig)[-1] == "sees pooled calibration data"


def test_clients_without_test_samples_have_no_dot(digits):
    for method in digits["methods"].values():
        method["clients"]["local"]["ece"][2] = None
    data = prepare.prepare_clients(digits, "local")
    (ax,) = figures.plot_clients(data).axes
    dots = np.concatenate([line.get_xdata() for line in ax.lines if line.get_marker() == "o"])
    np.testing.assert_allclose(np.sort(dots[np.isfinite(dots)]), np.sort(100 * data.ece[np.isfinite(data.ece)]))
    assert np.isfinite(dots).sum() == 5 * 7
    assert texts(ax) == [data.clients[data.worst(method)] for method in range(5)]
    means = [line.get_xdata()[0] for line in ax.lines if line.get_color() == figures.INK]
    np.testing.assert_allclose(means, 100 * np.nanmean(data.ece, axis=1))


def test_skew_shows_shares_counts_and_totals(digits):
    data = prepare.prepare_skew(digits)
    grid, totals = figures.plot_skew(data).axes
    np.testing.assert_array_equal(grid.images[0].get_array(), data.share)
    assert texts(grid) == [str(count) for count in data.counts.ravel() if count]
    assert [label.get_text() for label in grid.get_yticklabels()] == data.clients
    assert [bar.get_width() for bar in totals.patches] == data.counts.sum(axis=1).tolist()


def test_many_clients_and_classes_have_no_counts_and_few_names(many):
    data = prepare.prepare_skew(many)
    grid = figures.plot_skew(data).axes[0]
    assert not grid.texts
    assert [label.get_text() for label in grid.get_xticklabels()] == data.classes[::10]
    assert [label.get_text() for label in grid.get_yticklabels()] == data.clients[::5]


def test_training_is_a_line_over_rounds(rounds):
    for series in prepare.prepare_training(rounds):
        (ax,) = figures.plot_training(series).axes
        (line,) = ax.lines
        np.testing.assert_array_equal(line.get_xydata(), np.stack([series.rounds, series.values], 1))
        assert (ax.get_title(loc="left"), ax.get_xlabel()) == (series.title, "Round")


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_saved_files_repeat_to_the_byte(ending, tmp_path, rounds):
    def saved(name):
        fig = figures.plot_training(prepare.prepare_training(rounds)[0])
        return figures.save(fig, tmp_path / f"{name}.{ending}").read_bytes()

    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert saved("one") == saved("two") and saved("one").startswith(start)


def test_undefined_everywhere_still_draws(tmp_path):
    nan = np.full(1, np.nan)
    fig = figures.plot_ece(prepare.MethodErrors(["ens"], nan, nan, nan, nan))
    figures.save(fig, tmp_path / "ece.svg")
    (ax,) = fig.axes
    assert texts(ax) == [] and ax.get_xlim()[0] == 0 and [t.get_text() for t in ax.get_yticklabels()] == ["ens"]
    fig = figures.plot_clients(prepare.ClientErrors(["ens"], ["a"], nan[None], nan[None]))
    figures.save(fig, tmp_path / "clients.svg")
    (ax,) = fig.axes
    assert texts(ax) == [] and not any(np.isfinite(line.get_xdata()).any() for line in ax.lines)
    edges, zero, none = np.linspace(0, 1, 3), np.zeros(2), np.full(2, np.nan)
    fig = figures.plot_reliability(prepare.Curve("ens", np.nan, edges, zero, none, none, none, none), None)
    figures.save(fig, tmp_path / "reliability.svg")
    assert fig.axes[0].get_title(loc="right") == "" and len(fig.axes[0].collections[0].get_offsets()) == 0


def test_pyplot_stays_out():
    assert "matplotlib.pyplot" not in vars(figures) and not hasattr(figures, "plt")
