"""Federated calibration with scikit-learn's manners: fit, predict_proba, clone, get_params.

The features are a frozen model's logits, one column a class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from fedcal.calibrate.methods import METHODS
from fedcal.calibrate.methods.fedcal_plus import FedCalPlus
from fedcal.calibrate.rounds import calibrate, name_clients
from fedcal.checks import check_logits
from fedcal.errors import FedCalError

ACCURACIES = ("improve", "keep")


class FederatedCalibrator(ClassifierMixin, BaseEstimator):
    """Calibrates a frozen model from what each client may tell of its logits and labels.

    >>> calibrator = fedcal.FederatedCalibrator().fit({"siteA": (logits_a, y_a), "siteB": (logits_b, y_b)})
    >>> calibrator.predict_proba(logits)                    # for the federation
    >>> calibrator.predict_proba(logits, client="siteA")    # for one of its sites

    Args:
        method: see `fedcal methods`.
        accuracy: fedcal-plus only: "improve" lets the calibration move the argmax, "keep" does not.
        rounds: at most so many; the method's own number if not given.
        seed: of whatever is drawn at random.
        options: further options of the method, e.g. `{"hidden": 8}` for fedcal.
        classes: the labels of the columns, in their order. If not given: the labels found, sorted, where they are as
            many as the columns; else labels must be the columns' numbers.

    Attributes:
        calibration_: the outcome, a `fedcal.Calibration`; `fedcal.CalibratedModel` takes it.
        classes_: the label of each column.
        clients_: the names of the clients it was fitted on.
        n_features_in_: the number of columns.
        rounds_: the rounds that it took.
    """

    def __init__(
        self,
        method: str = "fedcal-plus",
        accuracy: str = "improve",
        rounds: int | None = None,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        classes: Any = None,
    ) -> None:
        self.method = method
        self.accuracy = accuracy
        self.rounds = rounds
        self.seed = seed
        self.options = options
        self.classes = classes

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Fit on clients, `fit([(logits, y), …])` or `fit({name: (logits, y), …})`; or on arrays as elsewhere in
        scikit-learn: `fit(logits, y, groups=sites)`, one client a group, or `fit(logits, y)`, a single client."""
        options = self._options()
        pairs = self._clients(X, y, groups)
        k, labels = 0, {}
        for name, (logits, own) in pairs.items():
            try:
                k, labels[name] = check_logits(logits).shape[1], _labels(own)
            except FedCalError as error:
                raise FedCalError(f"client {name}: {error}") from None
        classes = self._classes(labels.values(), k)
        samples = {name: (pairs[name][0], _columns(labels[name], classes)) for name in pairs}
        state = calibrate(samples, self.method, rounds=self.rounds, seed=self.seed, **options)
        if state.program is not None:
            raise FedCalError(f"{self.method} is not done after {state.rounds} rounds: allow more, or leave rounds out")
        self.calibration_ = state
        self.classes_ = classes
        self.clients_ = list(samples)
        self.n_features_in_ = k
        self.rounds_ = state.rounds
        return self

    def welcome(self, client: str | int, logits: Any, y: Any = None) -> Self:
        """Make a client known that took no part, from samples of its own: with labels or, for fedcal-plus, without."""
        check_is_fitted(self)
        columns = None if y is None else _columns(_labels(y), self.classes_)
        self.calibration_.welcome(client, logits, columns)
        return self

    def predict_proba(self, X: Any, client: str | int | None = None) -> np.ndarray:
        """Calibrated probabilities, a column for each of `classes_`; for the federation, or for a client of it."""
        check_is_fitted(self)
        logits = validate_data(self, _array(X), reset=False, dtype=[np.float64, np.float32])
        return self.calibration_.predict_proba(logits, client).numpy()

    def predict(self, X: Any, client: str | int | None = None) -> np.ndarray:
        """The most probable of `classes_`."""
        columns = self.predict_proba(X, client).argmax(axis=1)
        return self.classes_[columns]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if tags.classifier_tags is not None:
            tags.classifier_tags.poor_score = True  # on features that are no logits
        return tags

    def _clients(self, X: Any, y: Any, groups: Any) -> dict[str, tuple[Any, Any]]:
        """Each client's logits and labels by name, whichever way they were given."""
        if y is None and isinstance(X, Mapping | list | tuple):
            if groups is not None:
                raise FedCalError("groups go with fit(logits, y): a list or mapping already tells the clients apart")
            vars(self).pop("feature_names_in_", None)  # of an earlier fit on a table
            return name_clients(X)
        logits, labels = validate_data(
            self, _array(X), _array(y), dtype=[np.float64, np.float32], ensure_min_features=2
        )
        check_classification_targets(labels)
        if groups is None:
            return {"0": (logits, labels)}
        sites = _labels(groups, "groups")
        if len(sites) != len(labels):
            raise FedCalError(f"{len(sites)} groups for {len(labels)} rows: they must be as many")
        return name_clients({name: (logits[sites == name], labels[sites == name]) for name in np.unique(sites)})

    def _classes(self, labels: Iterable[np.ndarray], k: int) -> np.ndarray:
        """The label of each of the k columns."""
        if self.classes is not None:
            classes = _labels(self.classes, "classes")
            if len(classes) != k or len(np.unique(classes)) != k:
                raise FedCalError(f"classes must be {k} different labels, as many as the logits' columns")
            return classes
        found = np.unique(np.concatenate([own for own in labels if len(own)] or [np.arange(k)]))
        if len(found) == k:
            return found
        if found.dtype.kind in "biuf" and np.isin(found, np.arange(k)).all():
            return np.arange(k)
        raise FedCalError(
            f"{len(found)} different labels for logits of {k} columns: "
            f"use 0..{k - 1}, or say which label each column has by classes=[…]"
        )

    def _options(self) -> dict[str, Any]:
        """The method's options, `accuracy` among them where it has it."""
        if not isinstance(self.options, Mapping | None):
            raise FedCalError(f"options must be a mapping of the method's options, not {self.options!r}")
        options = dict(self.options or {})
        for name in ("rounds", "seed", "method", "clients"):
            if name in options:
                raise FedCalError(f"options must not hold {name!r}: it is an argument of its own")
        if self.accuracy not in ACCURACIES:
            raise FedCalError(f"accuracy must be one of {', '.join(ACCURACIES)}, not {self.accuracy!r}")
        if isinstance(METHODS.get(self.method), FedCalPlus):
            return {"accuracy": self.accuracy, **options}
        if self.accuracy != "improve":
            raise FedCalError(f"accuracy={self.accuracy!r} is for fedcal-plus: {self.method} has no such option")
        return options


def _array(values: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    if not isinstance(values, Tensor):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def _labels(values: Any, what: str = "labels") -> np.ndarray:
    """(N,) numbers or strings, none of them missing."""
    labels = np.asarray(_array(values))
    if labels.ndim != 1:
        raise FedCalError(f"{what} must have shape (samples,), not {labels.shape}; one-hot labels need argmax first")
    try:
        np.unique(labels)
    except TypeError:  # they have no order
        raise FedCalError(f"{what} must be all numbers or all strings, none of them missing") from None
    if labels.dtype.kind == "O":
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise FedCalError(f"{what} must be finite: found NaN or infinity")
    return labels


def _columns(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The column of each label."""
    if not len(labels):
        return np.zeros(0, dtype=np.int64)
    found, inverse = np.unique(labels, return_inverse=True)
    known = {label: column for column, label in enumerate(classes.tolist())}
    for label in found.tolist():
        if label not in known:
            raise FedCalError(f"unknown label {label!r}: the classes are {', '.join(map(str, classes[:20]))}")
    return np.array([known[label] for label in found.tolist()])[inverse]
