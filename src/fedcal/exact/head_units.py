"""Units in which a last layer is fitted: standard features, the curvature of the loss in them, the prior.

The server works in standard units: each feature less its mean, divided by its spread. That is a linear change of the
parameters, so that clients need not know of it, and one ridge serves features of any size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedcal.base.arrays import Array
from fedcal.exact.head import n_head_parameters
from fedcal.exact.linear import Curvature, between_classes, unpack_symmetric
from fedcal.exact.solve import Inverse, Prior, Sums
from fedcal.exact.stages import Clients

FULL_MAX_CLASSES = 20  # up to which Hessians hold what couples classes
HESSIAN = 100_000  # most numbers of a Hessian that is sent; they limit its directions
BLOCKS = 250_000  # the same where each class is by itself
OWN_SPREAD = 0.5  # how much a feature's unit follows its own variance; the rest is the mean variance of all features


def head_curvature_of(k: int) -> Curvature:
    """What of a head's Hessian is worth sending."""
    return "full" if k <= FULL_MAX_CLASSES else "blocks"


def n_directions(k: int, d: int) -> int:
    """In how many directions of the features, and the intercept, a Hessian is asked for."""
    classes, numbers = (k * (k - 1) // 2, HESSIAN) if k <= FULL_MAX_CLASSES else (k, BLOCKS)
    return max(2, min(d + 1, int((2 * numbers / classes) ** 0.5)))


@dataclass(frozen=True)
class Units:
    """Features in standard form: centred, divided by their spread, and turned to the directions in which they vary most.

    The intercept comes first. Directions in which samples vary less come later.
    """

    change: Array  # (d + 1, d + 1): standard inputs, given raw ones, which end in a 1
    variances: Array  # of the standard inputs; of the intercept 1
    k: int
    held_out: float  # samples to calibrate on
    trained: float  # training samples

    @classmethod
    def of(cls, sums: Sums, clients: Clients) -> Units:
        """Read the sums of `HeadStart`."""
        trained = float(sums["trained"].sum())
        moment = unpack_symmetric(sums["moment"]) / (clients.n + trained)
        mean = moment[:-1, -1]
        covariance = moment[:-1, :-1] - np.outer(mean, mean)
        variance = np.maximum(covariance.diagonal(), 0)
        square = OWN_SPREAD * variance + (1 - OWN_SPREAD) * variance.mean()
        rounding = 1e-12 * moment.diagonal()[:-1].max()  # what does not vary more tells nothing
        spread = np.sqrt(np.maximum(np.maximum(square, rounding), 1e-300))
        values, vectors = np.linalg.eigh(covariance / spread / spread[:, None])
        size = len(moment)
        change = np.zeros((size, size))
        change[0, -1] = 1.0
        change[1:, :-1] = vectors[:, ::-1].T / spread
        change[1:, -1] = -change[1:, :-1] @ mean
        variances = np.append(1.0, np.maximum(values[::-1], 0))
        return cls(change, variances, clients.k, clients.n, trained)

    @property
    def d(self) -> int:
        return len(self.change) - 1

    @property
    def basis(self) -> Array:
        """The directions in which Hessians are asked for."""
        return self.change[: n_directions(self.k, self.d)]

    def raw(self, t: Array) -> Array:
        """Heads as clients know them, (…, P), given their standard parameters."""
        return self._turned(t, self.change)

    def standard(self, gradient: Array) -> Array:
        """Gradients by standard parameters, given those by raw ones."""
        return self._turned(gradient, self.change.T)

    def _turned(self, t: Array, by: Array) -> Array:
        rows = t[..., 1:].reshape(*t.shape[:-1], self.k, self.d + 1) @ by
        return np.concatenate([t[..., :1], rows.reshape(*t.shape[:-1], -1)], -1)


# --- curvature --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bend:
    """The curvature of a head's summed loss in standard units: in the directions asked for, and roughly in the others."""

    inside: Array  # (1 + K r, 1 + K r), or (K, r, r) where each class is by itself
    scale: Array
    outside: Array  # (K, d + 1 − r): the diagonal
    units: Units

    @classmethod
    def of(cls, sums: Sums, units: Units) -> Bend:
        """Read the sums of `HeadSums`."""
        hess, k, r = unpack_symmetric(sums["hess"]), units.k, len(units.basis)
        outside = sums["mass"][:, None] * units.variances[r:]
        if head_curvature_of(k) == "blocks":
            return cls(hess, sums["scale"], outside, units)
        inside = np.empty((1 + k * r, 1 + k * r))
        inside[1:, 1:] = between_classes(hess).transpose(0, 2, 1, 3).reshape(k * r, k * r)
        inside[0, 0] = sums["scale"]
        inside[0, 1:] = inside[1:, 0] = sums["cross"].ravel()
        return cls(inside, sums["scale"], outside, units)

    def inverse(self, prior: Prior, share: float = 1.0) -> Inverse:
        """The inverse of that share of it, plus the prior's."""
        k, r = self.units.k, len(self.units.basis)
        precision = prior.precision[1:].reshape(k, -1)
        of_scale = share * self.scale + prior.precision[0]
        below = np.maximum(share * self.outside + precision[:, r:], 1e-300)
        blocks = self.inside.ndim == 3
        if blocks:
            inside = share * self.inside + precision[:, :r, None] * np.eye(r)
        else:
            own = np.append(prior.precision[:1], precision[:, :r])
            inside = share * self.inside + np.diag(own)
        unit = np.sqrt(np.maximum(inside.diagonal(axis1=-2, axis2=-1), 1e-300))
        scaled = inside / unit[..., None] / unit[..., None, :] + 1e-13 * np.eye(inside.shape[-1])

        def solve(gradient: Array) -> Array:
            rows = gradient[1:].reshape(k, -1)
            first = rows[:, :r] if blocks else np.append(gradient[:1], rows[:, :r])
            found = np.linalg.solve(scaled, (first / unit)[..., None])[..., 0] / unit
            scale = gradient[:1] / of_scale if blocks else found[:1]
            lead = found if blocks else found[1:].reshape(k, r)
            return np.append(scale, np.concatenate([lead, rows[:, r:] / below], 1))

        return solve


# --- prior ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadPrior(Prior):
    """A ridge alone: ½ Σ precision · (t − identity)². Unlike a temperature, b may come to 0 or below: V is there too."""

    def reach(self, t: Array, move: Array) -> float:
        return 1.0

    def __call__(self, t: Array) -> tuple[float, Array]:
        off = t - self.identity
        return 0.5 * float(self.precision @ off**2), self.precision * off

    def turned(self, t: Array, move: Array) -> Array:
        return self.precision * move


def prior_of_head(ridge: float, units: Units, clients: Clients) -> HeadPrior:
    """Towards the model's own head at about the right temperature.

    A ridge on V, at most a precision of 1 on the intercepts, and on b what one sample is worth.
    """
    row = np.full(units.d + 1, ridge)
    row[0] = min(ridge, 1.0)
    return HeadPrior(own_head(units, clients), np.append(clients.begin**-2, np.tile(row, units.k)))


def own_head(units: Units, clients: Clients) -> Array:
    """The model's own head at about the right temperature."""
    t = np.zeros(n_head_parameters(units.k, units.d))
    t[0] = clients.begin
    return t
