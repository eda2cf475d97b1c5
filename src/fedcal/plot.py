"""Plots of calibration for notebooks and papers, on your own matplotlib axes or on new ones.

Each function takes arrays and an `ax`, draws on it and returns it, as scikit-learn's displays do. matplotlib is imported
when the first plot is drawn.

Examples:
    >>> import fedcal, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> probs = rng.dirichlet(np.ones(3), 500)
    >>> labels = np.array([rng.choice(3, p=p) for p in probs])
    >>> ax = fedcal.plot.reliability(probs, labels)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('Stated confidence', 'Share that is right')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedcal.base.arrays import Array
from fedcal.base.checks import check_measured, check_probs
from fedcal.errors import FedCalError, check_known
from fedcal.measure.reliability import Reliability, equal_width, top_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedcal.report.prepare import Curve

__all__ = ["before_after", "confidence_histogram", "per_client", "reliability"]

Bins = Literal["width", "mass", "smooth"]
BINS = ("width", "mass", "smooth")
FEW = 20  # samples, below which a client's ECE is drawn hollow
Checked = tuple[Array, Array]  # probabilities (N, K) and column numbers


def reliability(
    probs: Any,
    labels: Any,
    ax: Any = None,
    *,
    bins: Bins = "width",
    n_bins: int = 15,
    classes: Any = None,
    name: str = "",
) -> Axes:
    """Draw a reliability diagram: how often predictions are right against how sure the model is, with a 95 % band.

    Of two classes it shows the probability of the second one against how often it occurs; of more classes, the confidence in
    the predicted class against the accuracy. The band is where 95 % of perfectly calibrated models would fall; hollow points
    lie in it. Of a smooth curve the band is its 95 % interval. The ECE in the title is that of `fedcal.ece`.

    Args:
        probs: (N, K) probabilities, or (N,) of the second of two classes.
        labels: (N,) labels.
        ax: matplotlib axes to draw on; new ones if not given.
        bins: "width" for bins of equal width, "mass" for bins of equally many samples, "smooth" for a smooth curve.
        n_bins: the number of bins.
        classes: the label of each column, if labels are not the column numbers.
        name: the plot's title.

    Returns:
        The axes.

    Raises:
        FedCalError: the arguments do not fit together.

    Examples:
        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> p = rng.uniform(size=400)
        >>> ax = fedcal.plot.reliability(p, rng.uniform(size=400) < p, bins="mass", n_bins=8)
        >>> ax.get_ylabel()
        'Share with the outcome'
    """
    check_known("kind of bins", bins, BINS)
    checked = check_measured(probs, labels, classes)
    axes = _axes(ax)

    from fedcal.report.figures import draw_reliability

    if bins == "smooth":
        _draw_smooth(axes, checked, name)
    else:
        draw_reliability(axes, _curve(checked, bins, n_bins, name))
    _label(axes, checked)
    return axes


def before_after(
    before: Any,
    after: Any,
    labels: Any,
    ax: Any = None,
    *,
    bins: Bins = "width",
    n_bins: int = 15,
    classes: Any = None,
) -> Axes:
    """Draw the reliability diagram after calibration, with the line before calibration behind it.

    Args:
        before: (N, K) probabilities before calibration, or (N,) of the second of two classes.
        after: probabilities of the same samples after it.
        labels: (N,) labels.
        ax: matplotlib axes to draw on; new ones if not given.
        bins: "width" for bins of equal width, "mass" for bins of equally many samples.
        n_bins: the number of bins.
        classes: the label of each column, if labels are not the column numbers.

    Returns:
        The axes.

    Raises:
        FedCalError: the arguments do not fit together.

    Examples:
        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(500, 3))
        >>> labels = (z + rng.gumbel(size=z.shape)).argmax(1)
        >>> probs = lambda z: np.exp(z) / np.exp(z).sum(1, keepdims=True)
        >>> ax = fedcal.plot.before_after(probs(3 * z), probs(z), labels)
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['before: ECE 21.9 %', 'after: ECE 6.0 %']
    """
    check_known("kind of bins", bins, BINS[:2])
    pair = [check_measured(probs, labels, classes) for probs in (before, after)]
    if pair[0][0].shape != pair[1][0].shape:
        raise FedCalError(
            f"before has shape {tuple(pair[0][0].shape)}, after {tuple(pair[1][0].shape)}: give the same samples"
        )
    axes = _axes(ax)

    from matplotlib.lines import Line2D

    from fedcal.report.figures import ACCENT, MUTED, draw_reliability

    old, new = (_curve(one, bins, n_bins, name) for one, name in zip(pair, ("before", "after"), strict=True))
    draw_reliability(axes, new, old)
    for side in ("left", "right"):  # the legend has it
        axes.set_title("", loc=side)
    _label(axes, pair[1])
    handles = [
        Line2D([], [], color=colour, marker=marker, label=f"{curve.method}: ECE {100 * curve.ece:.1f} %")
        for curve, colour, marker in ((old, MUTED, ""), (new, ACCENT, "o"))
    ]
    axes.legend(handles=handles, loc="upper left", frameon=False)
    return axes


def per_client(
    clients: Mapping[str, tuple[Any, Any]],
    ax: Any = None,
    *,
    before: Mapping[str, tuple[Any, Any]] | None = None,
    n_bins: int = 15,
    classes: Any = None,
) -> Axes:
    """Draw the ECE of each client, and of each before calibration.

    Hollow dots are clients with fewer than 20 samples. An orange mark is the noise floor: the ECE that a perfectly calibrated
    model would show on as many samples.

    Args:
        clients: each client's probabilities and labels.
        ax: matplotlib axes to draw on; new ones if not given.
        before: the same samples with the probabilities before calibration.
        n_bins: the number of bins, of equal width.
        classes: the label of each column, if labels are not the column numbers.

    Returns:
        The axes.

    Raises:
        FedCalError: the arguments do not fit together.

    Examples:
        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> def client(n):
        ...     p = rng.uniform(size=n)
        ...     return p, rng.uniform(size=n) < p
        >>> ax = fedcal.plot.per_client({"north": client(300), "south": client(200)})
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['north (300)', 'south (200)']
    """
    if not clients:
        raise FedCalError("no clients: give {name: (probs, labels), …}")
    if before is not None and set(before) != set(clients):
        raise FedCalError(f"before has the clients {', '.join(before)}, not {', '.join(clients)}: give the same ones")
    after = {name: Reliability.of(*pair, n_bins=n_bins, classes=classes) for name, pair in clients.items()}
    old = {name: Reliability.of(*pair, n_bins=n_bins, classes=classes) for name, pair in (before or {}).items()}

    from fedcal.report.story import ClientChange
    from fedcal.report.story_figures import draw_change

    n = [one.n for one in after.values()]
    data = ClientChange(
        "ECE, %",
        list(after),
        n,
        100 * np.array([old[name].ece() if old else np.nan for name in after]),
        100 * np.array([one.ece() for one in after.values()]),
        [count < FEW for count in n],
        100 * np.array([one.floor() for one in after.values()]),
    )
    axes = _axes(ax)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.08), "ncols": 3, "handletextpad": 0.2}
    axes.legend(handles=draw_change(axes, data), frameon=False, **below)
    return axes


def confidence_histogram(
    probs: Any, labels: Any = None, ax: Any = None, *, n_bins: int = 20, classes: Any = None
) -> Axes:
    """Draw a histogram of the model's confidence, with its mean and, if labels are given, the accuracy as lines.

    If the two lines are apart, the model is over- or underconfident.

    Args:
        probs: (N, K) probabilities, or (N,) of the second of two classes.
        labels: (N,) labels.
        ax: matplotlib axes to draw on; new ones if not given.
        n_bins: the number of bars.
        classes: the label of each column, if labels are not the column numbers.

    Returns:
        The axes.

    Raises:
        FedCalError: the arguments do not fit together.

    Examples:
        >>> import fedcal
        >>> ax = fedcal.plot.confidence_histogram([[0.9, 0.1], [0.2, 0.8]], [0, 1])
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['mean confidence 85.0 %', 'accuracy 100.0 %']
    """
    edges = equal_width(n_bins)
    if labels is None:
        confidence, right = check_probs(probs).max(1, initial=0).astype(float), None
    else:
        confidence, right = top_label(*check_measured(probs, labels, classes))
    axes = _axes(ax)

    from fedcal.report.figures import ACCENT, GAP, MUTED

    axes.hist(confidence, edges.tolist(), color=MUTED, alpha=0.55)
    for value, colour, what in ((confidence, ACCENT, "mean confidence"), (right, GAP, "accuracy")):
        if value is not None and len(value):
            axes.axvline(value.mean(), color=colour, linewidth=1.6, label=f"{what} {100 * value.mean():.1f} %")
    axes.set(xlim=(0, 1), xlabel="Stated confidence", ylabel="Samples")
    if len(confidence):
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    return axes


def _axes(ax: Any) -> Axes:
    """The axes given, or new ones in the style of the report."""
    from matplotlib.axes import Axes

    if ax is not None:
        if not isinstance(ax, Axes):
            raise FedCalError(f"ax must be matplotlib axes, not {type(ax).__name__}: try `fig, ax = plt.subplots()`")
        return ax
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    from fedcal.report.figures import STYLE

    with mpl.rc_context(STYLE):
        return plt.subplots(figsize=(4, 3.8), layout="constrained")[1]


def _predictions(checked: Checked) -> tuple[np.ndarray, np.ndarray]:
    """What the horizontal axis shows of each sample, and whether it came true."""
    probs, labels = checked
    if probs.shape[1] == 2:
        return probs[:, 1].astype(float), labels == 1
    return top_label(probs, labels)


def _curve(checked: Checked, bins: Bins, n_bins: int, name: str) -> Curve:
    from fedcal.report.prepare import curve_of

    predicted, right = _predictions(checked)
    edges = equal_width(n_bins)
    if bins == "mass" and len(predicted):
        inner = np.unique(np.quantile(predicted, edges[1:-1]))
        edges = np.concatenate([[0.0], inner[(inner > 0) & (inner < 1)], [1.0]])
    found = curve_of(Reliability.of_top(predicted, right, edges), name)
    top = Reliability.of_top(*top_label(*checked), edges=equal_width(15))
    return replace(found, ece=top.ece())  # one ECE, whatever the bins of the plot: that of `fedcal.ece`


def _draw_smooth(ax: Axes, checked: Checked, name: str) -> None:
    from fedcal.assess.evaluation import evaluate
    from fedcal.report.figures import draw_smooth

    probs, labels = checked
    draw_smooth(ax, evaluate([(probs, labels)], probs=True, min_count=0).pooled)
    ax.set_title(name, loc="left", fontweight="bold")


def _label(ax: Axes, checked: Checked) -> None:
    two = checked[0].shape[1] == 2
    ax.set_xlabel("Predicted probability" if two else "Stated confidence")
    ax.set_ylabel("Share with the outcome" if two else "Share that is right")
