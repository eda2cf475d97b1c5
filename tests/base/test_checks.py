"""What users hand over: every array-like gives the same logits; probabilities, binary scores; the warning."""

import warnings

import numpy as np
import pytest
import torch

import fedcal
from fedcal import FedCalError, FedCalWarning, Reliability
from fedcal.base.checks import as_logits, check_labels, look_like_probs, warn_if_swapped, warn_of_masks

RNG = np.random.default_rng(0)
LOGITS = np.round(3 * RNG.normal(size=(200, 3)))  # whole numbers: every type holds them exactly
LABELS = (LOGITS / 3 + RNG.gumbel(size=LOGITS.shape)).argmax(1)
WORDS = np.array(["cat", "dog", "owl"])
SCORES = 3 * RNG.normal(size=300)
TRUTH = (RNG.random(300) < 1 / (1 + np.exp(-SCORES / 3))).astype(int)


def softmax(logits):
    return torch.tensor(np.asarray(logits), dtype=torch.float64).softmax(1).numpy()


def sigmoid(scores):
    return 1 / (1 + np.exp(-scores))


class Frame:
    """What NumPy sees of a pandas DataFrame."""

    def __init__(self, values):
        self.values, self.ndim, self.shape = values, values.ndim, values.shape

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def read_only(values):
    values = values.copy()
    values.flags.writeable = False
    return values


# --- array-likes ---------------------------------------------------------------------------------------------------

FORMS = {
    "list of lists": lambda z: z.tolist(),
    "integers": lambda z: z.astype(np.int16),
    "float16": lambda z: z.astype(np.float16),
    "bfloat16 tensor": lambda z: torch.tensor(z, dtype=torch.bfloat16),
    "big-endian": lambda z: z.astype(">f4"),
    "read-only": read_only,
    "columns first": np.asfortranarray,
    "every second": lambda z: np.repeat(z, 2, axis=0)[::2],
    "backwards twice": lambda z: z[::-1].copy()[::-1],
    "data frame": Frame,
    "tensor with gradient": lambda z: torch.tensor(z, requires_grad=True),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_array_like_gives_the_same_scaler(form):
    expected = fedcal.calibrate([(LOGITS, LABELS)], "fed-bias").predict_proba(LOGITS)
    fitted = fedcal.calibrate([(form(LOGITS), LABELS)], "fed-bias")
    assert np.array_equal(np.asarray(fitted.predict_proba(form(LOGITS))), expected)
    assert np.array_equal(
        fedcal.FederatedCalibrator("fed-bias").fit([(form(LOGITS), LABELS)]).predict_proba(LOGITS), expected
    )
    probs = form(np.eye(3)[LABELS]) if form is FORMS["integers"] else form(softmax(LOGITS))
    assert 0 <= fedcal.ece(probs, LABELS) <= 1


@pytest.mark.parametrize(
    "labels",
    [
        LABELS.astype(float),
        LABELS[:, None],
        LABELS.astype(">i8"),
        read_only(LABELS),
        LABELS.tolist(),
        torch.tensor(LABELS),
    ],
)
def test_every_kind_of_label_gives_the_same(labels):
    assert fedcal.nll(softmax(LOGITS), labels) == fedcal.nll(softmax(LOGITS), LABELS)
    fitted = fedcal.calibrate([(LOGITS, labels)], "fed-ts")
    assert np.array_equal(fitted.apply(LOGITS), fedcal.calibrate([(LOGITS, LABELS)], "fed-ts").apply(LOGITS))
    assert fitted.classes == ()


def test_booleans_are_labels_of_two_classes():
    for labels in (TRUTH.astype(bool), torch.tensor(TRUTH).bool(), TRUTH.astype(bool)[:, None]):
        assert fedcal.nll(sigmoid(SCORES), labels) == fedcal.nll(sigmoid(SCORES), TRUTH)
        assert check_labels(labels, 300, 2).tolist() == TRUTH.tolist()


def test_arrays_give_arrays_and_tensors_tensors():
    fitted = fedcal.calibrate([(LOGITS, LABELS)], "avg-t")
    for call in (fitted.apply, fitted.predict_proba):
        assert isinstance(call(LOGITS), np.ndarray) and isinstance(call(LOGITS.tolist()), np.ndarray)
        assert isinstance(call(torch.tensor(LOGITS)), torch.Tensor)
        assert np.array_equal(call(LOGITS), call(torch.tensor(LOGITS)).numpy())
    assert isinstance(
        fedcal.FederatedCalibrator().fit([(LOGITS, LABELS)]).predict_proba(torch.tensor(LOGITS)), np.ndarray
    )


# --- probabilities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "atol"), [("fed-matrix", 1e-12), ("fedcal-plus", 0.02)])
def test_probabilities_calibrate_as_their_logits_do(method, atol):
    """To rounding; `fedcal-plus` deals its folds by the values of logits, which differ by a constant in each row."""
    clients = {"a": (LOGITS[:120], LABELS[:120]), "b": (LOGITS[120:], LABELS[120:])}
    given = {name: (softmax(z), y) for name, (z, y) in clients.items()}
    by_logits, by_probs = fedcal.calibrate(clients, method), fedcal.calibrate(given, method, probs=True)
    assert by_probs.probs is True and by_logits.probs is None
    for client in (None, "a"):
        expected = by_logits.predict_proba(LOGITS, client)
        assert np.allclose(by_probs.predict_proba(softmax(LOGITS), client), expected, atol=atol)
        assert np.allclose(by_probs.predict_proba(LOGITS, client, probs=False), expected, atol=atol)
        assert np.allclose(by_logits.predict_proba(softmax(LOGITS), client, probs=True), expected, atol=1e-6)
    by_logits.welcome("c", LOGITS, LABELS)
    by_probs.welcome("c", softmax(LOGITS), LABELS)
    assert np.allclose(by_probs.predict_proba(softmax(LOGITS), "c"), by_logits.predict_proba(LOGITS, "c"), atol=atol)


def test_a_probability_of_zero_counts_as_the_smallest_float32():
    assert as_logits([[0.0, 1.0]], probs=True).tolist() == [[np.log(np.float64(np.finfo(np.float32).tiny)), 0.0]]
    sure = fedcal.calibrate([(np.eye(3)[LABELS], LABELS)], probs=True).predict_proba(np.eye(3))
    assert np.isfinite(sure).all()


def test_a_stream_of_probabilities_and_words():
    clients = {"a": (softmax(LOGITS), WORDS[LABELS]), "b": (softmax(LOGITS), WORDS[LABELS[:1]].repeat(200))}
    held = fedcal.calibrate(clients, "fed-ts", probs=True)
    streamed = fedcal.calibrate(clients, "fed-ts", probs=True, stream=True)
    assert held.classes == streamed.classes == ("cat", "dog", "owl")
    assert held.params["temperature"] == streamed.params["temperature"]


# --- two classes ---------------------------------------------------------------------------------------------------

TWO = {
    "decision scores": (SCORES, False),
    "a column of them": (SCORES[:, None], False),
    "their tensor": (torch.tensor(SCORES), False),
    "P(class 1)": (sigmoid(SCORES), True),
    "a column of it": (sigmoid(SCORES)[:, None], True),
    "both probabilities": (np.stack([1 - sigmoid(SCORES), sigmoid(SCORES)], 1), True),
}


@pytest.mark.parametrize("case", TWO.values(), ids=TWO)
def test_two_classes_in_every_form(case):
    given, probs = case
    logits = np.stack([np.zeros(300), SCORES], 1)
    fitted = fedcal.calibrate([(given, TRUTH)], "fed-bias", probs=probs)
    expected = fedcal.calibrate([(logits, TRUTH)], "fed-bias").predict_proba(logits)
    assert fitted.n_classes == 2 and np.allclose(np.asarray(fitted.predict_proba(given)), expected, atol=1e-6)
    signed = fedcal.calibrate([(given, 2 * TRUTH - 1)], "fed-bias", probs=probs)
    assert signed.classes == (-1, 1) and np.array_equal(
        signed.apply(logits, probs=False), fitted.apply(logits, probs=False)
    )
    estimator = fedcal.FederatedCalibrator("fed-bias", probs=probs).fit(given, 2 * TRUTH - 1)
    assert np.allclose(estimator.predict_proba(given), expected, atol=1e-6)
    assert estimator.score(given, 2 * TRUTH - 1) > 0.6 and estimator.classes_.tolist() == [-1, 1]
    listed = fedcal.FederatedCalibrator("fed-bias", probs=probs).fit([(given, TRUTH)])
    assert np.array_equal(listed.predict_proba(given), estimator.predict_proba(given))


def test_a_client_of_two_classes_may_be_empty():
    alone, beside = (
        fedcal.calibrate([(SCORES, TRUTH), *more], "avg-t") for more in ([], [(SCORES[:0], TRUTH[:0]), ([], [])])
    )
    assert np.array_equal(alone.apply(SCORES), beside.apply(SCORES))


def test_metrics_of_one_column():
    p = sigmoid(SCORES)
    both = np.stack([1 - p, p], 1)
    for metric in (
        fedcal.accuracy, fedcal.brier, fedcal.nll, fedcal.ece, fedcal.mce, fedcal.equal_mass_ece, fedcal.classwise_ece,
        fedcal.top_k,
    ):  # fmt: skip
        assert metric(p, TRUTH) == metric(p[:, None], TRUTH) == metric(both, TRUTH)
        assert metric(p, 2 * TRUTH - 1, classes=[-1, 1]) == metric(both, TRUTH)
        assert metric(p, WORDS[TRUTH]) == metric(both, TRUTH) == metric(p, WORDS[TRUTH], classes=["cat", "dog"])
        assert metric(p, WORDS[TRUTH], classes=["dog", "cat"]) == metric(both, 1 - TRUTH)
    assert fedcal.top_k(p, TRUTH, k=1) == fedcal.accuracy(p, TRUTH)
    assert Reliability.of(p, TRUTH) == Reliability.of(both, WORDS[TRUTH])


# --- the warning ---------------------------------------------------------------------------------------------------


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [w for w in caught if w.category is FedCalWarning]


def test_probabilities_taken_for_logits_are_told_once():
    p = softmax(LOGITS)
    clients = [(p, LABELS), (p[:50], LABELS[:50]), (p[:0], LABELS[:0])]
    caught = warned(lambda: fedcal.calibrate(clients, "avg-t"))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert "pass probs=True, or probs=False" in str(caught[0].message) and len(str(caught[0].message).splitlines()) == 1
    caught = warned(lambda: fedcal.FederatedCalibrator("avg-t").fit(clients))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert len(warned(lambda: fedcal.calibrate({"a": clients[0]}, "fed-ts", stream=True))) == 1
    assert len(warned(lambda: fedcal.calibrate([(sigmoid(SCORES), TRUTH)], "avg-t"))) == 1
    fitted = fedcal.calibrate([(LOGITS, LABELS)], "avg-t")
    for call in (fitted.apply, fitted.predict_proba, lambda z: fitted.welcome("a", z, LABELS)):
        caught = warned(lambda call=call: call(p))
        assert len(caught) == 1 and caught[0].filename == __file__
    assert issubclass(FedCalWarning, UserWarning)


def test_a_client_of_one_class_says_nothing_of_the_order():
    """Its sums are 0, or a rounding error to either side."""
    for seed in range(20):
        z = np.random.default_rng(seed).normal(size=(11, 3)).astype(np.float32)
        warn_if_swapped([(z, np.full(11, seed % 3))], None)


def test_no_warning_where_there_is_nothing_to_say():
    p = softmax(LOGITS)
    for clients in (
        [(LOGITS, LABELS)], [(p, LABELS), (LOGITS, LABELS)], [(np.log(p), LABELS)], [(SCORES, TRUTH)], [(LOGITS * 0, LABELS)],
    ):  # fmt: skip
        assert not warned(lambda clients=clients: fedcal.calibrate(clients, "avg-t"))
    for probs in (True, False):
        fitted = fedcal.calibrate([(p, LABELS)], "avg-t", probs=probs)
        assert not warned(lambda fitted=fitted: fitted.predict_proba(p))
    scores = fedcal.calibrate([(SCORES, TRUTH)], "avg-t")
    assert not warned(lambda: scores.predict_proba([0.3]))  # a few scores may well lie between 0 and 1
    assert not look_like_probs(np.zeros((0, 3))) and not look_like_probs(np.zeros((5, 3)))


def test_errors_name_the_kind():
    with pytest.raises(FedCalError, match="probs must be True or False"):
        fedcal.FederatedCalibrator(probs="yes").fit([(LOGITS, LABELS)])


def test_masked_and_missing_values_are_refused():
    z, y = np.eye(3), np.arange(3)
    mask = np.array([True, False, False])
    with pytest.raises(FedCalError, match="logits have masked values"):
        fedcal.calibrate([(np.ma.MaskedArray(z, mask=np.tile(mask, (3, 1))), y)], "fed-ts")
    with pytest.raises(FedCalError, match="labels have masked values"):
        fedcal.calibrate([(z, np.ma.MaskedArray(y, mask=mask))], "fed-ts")
    assert fedcal.calibrate([(np.ma.MaskedArray(z, mask=False), y)], "uncal", probs=False).n_classes == 3
    for labels in (["a", float("nan"), "b"], ["a", 3, "b"], ["a", None, "b"]):
        with pytest.raises(FedCalError, match="all numbers or all strings"):
            fedcal.calibrate([(z, labels)], "fed-ts", probs=False)


def test_zero_probabilities_count_the_same_everywhere():
    p, y = np.array([[1.0, 0.0], [0.4, 0.6]]), [1, 1]
    expected = -(np.log(np.finfo(np.float32).tiny) + np.log(0.6)) / 2
    assert fedcal.nll(p, y) == pytest.approx(expected)
    assert fedcal.calibrate([(p, y)], "uncal", probs=True).apply(p)[0, 1] == pytest.approx(2 * -expected - np.log(0.6))


def test_scores_of_the_other_of_two_words():
    """Words are sorted, so a score of the first of them is taken for the second's: that is said, and only then."""
    words = np.array(["default", "repaid"])[1 - TRUTH]  # the scores are of "default"
    with pytest.warns(FedCalWarning, match=r"pass classes=\['repaid', 'default'\]"):
        fedcal.calibrate([(SCORES, words)], "fed-ts")
    assert fedcal.calibrate([(SCORES, words)], "fed-ts", classes=["repaid", "default"]).classes == ("repaid", "default")
    fedcal.calibrate([(-SCORES, words)], "fed-ts")  # without a warning: of "repaid"
    # Clients that differ in both: within each the scores are right, over both together they are not.
    fedcal.calibrate([(SCORES - 20, np.array(["a", "b"])[TRUTH]), (SCORES[:90], np.array(["a"] * 90))], "fed-ts")


@pytest.mark.parametrize("mask", [-1e4, -65504.0, -1e9, float(np.finfo(np.float32).min)])
def test_masked_classes_are_warned_of(mask):
    logits = LOGITS.copy()
    logits[::3, 1] = mask
    with pytest.warns(FedCalWarning, match="if they mask classes, give them a value about 50 below"):
        fedcal.calibrate([(logits, logits.argmax(1))], "uncal")


@pytest.mark.parametrize(
    "logits",
    [
        1e12 * LOGITS,
        -1e12 * np.eye(3)[LABELS],
        np.where(np.eye(3)[LABELS] > 0, 0, -50.0) + LOGITS,
        np.tan(np.pi * (np.random.default_rng(1).random((5000, 3)) - 0.5)),
        np.repeat(LOGITS[:3], 50, axis=0),
        np.zeros((5, 3)),
        np.zeros((0, 3)),
    ],
)
def test_other_logits_are_not_taken_for_masks(logits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_masks(np.asarray(logits))
