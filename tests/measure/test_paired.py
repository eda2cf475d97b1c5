"""Differences of two ECEs on the same samples: the sums add, the variance is right, and the interval covers."""

import numpy as np
import pytest

from fedcal import FedCalError, Reliability
from fedcal.base.arrays import softmax
from fedcal.measure.paired import Paired, top_of
from fedcal.measure.reliability import top_label

EDGES = np.linspace(0, 1, 16)


def drawn(n, seed=0):
    """One calibrated and one overconfident view of the same predictions, and a third that is right elsewhere."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.35, 0.95, n)
    correct, other = rng.random(n) < p, rng.random(n) < p
    return {"good": (p, correct), "bold": (np.sqrt(p), correct), "other": (p, other)}


def part(views, start, end):
    return {name: (c[start:end], y[start:end]) for name, (c, y) in views.items()}


def test_clients_add_up_to_the_pooled_samples():
    views = drawn(1000)
    summed = Paired.of(part(views, 0, 300)) + Paired.of(part(views, 300, 300)) + Paired.of(part(views, 300, 1000))
    whole = Paired.of(views)
    assert summed.n == whole.n and (summed.joint == whole.joint).all()
    for a, b in (("good", "bold"), ("bold", "good"), ("other", "good")):
        assert summed.difference(a, b) == pytest.approx(whole.difference(a, b), rel=1e-9)


def test_the_value_is_the_difference_of_the_eces():
    views = drawn(500)
    ece = {name: Reliability.of_top(c, y, EDGES).ece() for name, (c, y) in views.items()}
    value, low, high = Paired.of(views).difference("bold", "good")
    assert value == pytest.approx(ece["bold"] - ece["good"], abs=1e-12)
    assert -1 <= low <= value <= high <= 1
    back = Paired.of(views).difference("good", "bold")
    assert back == pytest.approx((-value, -high, -low))


def test_clear_gaps_have_the_textbook_interval():
    """Where both are clearly overconfident everywhere, the difference is a mean of differences sample by sample."""
    rng = np.random.default_rng(0)
    n = 200_000
    p = rng.uniform(0.4, 0.9, n)
    correct = rng.random(n) < p - 0.2
    stretched = p + 0.05 + 0.04 * rng.random(n)
    _, low, high = Paired.of({"a": (stretched, correct), "b": (p, correct)}).difference("a", "b")
    usual = 2 * 1.96 * np.std(stretched - p) / np.sqrt(n)
    assert usual < high - low < 1.5 * usual  # the noise of `correct`, five times as large, cancels


def test_it_covers_and_sees_what_overlapping_intervals_do_not():
    rng = np.random.default_rng(0)
    covered = told = apart = 0
    p = rng.uniform(0.35, 0.95, 10**6)
    truth = [np.abs(np.bincount((c * 15).astype(int), c - p, 16)).mean() * 16 / 10**6 for c in (p**0.4, p**0.5)]
    for _ in range(200):
        p = rng.uniform(0.35, 0.95, 3000)
        correct = rng.random(3000) < p
        views = {"a": (p**0.4, correct), "b": (p**0.5, correct)}
        _, low, high = Paired.of(views).difference("a", "b")
        covered += low <= truth[0] - truth[1] <= high
        told += low > 0
        ends = {name: Reliability.of_top(*view, EDGES).interval() for name, view in views.items()}
        apart += ends["a"][0] > ends["b"][1]
    assert covered >= 190
    assert told > 100 + apart


def test_no_errors_seen_tell_nothing_apart():
    """Forty hits at 0.97 and at 0.999: the truth may be 0.97, so the view that measures lower need not be better."""
    hits = np.ones(40)
    value, low, high = Paired.of({"a": (np.full(40, 0.97), hits), "b": (np.full(40, 0.999), hits)}).difference("a", "b")
    assert value > 0 and low < -0.029 < 0 < high


def test_top_of_logits():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(300, 4)).round(1), rng.integers(4, size=300)  # with ties
    confidence, correct = top_of(logits, labels)
    known = top_label(softmax(logits, 1), labels)
    assert confidence == pytest.approx(known[0]) and correct.sum() == (logits.argmax(1) == labels).sum()
    assert [len(x) for x in top_of(logits[:0], labels[:0])] == [0, 0]


def test_what_does_not_fit():
    views = drawn(10)
    with pytest.raises(FedCalError, match="same samples"):
        Paired.of({"a": views["good"], "b": part(views, 0, 5)["bold"]})
    with pytest.raises(FedCalError, match="do not add"):
        Paired.of(views) + Paired.of({"good": views["good"]})
    with pytest.raises(FedCalError, match="worst"):
        Paired.of(views).difference("good", "worst")
    assert np.isnan(Paired.of(part(views, 0, 0)).difference("good", "bold")).all()


def test_sums_travel_as_arrays():
    views = drawn(300)
    whole = Paired.of(views)
    again = Paired.from_arrays(whole.views, {name: part.copy() for name, part in whole.to_arrays().items()})
    assert again.n == 300 and again.difference("bold", "good") == whole.difference("bold", "good")
    both = whole.renamed({"other": "a", "good": "b"})
    assert both.difference("a", "b") == whole.difference("other", "good")
    empty = Paired.of({name: (c[:0], y[:0]) for name, (c, y) in views.items()})
    assert Paired.from_arrays(whole.views, empty.to_arrays()).n == 0


DAMAGES = {
    "missing": lambda t: t.pop("joint"),
    "another type": lambda t: t.update(joint=t["joint"].astype(float)),
    "another shape": lambda t: t.update(products=t["products"][:1]),
    "no errors": lambda t: t.update(errors=np.zeros(0)),
    "negative counts": lambda t: np.subtract.at(t["joint"], (0, 3, 0, 3), 10_000),
    "counts that do not add up": lambda t: np.add.at(t["joint"], (0, 14, 1, 14), 1),
    "products beyond the counts": lambda t: np.add.at(t["products"], (0, 14, 0, 14), 1e6),
    "errors beyond the counts": lambda t: np.add.at(t["errors"], (0, 0), 1e6),
    "not a number": lambda t: np.put(t["errors"], 0, np.nan),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_no_samples_can_give_is_refused(damage):
    whole = Paired.of(drawn(300))
    tensors = {name: part.copy() for name, part in whole.to_arrays().items()}
    damage(tensors)
    with pytest.raises(FedCalError, match="not paired sums"):
        Paired.from_arrays(whole.views, tensors)


def test_a_view_does_not_differ_from_itself():
    views = drawn(400)
    views["same"] = views["good"]
    assert Paired.of(views).difference("good", "same") == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("n", [5, 40, 400])
def test_the_difference_lies_within_what_the_single_intervals_allow(n):
    views = drawn(n)
    paired = Paired.of(views)
    intervals = {name: Reliability.of_top(c, y, EDGES).interval() for name, (c, y) in views.items()}
    for a, b in (("good", "bold"), ("bold", "other")):
        value, low, high = paired.difference(a, b)
        (low_a, high_a), (low_b, high_b) = intervals[a], intervals[b]
        assert low_a - high_b - 1e-9 <= low <= value <= high <= high_a - low_b + 1e-9
