"""Federated calibration as a scikit-learn estimator: fit, predict_proba, clone, get_params.

The features are a frozen model's logits or probabilities, one column per class, or one column for two classes.
Results are arrays, also where tensors were given: that is what scikit-learn's scorers and searches expect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedcal.base.arrays import as_array
from fedcal.base.checks import check_array
from fedcal.base.labels import as_labels, rows_of_each
from fedcal.data.samples import name_clients
from fedcal.errors import FedCalError, error_context
from fedcal.methods import DEFAULT
from fedcal.transport.memory import calibrate


class FederatedCalibrator(ClassifierMixin, BaseEstimator):
    """Federated calibration as a scikit-learn estimator: fit, predict, predict_proba, clone, get_params.

    Args:
        method: a name (fedcal-plus if not given; `fedcal methods` lists all), or one with options, such as
            "fedcal-plus:accuracy=keep".
        accuracy: for fedcal-plus: "improve" lets the calibration change decisions, "keep" does not.
        rounds: the largest number of rounds; the method's default if not given.
        seed: for everything that is random.
        options: options of the method (see `fedcal methods NAME`), e.g. `{"hidden": 8}` for fedcal.
        classes: the labels of the columns, in their order. If not given: the labels found, sorted, where they are as
            many as the columns; else labels must be the columns' numbers.
        probs: True if X holds probabilities, (N, K) or P(class 1), instead of logits.

    Attributes:
        scaler_: the fitted `fedcal.Scaler`, which you can pass to `fedcal.CalibratedModel`.
        classes_: the label of each column.
        clients_: the names of the clients it was fitted on.
        n_features_in_: the number of columns.
        rounds_: the number of rounds of the fit.

    Examples:
        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> y = rng.choice(["cat", "dog", "owl"], size=600)
        >>> logits = 3 * (rng.normal(size=(600, 3)) + (y[:, None] == ["cat", "dog", "owl"]))
        >>> site = np.repeat(["north", "south"], 300)
        >>> calibrator = fedcal.FederatedCalibrator("fed-ts").fit(logits, y, groups=site)
        >>> calibrator.clients_, calibrator.classes_.tolist()
        (['north', 'south'], ['cat', 'dog', 'owl'])
        >>> calibrator.predict(logits[:3]).tolist()
        ['owl', 'dog', 'dog']
        >>> calibrator.predict_proba(logits[:1], client="north").round(2).tolist()
        [[0.29, 0.13, 0.58]]
    """

    def __init__(
        self,
        method: str = DEFAULT,
        accuracy: str | None = None,
        rounds: int | None = None,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        classes: Any = None,
        probs: bool | None = None,
    ) -> None:
        self.method = method
        self.accuracy = accuracy
        self.rounds = rounds
        self.seed = seed
        self.options = options
        self.classes = classes
        self.probs = probs

    def fit(self, X: Any, y: Any = None, groups: Any = None) -> Self:
        """Fit a scaler on clients, or on arrays as elsewhere in scikit-learn.

        Args:
            X: clients, as [(logits, y), …] or {name: (logits, y), …}; or the logits of all of them, with `y`.
            y: labels of the rows of X, if that is an array.
            groups: the client of each row; without it, all rows are of one client.

        Returns:
            The estimator itself.

        Raises:
            FedCalError: an argument or a client's samples are invalid.
        """
        options = self._options()
        pairs = self._clients(X, y, groups)
        first = check_array(next(iter(pairs.values()))[0], "logits")
        width = first.shape[1] if first.ndim == 2 else 1
        found = _labels_of(pairs)
        known = found if self.classes is None and len(found) == max(width, 2) else self.classes
        scaler = calibrate(
            pairs, self.method, rounds=self.rounds, seed=self.seed, probs=self.probs, classes=known, **options
        )
        self.scaler_ = scaler
        self.classes_ = np.arange(scaler.n_classes) if known is None else np.asarray(known)
        self.clients_ = list(pairs)
        self.n_features_in_ = width
        self.rounds_ = scaler.ledger.rounds
        return self

    def welcome(self, client: str | int, logits: Any, y: Any = None) -> Self:
        """Make a personal scaler for a client that took no part in the fit, from its own samples.

        Args:
            client: its name.
            logits: of its samples.
            y: their labels; may be left out for fedcal-plus.

        Returns:
            The estimator itself.
        """
        check_is_fitted(self)
        self.scaler_.welcome(client, logits, y)
        return self

    def predict_proba(self, X: Any, client: str | int | None = None) -> np.ndarray:
        """Return calibrated probabilities, one column for each of `classes_`.

        Args:
            X: logits, or probabilities with `probs=True`.
            client: whose personal scaler to use; the global one if not given.
        """
        checked = self._checked(X)  # which refuses an estimator that is not fitted
        return self.scaler_.predict_proba(checked, client)

    def predict_set(self, X: Any, alpha: float | None = None, client: str | int | None = None) -> np.ndarray:
        """Return conformal sets as booleans, one column for each of `classes_`; fit with `options={"alpha": 0.1}`.

        Args:
            X: as for `predict_proba`.
            alpha: the share of labels that sets may miss; if not given, the one that the estimator was fitted for.
            client: as for `predict_proba`.

        Raises:
            FedCalError: it was fitted without sets, or alpha is out of range.
        """
        checked = self._checked(X)
        return self.scaler_.predict_set(checked, alpha, client)

    def predict(self, X: Any, client: str | int | None = None) -> np.ndarray:
        """Return the most probable of `classes_`.

        Args:
            X: as for `predict_proba`.
            client: as for `predict_proba`.
        """
        columns = self.predict_proba(X, client).argmax(axis=1)
        return self.classes_[columns]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if tags.classifier_tags is not None:
            tags.classifier_tags.poor_score = True  # on features that are no logits
        return tags

    def _checked(self, X: Any) -> Any:
        """Logits for the scaler, as many columns as it was fitted on."""
        check_is_fitted(self)
        scores = _column(_array(X)) if self.n_features_in_ == 1 else _array(X)
        return validate_data(self, scores, reset=False, dtype=[np.float64, np.float32])

    def _clients(self, X: Any, y: Any, groups: Any) -> dict[str, tuple[Any, Any]]:
        """Each client's logits and labels by name, whichever way they were given."""
        if y is None and isinstance(X, Mapping | list | tuple):
            if groups is not None:
                raise FedCalError(
                    "groups go with fit(logits, y): a list or mapping already says which samples are whose"
                )
            vars(self).pop("feature_names_in_", None)  # of an earlier fit on a table
            return name_clients(X)
        if isinstance(X, Mapping) and not hasattr(X, "shape"):  # SciPy has sparse arrays that are mappings
            raise FedCalError("a mapping of clients holds their labels, as (logits, labels): leave y out")
        checked: Any = validate_data(self, _column(_array(X)), _array(y), dtype=[np.float64, np.float32])
        logits, labels = checked
        check_classification_targets(labels)
        if logits.shape[1] == 1 and len(np.unique(labels)) > 2:
            raise FedCalError("more than two labels for 1 feature(s): give one column per class")
        if groups is None:
            return {"0": (logits, labels)}
        sites = as_labels(groups, "groups")
        if len(sites) != len(labels):
            raise FedCalError(f"{len(sites)} groups for {len(labels)} rows: give one for each row")
        return name_clients({name: (logits[rows], labels[rows]) for name, rows in rows_of_each(sites).items()})

    def _options(self) -> dict[str, Any]:
        """The method's options, as `calibrate` takes them; it checks them."""
        if not isinstance(self.options, Mapping | None):
            raise FedCalError(f"options must be a mapping of the method's options, not {self.options!r}")
        options = dict(self.options or {})
        for name in ("rounds", "seed", "method", "clients", "probs", "classes", "stream"):
            if name in options:
                raise FedCalError(f"options must not hold {name!r}: it is an argument of its own, not the method's")
        if self.accuracy is None:
            return options
        if "accuracy" in options:
            raise FedCalError("accuracy is given twice, as an argument and in options: give it once")
        return {"accuracy": self.accuracy, **options}


def _labels_of(pairs: Mapping[str, tuple[Any, Any]]) -> np.ndarray:
    """All clients' labels, sorted."""
    found = []
    for name, (_, labels) in pairs.items():
        with error_context(f"client {name}"):
            found.append(as_labels(labels))
    return np.unique(np.concatenate([own for own in found if len(own)] or [np.zeros(0)]))


def _column(values: Any) -> Any:
    """1-D scores as the single column that they are; anything else as it is."""
    ndim = np.ndim(values) if isinstance(values, list | tuple) else getattr(values, "ndim", None)
    return np.reshape(values, (-1, 1)) if ndim == 1 else values


def _array(values: Any) -> Any:
    """A tensor as an array; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    found = as_array(values)
    return found.astype(float) if found.dtype.kind == "f" else found
