"""FederatedCalibrator: scikit-learn's checks, clients in every form, labels of every kind, one-line refusals."""

import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedcal
from conversations import LOGIT_METHODS
from fedcal import FedCalError, FederatedCalibrator
from fedcal.methods import get_method

NAMES = np.array(["cat", "dog", "owl"])


def site(n: int, seed: int, likes: tuple[float, ...] = (1, 1, 1)) -> tuple[np.ndarray, np.ndarray]:
    """Labels by the client's own law, Gaussian features given the label, logits three times too large."""
    rng = np.random.default_rng(seed)
    y = rng.choice(len(likes), n, p=np.divide(likes, sum(likes)))
    return 3 * (rng.normal(size=(n, len(likes))) + np.eye(len(likes))[y]), y


A, B = site(300, 0, (8, 1, 1)), site(200, 1, (1, 1, 8))
NEW = site(2000, 2, (1, 8, 1))

# --- scikit-learn's checks -----------------------------------------------------------------------------------------

THREE_BLOBS = "its data have 3 labels and 2 features: no logits, which have a column for each label"
EXPECTED = {
    "check_estimators_overwrite_params": THREE_BLOBS,
    "check_estimators_fit_returns_self": THREE_BLOBS,
    "check_readonly_memmap_input": THREE_BLOBS,
    "check_classifiers_classes": THREE_BLOBS,
    "check_classifiers_train": THREE_BLOBS,
    "check_classifiers_one_label": "3 columns are 3 classes: a calibrator does not forget those that nobody has",
}


@parametrize_with_checks(
    [FederatedCalibrator(), FederatedCalibrator("avg-t")],
    expected_failed_checks=lambda _: EXPECTED,
)
@pytest.mark.filterwarnings("ignore:A column-vector y was passed")
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def test_what_the_expected_failures_would_have_checked(tmp_path):
    """The same on logits: fit returns self, parameters stay, read-only input, labels of any kind."""
    path = tmp_path / "logits.npy"
    np.save(path, A[0])
    estimator = FederatedCalibrator(options={})
    before = estimator.get_params()
    assert estimator.fit(np.load(path, mmap_mode="r"), A[1]) is estimator
    assert estimator.get_params() == before
    for labels in (NAMES[A[1]], NAMES[A[1]].astype(object), A[1] + 5, A[1] * 1.0, torch.tensor(A[1])):
        again = clone(estimator).fit(A[0], labels)
        assert set(again.predict(A[0])) <= set(np.unique(labels))
        assert np.array_equal(again.predict_proba(A[0]), estimator.predict_proba(A[0]))


def test_not_fitted():
    for call in (
        lambda new: new.predict(A[0]),
        lambda new: new.predict_proba(A[0]),
        lambda new: new.welcome("x", A[0]),
    ):
        with pytest.raises(NotFittedError):
            call(FederatedCalibrator())


# --- clients -------------------------------------------------------------------------------------------------------


def test_all_forms_of_clients_agree():
    named = FederatedCalibrator().fit({"0": A, "1": B})
    listed = FederatedCalibrator().fit([A, (torch.tensor(B[0]), torch.tensor(B[1]))])
    rows = np.random.default_rng(0).permutation(500)
    logits, labels = (np.concatenate(pair) for pair in zip(A, B, strict=True))
    grouped = FederatedCalibrator().fit(logits, labels, groups=np.repeat([0, 1], [300, 200]))
    shuffled = FederatedCalibrator("fed-ts").fit(logits[rows], labels[rows], groups=np.repeat([0, 1], [300, 200])[rows])
    for one in (listed, grouped):
        assert one.clients_ == ["0", "1"] and one.n_features_in_ == 3 and one.rounds_ == named.rounds_ > 1
        for client in (None, 0, "1"):
            assert np.array_equal(one.predict_proba(NEW[0], client), named.predict_proba(NEW[0], client))
    pooled = FederatedCalibrator("fed-ts").fit(logits, labels)
    assert np.allclose(shuffled.predict_proba(NEW[0]), pooled.predict_proba(NEW[0]), atol=1e-12)


def test_rows_of_many_clients_are_found_in_little_time():
    """All rows were looked through for each client: 8 s for 5,000 clients."""
    scores = np.random.default_rng(0).normal(size=100_000)
    sites = np.array([f"site {i % 5000}" for i in range(100_000)])
    began = time.process_time()
    pairs = FederatedCalibrator()._clients(scores, scores > 0, sites)
    assert time.process_time() - began < 3
    assert len(pairs) == 5000 and np.array_equal(pairs["site 7"][0][:, 0], scores[7::5000])


@pytest.mark.parametrize("name", LOGIT_METHODS)
def test_equals_calibrate(name):
    rounds = 2 if name.startswith("fedcal") and name != "fedcal-plus" else None
    fitted = FederatedCalibrator(name, rounds=rounds, seed=3).fit([A, B])
    expected = fedcal.calibrate([A, B], name, rounds=rounds, seed=3).predict_proba(NEW[0])
    assert np.array_equal(fitted.predict_proba(NEW[0]), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict_proba(NEW[0]), expected)


def test_calibrates_and_welcomes():
    fitted = FederatedCalibrator().fit([A, B])
    logits, labels = (
        np.concatenate(pair) for pair in zip(site(900, 3, (8, 1, 1)), site(600, 4, (1, 1, 8)), strict=True)
    )
    raw = torch.tensor(logits).softmax(1)
    assert fedcal.ece(fitted.predict_proba(logits), labels) < fedcal.ece(raw, labels) / 2
    everyone = fitted.score(*NEW)
    fitted.welcome("known", *site(200, 5, (1, 8, 1))).welcome("unlabelled", site(200, 5, (1, 8, 1))[0])
    for client in ("known", "unlabelled"):
        assert np.mean(fitted.predict(NEW[0], client=client) == NEW[1]) > everyone


def test_keep_keeps_the_argmax_and_is_searchable():
    kept = FederatedCalibrator(accuracy="keep").fit([A, B])
    assert np.array_equal(kept.predict(NEW[0]), NEW[0].argmax(1))
    assert cross_val_score(FederatedCalibrator(), *A, cv=3, scoring="neg_log_loss").mean() > -1.0


def test_classes():
    assert list(FederatedCalibrator().fit(A[0], A[1] * 0).classes_) == [0, 1, 2]
    given = FederatedCalibrator(classes=["owl", "cat", "dog"])
    two = A[1] < 2
    given.fit([(A[0][two], np.array(["owl", "cat"])[A[1][two]]), (A[0][:0], [])])
    assert list(given.classes_) == ["owl", "cat", "dog"]
    assert np.array_equal(
        given.predict_proba(NEW[0]), FederatedCalibrator().fit(A[0][two], A[1][two]).predict_proba(NEW[0])
    )


# --- refusals ------------------------------------------------------------------------------------------------------


def test_options_in_a_spec_an_argument_or_a_mapping_are_the_same():
    ways = [
        FederatedCalibrator(accuracy="keep"),
        FederatedCalibrator("fedcal-plus:accuracy=keep"),
        FederatedCalibrator(options={"accuracy": "keep"}),
    ]
    for way in ways:
        again = clone(way)
        assert again.get_params() == way.get_params()
        assert again.fit([A, B]).scaler_.method == get_method("fedcal-plus", accuracy="keep")


REFUSED = {
    "keep elsewhere": (
        lambda: FederatedCalibrator("fed-ts", accuracy="keep").fit([A]),
        "fed-ts: unknown option 'accuracy'",
    ),
    "accuracy twice": (
        lambda: FederatedCalibrator(accuracy="keep", options={"accuracy": "keep"}).fit([A]),
        "accuracy is given twice",
    ),
    "accuracy in the spec too": (
        lambda: FederatedCalibrator("fedcal-plus:accuracy=keep", accuracy="keep").fit([A]),
        "'accuracy' is given twice",
    ),
    "accuracy": (lambda: FederatedCalibrator(accuracy="raise").fit([A]), "unknown accuracy 'raise'"),
    "method": (lambda: FederatedCalibrator("fed-tz").fit([A]), "did you mean 'fed-ts'"),
    "option": (lambda: FederatedCalibrator("fedcal", options={"hiden": 8}).fit([A]), "hidden"),
    "options": (lambda: FederatedCalibrator(options=[1]).fit([A]), "mapping"),
    "rounds as option": (lambda: FederatedCalibrator(options={"rounds": 3}).fit([A]), "argument of its own"),
    "probs as option": (lambda: FederatedCalibrator(options={"probs": True}).fit([A]), "argument of its own"),
    "three labels for one column": (lambda: FederatedCalibrator().fit(A[0][:, 0], A[1]), "one column per class"),
    "too few rounds": (lambda: FederatedCalibrator(rounds=1).fit([A]), "not done after 1 round:"),
    "no clients": (lambda: FederatedCalibrator().fit([]), "no clients"),
    "no pair": (lambda: FederatedCalibrator().fit([A[0]]), "expected a pair"),
    "strings missing": (lambda: FederatedCalibrator().fit(A[0], NAMES[A[1] % 2]), "2 different labels"),
    "other label": (lambda: FederatedCalibrator(classes=NAMES).fit(A[0], A[1]), "unknown label 0"),
    "mixed labels": (lambda: FederatedCalibrator().fit([A, (B[0], NAMES[B[1]])]), "different labels"),
    "missing label": (lambda: FederatedCalibrator().fit([(A[0][:2], ["cat", None])]), "client 0: labels must be all"),
    "NaN label": (lambda: FederatedCalibrator().fit([(A[0][:2], [0, np.nan])]), "finite"),
    "one-hot": (lambda: FederatedCalibrator().fit([(A[0], np.eye(3)[A[1]])]), "argmax"),
    "classes": (lambda: FederatedCalibrator(classes=[0, 1]).fit(*A), "3 different labels"),
    "groups too few": (lambda: FederatedCalibrator().fit(*A, groups=[0, 1]), "2 groups for 300 rows"),
    "groups missing": (lambda: FederatedCalibrator().fit(*A, groups=np.full(300, np.nan)), "groups must be finite"),
    "groups of a list": (lambda: FederatedCalibrator().fit([A], groups=[0]), "groups go with"),
    "labels beside clients": (lambda: FederatedCalibrator().fit({"a": A}, A[1]), "leave y out"),
    "unknown client": (lambda: FederatedCalibrator().fit({"a": A}).predict(A[0], client="b"), "unknown client 'b'"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_in_one_line(case):
    with pytest.raises(FedCalError) as caught:
        case[0]()
    assert case[1] in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_scikit_learns_words_where_it_checks():
    with pytest.raises(ValueError, match="requires y to be passed"):
        FederatedCalibrator().fit(A[0])
    with pytest.raises(ValueError, match="X has 2 features, but FederatedCalibrator is expecting 3"):
        FederatedCalibrator().fit([A]).predict(A[0][:, :2])


def test_import_stays_light():
    code = "import sys, fedcal; assert not {'sklearn', 'onnx', 'onnxruntime'} & set(sys.modules); fedcal.export_onnx"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {"FederatedCalibrator", "CalibratedModel", "export_onnx"} <= set(fedcal.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedcal.nothing
