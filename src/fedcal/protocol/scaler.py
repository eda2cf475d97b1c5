"""The fitted thing: it turns logits into calibrated probabilities, for the federation or for one of its clients.

In a file (safetensors) it is the global scaler under `global/`, and each client's personal part under `personal/NAME/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.base import schema
from fedcal.base.arrays import Array, Params, tensor
from fedcal.base.checks import (
    as_logits,
    check_kind,
    check_labels,
    check_shown,
    look_like_probs,
    warn_of_probs,
    warn_user,
)
from fedcal.base.features import check_features
from fedcal.base.labels import check_classes
from fedcal.base.logits import by_rows, ordered_softmax
from fedcal.base.store import nest, read_tensors, unnest, unnest_each, write_tensors
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError, counted, error_context, unknown
from fedcal.exact.head_samples import join
from fedcal.methods import METHODS, Method, method_from_json, method_to_json
from fedcal.methods.sets import WithSets
from fedcal.protocol.ledger import Ledger
from fedcal.protocol.valid import SCALER, SCALER_HEADER, check_params, check_personal


@dataclass
class Scaler:
    """A fitted scaler: the global one, and personal ones of clients. `fedcal.calibrate` returns it.

    Examples:
        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(200, 3))
        >>> logits, labels = 3 * z, (z + rng.gumbel(size=z.shape)).argmax(1)
        >>> scaler = fedcal.calibrate({"a": (logits[:100], labels[:100]), "b": (logits[100:], labels[100:])}, "avg-t")
        >>> scaler
        <Scaler avg-t: logits of 3 classes, 2 clients, 1 round, 8 bytes up and 16 down per client>
        >>> scaler.predict_proba(logits[:2]).round(2).tolist()
        [[0.3, 0.24, 0.46], [0.35, 0.21, 0.44]]
        >>> scaler.save("scaler.safetensors")
        >>> fedcal.Scaler.load("scaler.safetensors").personal.keys()
        dict_keys(['a', 'b'])
    """

    method: Method
    params: Params  # of the global scaler
    n_classes: int  # K of the logits that it takes
    personal: dict[str, Params] = field(default_factory=dict)  # by client; empty where the global scaler serves
    classes: tuple[Any, ...] = ()  # the label of each column; empty: labels are the columns' numbers
    probs: bool | None = None  # whether it takes probabilities (True) or logits (False); None: logits, nobody said so
    ledger: Ledger = field(default_factory=Ledger)  # what the fit has cost; not saved
    federation: str = ""  # of a federation by files: a site finds what it has kept by this name

    def __repr__(self) -> str:
        clients = f", {counted(len(self.personal), 'client')}" if self.personal else ""
        kind = "probabilities" if self.probs else self.method.takes
        cost = ""
        if (books := self.ledger).rounds:
            cost = (
                f", {counted(books.rounds, 'round')}, {books.total_up} bytes up and {books.total_down} down per client"
            )
        return f"<Scaler {self.method.name}: {kind} of {self.n_classes} classes{clients}{cost}>"

    def apply(self, logits: Any, client: str | int | None = None, *, probs: bool | None = None) -> Any:
        """Calibrate logits.

        Args:
            logits: (N, K), or (N,) scores of two classes.
            client: whose personal scaler to use; the global one if not given.
            probs: whether these are probabilities; if not given, what the scaler was fitted on.

        Returns:
            Calibrated logits in float64: a tensor if a tensor was given, else an array.
        """
        return self._by_rows(lambda calibrated: calibrated, logits, client, probs)

    def predict_proba(self, logits: Any, client: str | int | None = None, *, probs: bool | None = None) -> Any:
        """Return calibrated probabilities in float64: a tensor if a tensor was given, else an array.

        Args:
            logits: as for `apply`.
            client: as for `apply`.
            probs: as for `apply`.
        """
        return self._by_rows(ordered_softmax, logits, client, probs)

    def predict_set(
        self, logits: Any, alpha: float | None = None, client: str | int | None = None, *, probs: bool | None = None
    ) -> Any:
        """Return conformal sets: for each sample, classes that contain the label with probability at least 1 − alpha.

        Args:
            logits: as for `apply`.
            alpha: the share of labels that sets may miss, 0.001 to 0.5; by default, as calibrated.
            client: as for `apply`.
            probs: as for `apply`.

        Returns:
            Booleans, (N, K): a tensor if a tensor was given, else an array. No set is empty.

        Raises:
            FedCalError: the scaler has no sets, or alpha is out of range.
        """
        method = self.method
        if not isinstance(method, WithSets):
            raise FedCalError(
                "this scaler was made without sets: calibrate with alpha=0.1 (fedcal calibrate --alpha 0.1)"
            )
        level = method.sets.alpha if alpha is None else alpha
        scores, personal = self._logits(logits, probs), self.personal_of(client)
        if few := method.too_few(self.params, level):
            warn_user(few)
        with np.errstate(all="ignore"):
            found = by_rows(lambda block: method.predict_set(self.params, personal, block, level), scores, bool)
        return tensor(found).to(logits.device) if hasattr(logits, "detach") else found

    def _by_rows(
        self, then: Callable[[Array], Array], scores: Any, client: str | int | None, probs: bool | None
    ) -> Any:
        """What `then` makes of calibrated logits: a tensor where the user gave one, on its device; else an array."""
        logits, personal = self._logits(scores, probs), self.personal_of(client)
        method, params = self.method, self.params
        with np.errstate(all="ignore"):  # a lift that does not fit is replaced by one that does
            found = by_rows(
                lambda z: then(method.apply_personal(params, personal, z.astype(float, copy=False))), logits
            )
        return tensor(found).to(scores.device) if hasattr(scores, "detach") else found

    def _logits(self, scores: Any, probs: bool | None) -> Array:
        """The logits that the method takes, of as many classes as it was fitted on."""
        if self.method.takes == "features":
            return self._rows(scores, probs)
        kind = self.probs if probs is None else check_kind(probs)
        logits = as_logits(scores, kind)
        self.check_width(logits)
        if kind is None and look_like_probs(logits):
            warn_of_probs()
        return logits

    def _rows(self, scores: Any, probs: bool | None) -> Array:
        """The rows that a method of features takes, of features or of rows."""
        if probs:
            raise FedCalError(f"this scaler takes features, not probabilities: leave probs out ({self.method.name})")
        values = check_features(scores)
        self.check_width(values)
        if values.shape[1] == self.method.width(self.n_classes):
            return values
        if "model_weight" not in self.params:
            raise FedCalError(
                "this scaler does not know the model's last layer: serve it by CalibratedModel(model, scaler)"
            )
        logits = values.astype(float) @ self.params["model_weight"].T + self.params["model_bias"]
        return join(logits, values.astype(float))

    def personal_of(self, client: str | int | None) -> Params:
        """Return a client's personal scaler; empty if it uses the global one.

        Args:
            client: its name; None for the global scaler.

        Raises:
            FedCalError: the client is unknown.
        """
        if client is not None and self.personal and str(client) not in self.personal:
            raise FedCalError(
                f"{unknown('client', str(client), self.personal)} (leave it out for the global scaler, "
                "or make a personal one for a new client: `Scaler.welcome`, `fedcal client finish`)"
            )
        return self.personal.get(str(client), {}) if client is not None else {}

    def check_width(self, logits: Any) -> None:
        """Refuse logits of another number of classes.

        Args:
            logits: (N, K).

        Raises:
            FedCalError: the numbers differ.
        """
        if self.method.takes == "features":
            rows = self.method.width(self.n_classes)
            d, given = rows - self.n_classes - 1, logits.shape[1]
            if given not in (d, rows):
                what = f"{given} logits" if given == self.n_classes else f"{given} columns"
                raise FedCalError(f"this scaler was fitted on {d} features and their head; you gave {what}")
        elif logits.shape[1] != self.n_classes:
            raise FedCalError(
                f"logits of {logits.shape[1]} classes for a scaler of {self.n_classes}: give a column for each of them"
            )

    @one_thread()
    def welcome(self, client: str | int, logits: Any, labels: Any = None, *, probs: bool | None = None) -> None:
        """Make a personal scaler for a client that took no part in the fit, from its own samples.

        Args:
            client: its name.
            logits: of its samples.
            labels: of the same; may be left out for fedcal-plus.
            probs: as for `apply`.
        """
        name, scores = check_shown(str(client)), self._logits(logits, probs).astype(float, copy=False)
        if labels is not None:
            labels = check_labels(labels, len(scores), self.n_classes, classes=self.classes or None)
        self.personal[name] = self.method.personal(self.params, {}, scores, labels)

    def save(self, path: str | Path, *, private: bool = False) -> None:
        """Write all that is needed to use the scaler, atomically.

        Args:
            path: the file, safetensors.
            private: whether only this user may read it.
        """
        about = {
            "schema": SCALER,
            **method_to_json(self.method),
            "n_classes": self.n_classes,
            "classes": list(self.classes),
            "probs": self.probs,
            "clients": sorted(self.personal),
            **({"federation": self.federation} if self.federation else {}),
        }
        schema.check(about, SCALER_HEADER, "the scaler cannot be saved")  # nothing is written that `load` refuses
        tensors = nest("global", self.params)
        for client, personal in self.personal.items():
            tensors |= nest(f"personal/{_escaped(client)}", personal)
        write_tensors(Path(path), tensors, about, private)

    @classmethod
    def load(cls, path: str | Path) -> Scaler:
        """Read a saved scaler.

        Args:
            path: what `save` wrote.

        Returns:
            The scaler; its ledger is empty.

        Raises:
            FedCalError: the file is missing, damaged, or not a scaler.
        """
        tensors, about = read_tensors(Path(path))
        if "kind" in about:
            raise FedCalError(
                f"{path} is a request or a reply: a federation's scaler is scaler.safetensors, written when the fit is done"
            )
        if about.get("schema") != SCALER or about.get("method") not in list(METHODS) or "clients" not in about:
            raise FedCalError(
                f"{path} is not a scaler that this fedcal knows: write it again with `fedcal calibrate` or `fedcal run`"
            )
        try:
            return cls._of(tensors, about)
        except FedCalError as error:
            raise FedCalError(f"{path} is damaged ({error}): write it again") from None

    @classmethod
    def _of(cls, tensors: Params, about: dict[str, Any]) -> Scaler:
        """The scaler that a file holds, all of it checked."""
        schema.check(about, SCALER_HEADER, "its header")
        n_classes, method, names = about["n_classes"], method_from_json(about), about["clients"]
        labels = tuple(check_classes(about["classes"], n_classes).tolist()) if about["classes"] else ()
        params, parts = unnest("global", tensors), unnest_each(unnest("personal", tensors))
        personal = {client: parts.get(_escaped(client), {}) for client in names}
        check_params(method, params, n_classes)
        for client, part in personal.items():
            with error_context(f"client {client}"):
                check_personal(method, part, params, n_classes)
        if len(personal) < len(names) or len(params) + sum(map(len, personal.values())) < len(tensors):
            raise FedCalError("its clients are not those of its tensors")
        federation = about.get("federation", "")
        return cls(method, params, n_classes, personal, labels, about["probs"], federation=federation)


def _escaped(client: str) -> str:
    """A client's name in those of its tensors; a slash in it must not look like a step down."""
    return client.replace("%", "%25").replace("/", "%2F")
