"""fedcal.plot draws what is measured, on given axes or new ones; its examples run; bad input is one line."""

from __future__ import annotations

import doctest
import subprocess
import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

import fedcal
from fedcal import FedCalError, plot

mpl.use("agg")


@pytest.fixture(autouse=True)
def close():
    yield
    from matplotlib import pyplot as plt

    plt.close("all")


def draw(n: int, k: int, scale: float = 1.0, seed: int = 0):
    """Labels follow softmax(z); the probabilities are softmax(scale z)."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k))
    labels = (z + rng.gumbel(size=z.shape)).argmax(1)
    power = np.exp(scale * z)
    return power / power.sum(1, keepdims=True), labels


@pytest.mark.parametrize("name", [None, *plot.__all__])
def test_examples_run(name):
    thing = plot if name is None else getattr(plot, name)
    test = doctest.DocTestParser().get_doctest(
        thing.__doc__.partition("\nExamples:\n")[2] or thing.__doc__, {}, "", None, 0
    )
    said: list[str] = []
    assert test.examples and not doctest.DocTestRunner(verbose=False).run(test, out=said.append).failed, "".join(said)


def test_matplotlib_is_not_imported_before_a_plot():
    code = "import sys, fedcal; fedcal.plot.reliability; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("k", [2, 3, 1000])
def test_points_are_the_bins_of_the_metric(k):
    probs, labels = draw(400, k, 2)
    ax = plot.reliability(probs, labels, name="model")
    x, y = ax.lines[-1].get_data()
    if k == 2:  # the probability of the second class, as scikit-learn has it
        from sklearn.calibration import calibration_curve

        share, mean = calibration_curve(labels, probs[:, 1], n_bins=15)
    else:
        mean, share = fedcal.Reliability.of(probs, labels).curve()
    np.testing.assert_allclose(x, mean[np.isfinite(mean)])
    np.testing.assert_allclose(y, share[np.isfinite(share)])
    assert ax.get_title(loc="left") == "model" and ax.get_title(loc="right").startswith(
        f"ECE {100 * fedcal.ece(probs, labels):.1f}"
    )


def test_bins_of_equal_mass_hold_equally_many_samples():
    probs, labels = draw(400, 2)
    ax = plot.reliability(probs[:, 1], labels, bins="mass", n_bins=8)
    order = np.argsort(probs[:, 1])
    expected = probs[order, 1].reshape(8, 50).mean(1)
    np.testing.assert_allclose(ax.lines[-1].get_xdata(), expected)


def test_a_smooth_curve_is_that_of_the_evaluation():
    probs, labels = draw(500, 3, 3)
    ax = plot.reliability(probs, labels, bins="smooth")
    curve = fedcal.evaluate([(probs, labels)], probs=True, min_count=0).pooled["calibration_curve"]
    np.testing.assert_allclose(ax.lines[1].get_xydata(), np.stack([curve["predicted"], curve["value"]], 1))


def test_axes_that_are_given_are_drawn_on_and_returned():
    fig = Figure()
    (top, bottom), (left, right) = fig.subplots(2, 2)
    probs, labels = draw(60, 3)
    assert plot.reliability(probs, labels, top) is top
    assert plot.before_after(probs, probs, labels, bottom) is bottom
    assert plot.per_client({"a": (probs, labels)}, left, before={"a": (probs, labels)}) is left
    assert plot.confidence_histogram(probs, labels, right) is right
    assert all(ax.lines or ax.collections for ax in fig.axes)


def test_before_and_after(tmp_path):
    before, labels = draw(500, 4, 3)
    after, _ = draw(500, 4, 1)
    ax = plot.before_after(before, after, labels)
    said = [text.get_text() for text in ax.get_legend().get_texts()]
    assert said == [
        f"{name}: ECE {100 * fedcal.ece(p, labels):.1f} %" for name, p in (("before", before), ("after", after))
    ]
    ax.figure.savefig(tmp_path / "x.svg")


def test_clients_with_and_without_samples_to_judge():
    clients = {name: draw(n, 3, 2, seed=n) for name, n in (("many", 300), ("few", 19), ("one", 1))}
    ax = plot.per_client(clients)
    dots = ax.collections[-1]
    np.testing.assert_allclose(dots.get_offsets()[:, 0], [100 * fedcal.ece(*pair) for pair in clients.values()])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["many (300)", "few (19)", "one (1)"]
    assert [len(colour) and colour[3] > 0 for colour in dots.get_facecolors()] == [True, False, False]


def test_a_histogram_counts_every_sample():
    probs, labels = draw(300, 5)
    ax = plot.confidence_histogram(probs)
    assert sum(bar.get_height() for bar in ax.patches) == 300 and len(ax.lines) == 1
    ax = plot.confidence_histogram(probs, labels, n_bins=5)
    assert ax.lines[1].get_xdata()[0] == pytest.approx(fedcal.accuracy(probs, labels)) and len(ax.patches) == 5


def test_a_million_samples_and_ties():
    probs = np.full(1_000_000, 0.5)
    labels = np.arange(1_000_000) % 2
    for bins in ("width", "mass", "smooth"):
        ax = plot.reliability(probs, labels, bins=bins)
        assert ax.lines[-1].get_ydata()[0] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p, y: plot.reliability(p, y, bins="tenths"), "unknown kind of bins 'tenths'"),
        (lambda p, y: plot.reliability(p, y, n_bins=0), "n_bins"),
        (lambda p, y: plot.reliability(p, y[:-1]), "labels"),
        (lambda p, y: plot.reliability(7 * p, y), "probabilit"),
        (lambda p, y: plot.reliability(p, y, ax="here"), "ax must be matplotlib axes, not str"),
        (lambda p, y: plot.before_after(p, draw(20, 4)[0], y), "give the same samples"),
        (lambda p, y: plot.before_after(p, p, y, bins="smooth"), "unknown kind of bins 'smooth'"),
        (lambda p, y: plot.per_client({}), "no clients"),
        (lambda p, y: plot.per_client({"a": (p, y)}, before={"b": (p, y)}), "before has the clients b, not a"),
    ],
)
def test_bad_input_is_one_line(call, said):
    probs, labels = draw(20, 3)
    with pytest.raises(FedCalError, match=said) as found:
        call(probs, labels)
    assert "\n" not in str(found.value)
