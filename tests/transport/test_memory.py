"""`fedcal.calibrate` and what it returns: the default, names, classes, a short repr. The fits have tests of their own."""

import inspect
import math
import subprocess
import sys

import numpy as np
import pytest

import fedcal
from fedcal.methods import DEFAULT, METHODS

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(120, 3))
LABELS = RNG.integers(3, size=120)
WORDS = np.array(["cat", "dog", "owl"])


def test_one_default_everywhere():
    assert DEFAULT == "fedcal-plus"
    strategy = pytest.importorskip(
        "fedcal.transport.flower.strategy", reason="needs fedcal[flower]", exc_type=ImportError
    )
    for call in (fedcal.calibrate, fedcal.FederatedCalibrator, strategy.CalibratedStrategy):
        assert inspect.signature(call).parameters["method"].default == DEFAULT
    assert fedcal.calibrate([(LOGITS, LABELS)]).method.name == DEFAULT


@pytest.mark.parametrize("command", ["calibrate", "federate", "server start"])
def test_one_default_at_the_command_line(command):
    code = "import sys; from fedcal.cli.main import main; main(sys.argv[1:])"
    env_width = ["env", "COLUMNS=200", sys.executable, "-c", code]
    shown = subprocess.run([*env_width, *command.split(), "--help"], capture_output=True, text=True, check=True).stdout
    assert f"[default: {DEFAULT}]" in shown


def test_repr_is_one_short_line():
    fitted = fedcal.calibrate({"a": (LOGITS, LABELS), "b": (LOGITS, LABELS)}, "avg-t")
    assert repr(fitted) == "<Scaler avg-t: logits of 3 classes, 2 clients, 1 round, 8 bytes up and 16 down per client>"
    assert "probabilities" in repr(fedcal.calibrate([(np.eye(3), [0, 1, 2])], "avg-t", probs=True))


def test_words_are_classes():
    plain = fedcal.calibrate([(LOGITS, LABELS)], "fed-bias")
    found = fedcal.calibrate([(LOGITS[:1], WORDS[LABELS[:1]]), (LOGITS[1:], WORDS[LABELS[1:]])], "fed-bias")
    assert plain.classes == () and found.classes == ("cat", "dog", "owl")
    assert np.allclose(plain.apply(LOGITS), found.apply(LOGITS))
    order = np.array([2, 0, 1])
    given = fedcal.calibrate([(LOGITS[:, order], WORDS[LABELS])], "fed-bias", classes=WORDS[order])
    assert given.classes == ("owl", "cat", "dog")
    assert np.allclose(given.apply(LOGITS[:, order]), plain.apply(LOGITS)[:, order])
    assert fedcal.calibrate([(LOGITS, LABELS)], "avg-t", classes=[0, 1, 2]).classes == ()
    few = LABELS < 2
    assert fedcal.calibrate([(LOGITS[few], WORDS[LABELS[few]])], "avg-t", classes=WORDS).classes == tuple(WORDS)


def test_welcome_takes_the_labels_of_the_fit():
    plain, named = (fedcal.calibrate([(LOGITS, y)] * 2, DEFAULT) for y in (LABELS, WORDS[LABELS]))
    plain.welcome("new", LOGITS[:20], LABELS[:20] % 2)
    named.welcome("new", LOGITS[:20], WORDS[LABELS[:20] % 2])
    assert np.array_equal(plain.predict_proba(LOGITS, "new"), named.predict_proba(LOGITS, "new"))


def test_what_leaves_is_told_with_its_own_number():
    assert "H = 64" in METHODS["fedcal"].leaves and "H = 8" in METHODS["fedcal-small"].leaves
    assert "H = 5" in fedcal.calibrate([(LOGITS, LABELS)], "fedcal", rounds=1, hidden=5).method.leaves


def test_lazy_names_are_listed():
    code = "import fedcal, sys; assert set(fedcal.__all__) <= set(dir(fedcal)); assert 'sklearn' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_under_privacy_nothing_exact_follows_from_the_sizes_of_clients():
    """Neither who replies together, whose sums are rounded together, nor what the scores look like."""
    rng, privacy = np.random.default_rng(0), fedcal.Privacy(math.inf)
    z, y = rng.normal(size=(300, 17, 8)), rng.integers(8, size=(300, 17))
    books = []
    for n in (16, 17):  # of the first client
        clients = {f"c{i}": (z[i, :m], y[i, :m]) for i, m in enumerate([n, *[16] * 299])}
        books.append(fedcal.calibrate(clients, "fed-ts", privacy=privacy).ledger.to_dict())
    assert books[0] == books[1]
    looks = np.tile(np.eye(3), (100, 1))
    with pytest.warns(fedcal.FedCalWarning, match="look like probabilities"):
        assert fedcal.calibrate([(looks, np.arange(300) % 3)], "fed-ts", privacy=privacy).probs is None
