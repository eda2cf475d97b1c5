"""`fedcal.Monitor`: the server's evidence about every site, batch by batch, in one file."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedcal.base.arrays import tensors as tensors_of
from fedcal.base.codec import check_finite
from fedcal.base.schema import COUNT, Exactly, ListOf, MapOf, Number, Record, Text, Truth, Tuple, check
from fedcal.base.store import nest, read_tensors, unnest_each, write_tensors
from fedcal.errors import FedCalError, unknown
from fedcal.monitor.alternatives import share_bounds, share_ratios
from fedcal.monitor.batch import (
    MIN_COUNT,
    MOST_TOLERANCE,
    TOLERANCE,
    About,
    Batch,
    check_tolerance,
    fingerprint,
    sums_of,
)
from fedcal.monitor.stream import Stream
from fedcal.monitor.verdict import Null, Verdict, judge
from fedcal.protocol import Scaler
from fedcal.protocol.checks import check_client_name

KIND, SCHEMA = "monitor", 1
ALL = ""  # stands for all sites together
ALPHA = 0.05
# Shares of alpha: they sum to 1, so that a false alarm of any kind has a probability of at most alpha. Sites split theirs
# evenly.
POOLED, CALIBRATION, LABELS, PREDICTIONS, BOUNDS = 0.3, 0.3, 0.15, 0.15, 0.1
_SHARES = {Null.CALIBRATION: CALIBRATION, Null.LABELS: LABELS, Null.PREDICTIONS: PREDICTIONS}
_TAKEN = Tuple((Text(200), Text(32), Exactly(tuple(map(str, About))), COUNT))
_HEADER = Record(
    {
        "kind": Exactly((KIND,)),
        "schema": Exactly((SCHEMA,)),
        "alpha": Number(1e-9, 0.5),
        "tolerance": Number(0, MOST_TOLERANCE),
        "scaler": Text(32),
        "classes": ListOf(Text(any=True)),  # as the user has named them
        "sites": ListOf(Text(200)),
        "offsets": Truth(),
        "taken": MapOf(ListOf(_TAKEN)),
        "streams": ListOf(Tuple((Text(200), Exactly(tuple(map(str, Null))), COUNT, ListOf(Text(200))))),
    }
)


def share_of(site: str, null: Null, n_sites: int) -> float:
    """The share of alpha that a test may use."""
    if n_sites == 1 and null is Null.CALIBRATION:  # there are no others to look at together
        return POOLED + CALIBRATION
    return POOLED if site == ALL else _SHARES[null] / n_sites


class Monitor:
    """Watch a calibrated model after deployment: are the probabilities of every site still right?

    The probability of any false alarm, at any site and at any time, is at most `alpha`.

    Examples:
        >>> import numpy as np, fedcal
        >>> rng = np.random.default_rng(0)
        >>> def week(odds, n=200):
        ...     logits = rng.normal(size=n)
        ...     return logits, (rng.random(n) < 1 / (1 + np.exp(-logits - odds))).astype(int)
        >>> scaler = fedcal.calibrate({"north": week(0), "south": week(0)}, "fed-ts")
        >>> monitor = fedcal.Monitor(scaler, ["north", "south"])                      # at the server
        >>> for number in range(8):                                                   # at the sites
        ...     new = monitor.add(fedcal.Monitor.sums(scaler, "north", f"week {number}", *week(0)))
        ...     new = monitor.add(fedcal.Monitor.sums(scaler, "south", f"week {number}", *week(1.5)))
        >>> monitor.verdict().headline
        'The probabilities are no longer right at south.'
    """

    def __init__(
        self,
        scaler: Scaler,
        sites: Iterable[str] | None = None,
        *,
        alpha: float = ALPHA,
        tolerance: float = TOLERANCE,
    ) -> None:
        """Begin with no evidence.

        Args:
            scaler: the one that serves.
            sites: names of the sites that may send batches; those of the scaler's personal parts if not given.
            alpha: probability of any false alarm, ever.
            tolerance: log-odds by which probabilities and class shares may be off and still count as right.

        Raises:
            FedCalError: no sites are known, or a number is out of bounds.
        """
        names = list(scaler.personal if sites is None else map(str, sites))
        if not names:
            raise FedCalError("no sites: name those that will send batches, as the scaler has no personal parts")
        if len(set(names)) < len(names):
            raise FedCalError("a site is named twice: name each once")
        if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 1e-9 <= alpha <= 0.5:
            raise FedCalError(f"alpha {alpha!r}: give a probability of false alarms up to 0.5, such as {ALPHA}")
        self.sites = [check_client_name(name) for name in names]
        self.alpha, self.tolerance = float(alpha), check_tolerance(tolerance)
        self.classes = [str(name) for name in scaler.classes] or [str(k) for k in range(scaler.n_classes)]
        self.scaler = fingerprint(scaler)
        self.offsets = "prior" in scaler.params
        self.streams: dict[tuple[str, Null], Stream] = {}
        self.references: dict[str, Batch] = {}
        self.taken: dict[str, dict[str, tuple[str, str, int]]] = {}  # by site and batch: digest, kind, samples

    @staticmethod
    def sums(
        scaler: Scaler,
        site: str,
        batch: str,
        logits: Any,
        labels: Any = None,
        *,
        reference: bool = False,
        tolerance: float = TOLERANCE,
        min_count: int = MIN_COUNT,
        probs: bool | None = None,
    ) -> Batch:
        """Sum up a batch at a site. Only these sums are sent to the server.

        Args:
            scaler: the site's scaler; the personal scaler of `site` is used, if there is one.
            site: its name.
            batch: a name that the site uses once, such as a week. Samples must be in one batch only.
            logits: (N, K) of the model, as for `Scaler.apply`.
            labels: (N,) of the same samples; leave out to send predictions alone.
            reference: these are the samples that the site's offset was made from: later label counts are compared with them.
            tolerance: that of the monitor.
            min_count: refuse to sum up fewer samples than this.
            probs: as for `Scaler.apply`.

        Returns:
            The batch, for `add`.

        Raises:
            FedCalError: too few samples, or arrays that do not fit.
        """
        return sums_of(scaler, site, batch, logits, labels, reference, tolerance, min_count, probs)

    def add(self, batch: Batch, same_sums: bool = False) -> bool:
        """Add a batch.

        Args:
            batch: from a site. Batches of one site count in the order in which they are added.
            same_sums: also add a batch with the sums of an earlier one under another name. Set this only if you know that
                these are other samples, which a model with few distinct probabilities may well have.

        Returns:
            Whether it was new. The same batch again changes nothing.

        Raises:
            FedCalError: it is of another scaler, tolerance or site, its name was used for other samples, or its sums are
                those of another batch.
        """
        self._check(batch)
        known = self.taken.setdefault(batch.site, {})
        digest = batch.digest
        if batch.batch in known:
            if known[batch.batch][0] == digest:
                return False
            raise FedCalError(
                f"{batch.site}: batch {batch.batch!r} was sent before with other sums: "
                "give every batch of a site another name (`fedcal monitor sums --batch NAME`)"
            )
        same = next((name for name, of in known.items() if of[0] == digest), None)
        if same is not None and not same_sums:
            raise FedCalError(
                f"{batch.site}: batch {batch.batch!r} has the sums of batch {same!r}, and a sample counts once: leave it "
                "out, or if these are other samples, allow the same sums (same_sums=True, --same-sums)"
            )
        if batch.about is About.REFERENCE:
            self._refer(batch)
        else:
            labelled = batch.about is About.LABELLED
            null, sums = (Null.LABELS, batch.counts) if labelled else (Null.PREDICTIONS, batch.expected)
            bounds = self._check_bounds(batch, null)
            if bounds is None and not labelled:
                raise FedCalError(f"{batch.site}: nothing to compare its predictions with: send its reference first")
            if bounds is not None:
                stream = self._stream(batch.site, null)
                stream.bounds = bounds
                stream.add(share_ratios(sums, batch.n, *bounds), batch.batch, batch.n)
            if labelled:
                self._stream(batch.site, Null.CALIBRATION).add(batch.ratios, batch.batch, batch.n)
                if len(self.sites) > 1:
                    name = f"{batch.site} {batch.batch}"
                    self._stream(ALL, Null.CALIBRATION).add(batch.ratios, name, batch.n)
        known[batch.batch] = (digest, str(batch.about), batch.n)
        return True

    def verdict(self) -> Verdict:
        """Evaluate the evidence so far.

        Returns:
            The findings, in words and in numbers.
        """
        order = sorted(self.streams, key=lambda key: (key[0] != ALL, self.sites.index(key[0]) if key[0] else 0, key[1]))
        findings = [
            self.streams[site, null].finding(
                site or None, share_of(site, null, len(self.sites)), self.alpha, self.classes
            )
            for site, null in order
        ]
        missing = [site for site in self.sites if not any(site == name for name, _ in self.streams)]
        return judge(findings, self.alpha, self.tolerance, self.offsets, missing if findings else [])

    # --- evidence ---------------------------------------------------------------------------------------------------

    def _check(self, batch: Batch) -> None:
        if batch.site not in self.sites:
            raise unknown("site", batch.site, self.sites)
        if batch.scaler != self.scaler or batch.n_classes != len(self.classes):
            raise FedCalError(
                f"{batch.site}, batch {batch.batch}: of another scaler: use the one that the monitor was begun with"
            )
        if batch.tolerance != self.tolerance:
            raise FedCalError(
                f"{batch.site}, batch {batch.batch}: tolerance {batch.tolerance:g}, and the monitor has {self.tolerance:g}: "
                "sum it up with that"
            )

    def _refer(self, batch: Batch) -> None:
        if batch.site in self.references:
            raise FedCalError(f"{batch.site} has a reference already: start a new monitor to compare with another one")
        if any((batch.site, null) in self.streams for null in (Null.LABELS, Null.PREDICTIONS)):
            raise FedCalError(
                f"{batch.site}: its reference comes after its first batch: start a new monitor with it first"
            )
        self.references[batch.site] = batch

    def _stream(self, site: str, null: Null) -> Stream:
        return self.streams.setdefault((site, null), Stream.new(null, len(self.classes)))

    def _bounds(self, batch: Batch, null: Null) -> tuple[Tensor, Tensor] | None:
        """The class shares that count as unchanged: by the site's reference, else by its prior shift; None without either."""
        if (reference := self.references.get(batch.site)) is not None:
            of = reference.counts if null is Null.LABELS else reference.expected
            level = self.alpha * BOUNDS / (2 * len(self.sites))  # labels and predictions
            return share_bounds(of / of.sum(), self.tolerance, reference.n, level)
        return share_bounds(batch.assumed, self.tolerance) if len(batch.assumed) else None

    def _check_bounds(self, batch: Batch, null: Null) -> tuple[Tensor, Tensor] | None:
        """The same, and they must not change meanwhile."""
        bounds, stream = self._bounds(batch, null), self.streams.get((batch.site, null))
        known, reference = stream.bounds if stream else bounds, self.references.get(batch.site)
        assumed = reference.assumed if reference else batch.assumed
        moved = len(assumed) != len(batch.assumed) or not torch.allclose(assumed, batch.assumed)
        if moved or (known is None) != (bounds is None) or (known and bounds and not torch.equal(known[0], bounds[0])):
            raise FedCalError(f"{batch.site}, batch {batch.batch}: its offset has changed: start a new monitor")
        return bounds

    # --- files ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the monitor to a file, atomically; only this user may read it.

        Args:
            path: the file.
        """
        tensors: dict[str, Tensor] = {}
        for number, stream in enumerate(self.streams.values()):
            tensors |= nest(f"stream-{number}", stream.to_tensors())
        for site, one in self.references.items():
            where = f"reference-{self.sites.index(site)}"
            assumed = {"assumed": one.assumed} if len(one.assumed) else {}
            tensors |= nest(where, {"counts": one.counts, "expected": one.expected, **assumed})
        about = {
            "kind": KIND,
            "schema": SCHEMA,
            "alpha": self.alpha,
            "tolerance": self.tolerance,
            "scaler": self.scaler,
            "classes": self.classes,
            "sites": self.sites,
            "offsets": self.offsets,
            "taken": {site: [[name, *of] for name, of in known.items()] for site, known in self.taken.items()},
            "streams": [[site, str(null), one.samples, one.names] for (site, null), one in self.streams.items()],
        }
        write_tensors(Path(path), tensors, about, private=True)

    @classmethod
    def load(cls, path: str | Path) -> Monitor:
        """Read a monitor that `save` wrote.

        Args:
            path: the file.

        Returns:
            The monitor as it was saved.

        Raises:
            FedCalError: the file is missing, damaged, or not a monitor's.
        """
        arrays, about = read_tensors(Path(path))
        tensors = tensors_of(arrays)
        if about.get("kind") != KIND or about.get("schema") != SCHEMA:
            raise FedCalError(f"{path} is not a monitor's: begin one with `fedcal monitor start`")
        try:
            return cls._of(tensors, about)
        except FedCalError as error:
            raise FedCalError(f"{path} is damaged ({error}): take a copy of it, or start a new monitor") from None

    @classmethod
    def _of(cls, tensors: dict[str, Tensor], about: dict[str, Any]) -> Monitor:
        """The monitor that a file holds, all of it checked."""
        check(about, _HEADER, "its header")
        check_finite({name: value for name, value in tensors.items() if not name.endswith("/started")})
        found = cls.__new__(cls)
        found.sites = [check_client_name(name) for name in about["sites"]]
        found.alpha, found.tolerance, found.scaler = about["alpha"], float(about["tolerance"]), about["scaler"]
        found.classes, found.offsets = about["classes"], about["offsets"]
        if not found.sites or len(set(found.sites)) < len(found.sites) or len(found.classes) < 2:
            raise FedCalError("its sites or classes are missing")
        found.streams, found.references = {}, {}
        found.taken = {site: {name: (a, b, c) for name, a, b, c in of} for site, of in about["taken"].items()}
        if not set(found.taken) <= set(found.sites):
            raise FedCalError("a batch is of no site")
        used, parts = 0, unnest_each(tensors)
        for number, (site, null, samples, names) in enumerate(about["streams"]):
            part = parts.get(f"stream-{number}", {})
            used += len(part)
            key = (site, Null(null))
            if key in found.streams or (site not in found.sites and key != (ALL, Null.CALIBRATION)):
                raise FedCalError("a stream of evidence is of no site")
            found.streams[key] = Stream.of(key[1], len(found.classes), samples, names, part)
        for number, site in enumerate(found.sites):
            if part := parts.get(f"reference-{number}", {}):
                used += len(part)
                found._restore_reference(site, part)
        if used != len(tensors):
            raise FedCalError("a tensor has no place")
        return found

    def _restore_reference(self, site: str, part: dict[str, Tensor]) -> None:
        k, taken = len(self.classes), self.taken.get(site, {})
        name = next((n for n, of in taken.items() if of[1] == About.REFERENCE), None)
        shaped = all(one.shape == (k,) for one in part.values())
        if set(part) - {"assumed"} != {"counts", "expected"} or not shaped or name is None:
            raise FedCalError(f"the reference of {site} is incomplete")
        n = taken[name][2]
        found = Batch(site, name, About.REFERENCE, n, k, self.tolerance, self.scaler, **part)
        found.check_plausible()
        self.references[site] = found
