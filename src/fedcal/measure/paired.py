"""By how much the ECEs of two methods differ on the same samples: joint sums that add with `+`.

Two methods measured on the same samples share most of their noise, so that an overlap of their intervals says little. A
view is one method's probabilities. For every pair of bins of any two views, a client sums up the products of their errors
e = confidence − correct. The sum over clients gives the covariance of all bins' sums, and so the variance of a difference

    T_a − T_b,    T_v = Σ_bins |S_v| / n

The bias of T_a (see `interval.py`) can only make the difference too large, that of T_b only too small; each is bounded by
its largest plausible value. Nor can the difference lie beyond what the intervals of the two ECEs allow.
`paper/studies/ece_difference.py` measures coverage and power.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedcal.base.arrays import Array, Params, logsumexp
from fedcal.errors import FedCalError, check_known
from fedcal.measure.interval import SHRINK, TINY, critical, ece_interval, excess, largest_bias
from fedcal.measure.metrics import rank_of_label
from fedcal.measure.reliability import equal_width, find_bins

PARTS = ("errors", "confidence", "joint", "products")  # of the sums as arrays
MOST_BINS = 1024  # of all views together: with more, their joint sums would take too much memory
Top = tuple[np.ndarray, np.ndarray]  # each sample's confidence, and whether its top class is the label
Difference = tuple[float, float, float]  # measured, low, high


@dataclass(frozen=True, eq=False)
class Paired:
    """Sums over the samples of several views. `a + b` holds the sums of both sets of samples."""

    views: tuple[str, ...]
    n: int
    errors: np.ndarray  # (V, B) Σ e
    confidence: np.ndarray  # (V, B) Σ confidence
    joint: np.ndarray  # (V, B, V, B) samples that one view puts into one bin, and another view into another
    products: np.ndarray  # (V, B, V, B) Σ e · e' of those samples

    @classmethod
    def of(cls, views: Mapping[str, Top], n_bins: int = 15) -> Paired:
        """Sum up samples.

        Args:
            views: by view, each sample's confidence and whether its top class is the label; the same samples in the same
                order.
            n_bins: equal-width confidence bins.

        Raises:
            FedCalError: the views differ in length, or there are none.
        """
        if not views or len({len(part) for top in views.values() for part in top}) > 1:
            raise FedCalError("views to compare must all have the same samples, and at least one is needed")
        edges = equal_width(n_bins)
        bins = [find_bins(np.clip(confidence, 0.0, 1.0), edges) for confidence, _ in views.values()]
        error = [confidence - correct for confidence, correct in views.values()]
        joint = np.zeros((len(bins), n_bins, len(bins), n_bins), np.int64)
        products = np.zeros(joint.shape)
        for a in range(len(bins)):
            for b in range(a, len(bins)):
                cell = bins[a] * n_bins + bins[b]
                count = np.bincount(cell, None, n_bins**2).reshape(n_bins, n_bins)
                product = np.bincount(cell, error[a] * error[b], n_bins**2).reshape(n_bins, n_bins)
                joint[a, :, b], products[a, :, b] = count, product
                joint[b, :, a], products[b, :, a] = count.T, product.T
        sums = np.stack([np.bincount(i, e, n_bins).astype(float) for i, e in zip(bins, error, strict=True)])
        confidence = [np.bincount(i, c, n_bins).astype(float) for i, (c, _) in zip(bins, views.values(), strict=True)]
        return cls(tuple(views), len(error[0]), sums, np.stack(confidence), joint, products)

    def __add__(self, other: Paired) -> Paired:
        if (self.views, self.joint.shape) != (other.views, other.joint.shape):
            raise FedCalError(f"sums of the views {self.views} and {other.views} do not add: same views, same bins")
        parts = ((mine + yours) for mine, yours in zip(self._sums(), other._sums(), strict=True))
        return Paired(self.views, self.n + other.n, *parts)

    def renamed(self, names: Mapping[str, str]) -> Paired:
        """Keep these views only, under new names."""
        places = [self._place(name) for name in names]
        joint, products = (part[places][:, :, places] for part in (self.joint, self.products))
        return Paired(tuple(names.values()), self.n, self.errors[places], self.confidence[places], joint, products)

    def _sums(self) -> tuple[np.ndarray, ...]:
        return self.errors, self.confidence, self.joint, self.products

    # --- on the wire -------------------------------------------------------------------------------------------

    def to_arrays(self) -> Params:
        """A flat dict of arrays, for a message. `from_arrays` makes exactly these sums of it."""
        return dict(zip(PARTS, self._sums(), strict=True))

    @classmethod
    def from_arrays(cls, views: tuple[str, ...], arrays: Mapping[str, Array]) -> Paired:
        """Read what `to_arrays` gave.

        Args:
            views: the names of the views, in order.
            arrays: the sums.

        Raises:
            FedCalError: no samples can give these sums.
        """
        first = arrays.get("errors")
        bins = first.shape[-1] if first is not None and first.ndim else 0
        for name in PARTS:
            kind = np.int64 if name == "joint" else np.float64
            shape = (len(views), bins) * (1 if name in ("errors", "confidence") else 2)
            if name not in arrays or arrays[name].dtype != kind or arrays[name].shape != shape:
                raise FedCalError(f"not paired sums: {name!r} is missing, or of another type or shape")
        errors, confidence, joint, products = (arrays[name] for name in PARTS)
        n = int(joint[0, :, 0].sum())
        counts = np.stack([np.diag(joint[v, :, v]) for v in range(len(views))])
        possible = (
            (joint >= 0).all()
            and (joint.sum((1, 3)) == n).all()
            and (np.abs(products) <= joint * (1 + 1e-9)).all()  # an error is at most 1, and so is a product of two
            and (np.abs(errors) <= counts * (1 + 1e-9)).all()
            and ((confidence >= 0) & (confidence <= counts * (1 + 1e-9))).all()
        )
        if not possible:  # also where something is not a number
            raise FedCalError("not paired sums: no samples can give them")
        return cls(views, n, errors, confidence, joint, products)

    # --- reading -----------------------------------------------------------------------------------------------

    def difference(self, a: str, b: str, level: float = 0.95) -> Difference:
        """The ECE of view `a` minus that of view `b`, and a confidence interval of the population's difference.

        Args:
            a: the name of a view.
            b: the name of the view to subtract.
            level: how often the interval contains the population's difference, at least.

        Returns:
            The measured difference, and the lower and the upper end of the interval.
        """
        if not self.n:
            return float("nan"), float("nan"), float("nan")
        both = [self._place(a), self._place(b)]
        if self._alike(*both):
            return 0.0, 0.0, 0.0
        z, n_bins = critical(level), self.errors.shape[1]
        s, size = self.errors[both].ravel(), 2 * n_bins
        products, joint = (t[both][:, :, both].reshape(size, size) for t in (self.products, self.joint))
        # As if z² more samples were predicted the other way: else there is no noise where no error was seen.
        covariance = products + z * z / self.n * joint - np.outer(s, s) / self.n
        deviation = np.sqrt(np.maximum(np.diag(covariance), TINY))
        x = np.abs(s) / deviation
        # Each view's gaps may be a standard error smaller or larger: that decides how much of their noise cancels.
        signs = np.sign(s) * np.repeat([1.0, -1.0], n_bins)
        plausible = [x + np.repeat(shifts, n_bins) for shifts in product((-SHRINK, SHRINK), repeat=2)]
        variance = max(_variance(covariance, signs, np.clip(at, -40.0, 40.0)) for at in plausible)
        noise = z * np.sqrt(variance)
        bias_a, bias_b = (deviation * largest_bias(x)).reshape(2, n_bins).sum(1)
        value = float(np.abs(s[:n_bins]).sum() - np.abs(s[n_bins:]).sum()) / self.n
        low, high = value - (bias_a + noise) / self.n, value + (bias_b + noise) / self.n
        (low_a, high_a), (low_b, high_b) = (self._interval(view, level) for view in both)  # they bound it as well
        return value, max(float(low), low_a - high_b), min(float(high), high_a - low_b)

    def _interval(self, view: int, level: float) -> tuple[float, float]:
        """Of that view's own ECE."""
        count, confidence = np.diag(self.joint[view, :, view]), self.confidence[view]
        correct = np.maximum(confidence - self.errors[view], 0.0)
        return ece_interval(count, correct, confidence, equal_width(len(count)), level)

    def _alike(self, a: int, b: int) -> bool:
        """Whether two views give every sample the same confidence."""
        joint, products = self.joint, self.products
        return bool(
            (joint[a, :, a] == joint[a, :, b]).all()
            and np.allclose(products[a, :, a], products[a, :, b], rtol=1e-12, atol=0)
            and np.allclose(products[b, :, b], products[a, :, b], rtol=1e-12, atol=0)
        )

    def _place(self, name: str) -> int:
        check_known("view", name, self.views)
        return self.views.index(name)


def _variance(covariance: np.ndarray, signs: np.ndarray, x: np.ndarray) -> float:
    """Of Σ ± |S|, if the gaps are x standard errors wide (negative: of the other sign than measured).

    |S| follows S as far as its sign is known; what is left of its variance is its own.
    """
    from scipy.special import ndtr

    slope, rest = 2 * ndtr(x) - 1, excess(np.abs(x))
    own = 1 - rest * (rest + 2 * np.abs(x)) - slope**2
    weights = signs * slope
    return max(0.0, float(weights @ covariance @ weights + np.diag(covariance) @ own))


def comparable(n_views: int, n_bins: int) -> bool:
    """Whether so many views can be compared: at least two, and with few enough bins in all."""
    return n_views > 1 and n_views * n_bins <= MOST_BINS


def top_of(logits: Array, labels: Array) -> Top:
    """Each sample's confidence, and whether its top class (the first on a tie) is the label, from float64 logits."""
    if not len(labels):
        return np.empty(0), np.empty(0, bool)
    confidence = np.exp(logits.max(1) - logsumexp(logits, 1))
    return confidence, rank_of_label(logits, labels) == 0
