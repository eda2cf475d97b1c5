"""Differential privacy of additive methods: `Privacy(epsilon=4, delta=1e-5)` is all that a user must give.

A private query (exact/private_query.py) adds up summands whose norm is bounded, whatever the samples and the server's
parameters are. Its sum is rounded to a grid, and discrete Gaussian noise is added (noise.py):

    central        by the server, to the total: the server is trusted with the sums, and nobody else need be
    local          by every client, to its own sum: nobody is trusted
    distributed    by every client, a share of it: the total of `nodes` honest clients has the central noise, and secure
                   aggregation shows nobody less than that total

Neighbouring data sets: one sample more or less, at any client (unit "sample"); all samples of one client, or none of them
(unit "client"). How many samples there are stays hidden too: replies declare none, and an empty client replies as well.
Which clients take part is taken as public.

Budget: a query that takes a share b of the budget gets noise σ = Δ / (µ √b), with Δ its bound plus what rounding adds. All
replies together are then at most as revealing as one Gaussian release of sensitivity 1 and noise 1/µ; µ is the largest for
which dp-accounting's RDP accountant says (ε, δ). The RDP of the discrete Gaussian is at most that of the Gaussian (Canonne,
Kamath, Steinke 2020). Sums of discrete Gaussians: see `Privacy.noise_of_one`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from fedcal.base.arrays import Params
from fedcal.base.checks import check_value, check_whole
from fedcal.errors import FedCalError
from fedcal.exact.private_query import VALUES, PrivateQuery
from fedcal.methods import Method
from fedcal.methods.sets import WithSets
from fedcal.protocol.noise import discrete_gaussian

STEPS = 14  # bits: the grid's spacing is 2⁻¹⁴ of a summand's bound, rounded to a power of two
FLOATING = 2.0**-20  # what floating-point sums may add to a sensitivity, relatively
MOST = 2.0**50  # standard deviation of the noise, in steps of the grid: far from the end of 64 bits
NO_NODES = "distributed noise needs nodes=…: the least number of honest nodes that take part"
LEAST = 16  # variance of a share of the noise, in steps of the grid: see `noise_of_one`


@dataclass(frozen=True)
class Privacy:
    """(ε, δ)-differential privacy for everything that clients send, or that the server releases.

    Args:
        epsilon: ε.
        delta: δ.
        unit: what is protected: one sample, or all samples of a client.
        where: who adds the noise: "central" (the server), "local" (each client, all of it) or "distributed" (each client,
            a share of it).
        clip: the norm to which a sample's row-centred logits are clipped; None: chosen with a part of the budget.
        nodes: for "distributed": the least number of honest clients that take part; None: all clients of a simulation.
        measure: the share of the budget that is used for measuring.

    Raises:
        FedCalError: a value is out of its bounds.

    Examples:
        What does ε = 4 per sample cost? The noise is different each time.

        >>> import fedcal, numpy as np
        >>> rng = np.random.default_rng(0)
        >>> z = rng.normal(size=(4000, 3))
        >>> labels = (z + rng.gumbel(size=z.shape)).argmax(1)
        >>> privacy = fedcal.Privacy(epsilon=4, delta=1e-5)
        >>> scaler = fedcal.calibrate([(3 * z[:2000], labels[:2000])], "fed-bias", privacy=privacy)
        >>> as_it_is = np.exp(3 * z[2000:]) / np.exp(3 * z[2000:]).sum(1, keepdims=True)
        >>> fedcal.nll(scaler.predict_proba(3 * z[2000:]), labels[2000:]) < fedcal.nll(as_it_is, labels[2000:])
        True
    """

    epsilon: float
    delta: float = 1e-5
    unit: Literal["sample", "client"] = "sample"
    where: Literal["central", "local", "distributed"] = "central"
    clip: float | None = None
    nodes: int | None = None
    measure: float = 0.1

    def __post_init__(self) -> None:
        rules = {"epsilon": {"above": 0}, "delta": {"above": 0, "below": 1}, "measure": {"low": 0, "below": 1}}
        for name, bounds in rules.items():
            check_value(name, getattr(self, name), float, bounds)
        if self.clip is not None:
            check_value("clip", self.clip, float, {"above": 0})
        if self.nodes is not None:
            check_whole(self.nodes, "nodes", low=1)
        for name, known in {"unit": ("sample", "client"), "where": ("central", "local", "distributed")}.items():
            if getattr(self, name) not in known:
                raise FedCalError(f"{name} must be {' or '.join(known)}, not {getattr(self, name)!r}")

    @property
    def mu(self) -> float:
        """µ: the whole budget as one Gaussian release of sensitivity 1 with noise 1/µ."""
        return math.inf if math.isinf(self.epsilon) else 1 / _noise_multiplier(self.epsilon, self.delta)

    def spent(self, share: float) -> float:
        """The ε that a share of the budget has cost."""
        if share <= 0 or math.isinf(self.epsilon):
            return 0.0 if share <= 0 else math.inf
        return min(self.epsilon, _epsilon(self.mu * math.sqrt(min(share, 1.0)), self.delta))

    def cost(self, query: PrivateQuery) -> float:
        """The share of the whole budget that a reply to this query takes."""
        return query.budget * (self.measure if query.measures else 1 - self.measure)

    def report(self, share: float) -> dict[str, Any]:
        """What results say of it."""
        return {
            "where": self.where, "unit": self.unit, "epsilon": self.spent(share), "delta": self.delta,
            "of_epsilon": self.epsilon, "nodes": self.nodes,
        }  # fmt: skip

    def check(self, method: Method) -> None:
        """Refuse a method that has no private program.

        Raises:
            FedCalError: the method has none.
        """
        if isinstance(method, WithSets):
            raise FedCalError("conformal sets have no private form: leave out alpha, or privacy")
        if not method.private:
            raise FedCalError(
                f"{method.name} has no private form: choose fedcal-plus, fed-bias or another that only adds"
            )

    def check_own(self) -> None:
        """Refuse what would add no noise, or could add none, where a client states it for itself.

        Raises:
            FedCalError: which says what to give.
        """
        if self.where == "central":
            raise FedCalError(
                "by central privacy the server adds the noise, and a client none: give the client where='local', or "
                "'distributed'"
            )
        self.check_sent()

    def check_sent(self) -> None:
        """Refuse what serves a simulation only, where messages really travel.

        Raises:
            FedCalError: which says what to give.
        """
        if math.isinf(self.epsilon):
            raise FedCalError("epsilon is infinite, which adds no noise: give a number, or leave privacy out")
        if self.where == "distributed" and self.nodes is None:
            raise FedCalError(NO_NODES)

    @property
    def shares(self) -> int:
        """How many clients' noise a total must hold."""
        return (self.nodes or 0) if self.where == "distributed" else 0

    def check_shares(self, clients: int) -> None:
        """Refuse a total that holds less noise than was promised.

        Args:
            clients: whose replies are in it.

        Raises:
            FedCalError: which says how many are needed.
        """
        if clients < self.shares:
            raise FedCalError(
                f"a total of {clients} nodes has less noise than nodes={self.shares} promises: give nodes=… as many as are "
                "surely left in every total"
            )

    # --- the mechanism ---------------------------------------------------------------------------------------------------

    def grid(self, query: PrivateQuery) -> float:
        """The spacing of the grid on which all replies to a query lie: a power of two, so that multiples are exact."""
        return 2.0 ** (math.floor(math.log2(query.bound)) - STEPS)

    def variance(self, query: PrivateQuery) -> int:
        """The noise that a total needs, in steps of the grid.

        Rounding moves each of a reply's numbers by half a step at most, so that two neighbouring sums differ by one step
        more in each.
        """
        grid, share = self.grid(query), self.cost(query)
        if math.isinf(self.epsilon):
            return 0
        if not 0 < share <= 1:
            raise FedCalError(f"the server asks for {share:g} of the privacy budget: do not reply to this server")
        sensitivity = query.bound * (1 + FLOATING) + grid * math.sqrt(query.size)
        steps = sensitivity / grid / self.mu
        if steps > MOST * math.sqrt(share):
            raise FedCalError(
                f"{share:g} of ε = {self.epsilon:g} needs more noise than numbers can hold: give a larger ε"
            )
        return math.ceil(steps**2 / share)

    def noise_of_one(self, query: PrivateQuery) -> int:
        """The variance of what one client adds.

        A sum of m discrete Gaussians of variance v is closer to one of variance m v than 10 Σ exp(−2π² v k / (k + 1)), k from
        1 to m − 1, in max-divergence (Kairouz, Liu, Steinke 2021, on sums of discrete Gaussians). With v ≥ LEAST that is
        below m · 10⁻⁶⁷: its part in ε vanishes in float64.
        """
        if self.where == "central":
            return 0
        if self.where == "local":
            return self.variance(query)
        if self.nodes is None:
            raise FedCalError(NO_NODES)
        return max(-(-self.variance(query) // self.nodes), LEAST if self.mu < math.inf else 0)

    def at_client(self, query: PrivateQuery, sums: Params, clients: int = 1) -> Params:
        """Round a client's sums to the grid, and add the client's noise.

        Args:
            query: what was asked.
            sums: the query's reply.
            clients: that reply as one, where many small ones are simulated together.
        """
        steps = np.rint(sums[VALUES] / self.grid(query)).astype(np.int64)
        return self._on_grid(query, steps + discrete_gaussian(clients * self.noise_of_one(query), query.size))

    def at_server(self, query: PrivateQuery, total: Params, clients: int) -> Params:
        """Add the server's noise to a total, and say how large the noise on each of its numbers is.

        Args:
            query: what was asked.
            total: the sum of the clients' replies.
            clients: how many replied.
        """
        self.check_shares(clients)
        steps = np.rint(total[VALUES] / self.grid(query)).astype(np.int64)
        variance = clients * self.noise_of_one(query)
        if self.where == "central":
            variance = self.variance(query)
            steps = steps + discrete_gaussian(variance, query.size)
        return self._on_grid(query, steps) | {"noise": np.array(math.sqrt(variance) * self.grid(query))}

    def _on_grid(self, query: PrivateQuery, steps: Any) -> Params:
        return {VALUES: steps * self.grid(query)}


def check_privacy(value: Any) -> Privacy | None:
    """What a user gives as `privacy`, if it is a `Privacy` or None."""
    if value is not None and not isinstance(value, Privacy):
        raise FedCalError(f"privacy must be a Privacy, not {value!r}: give fedcal.Privacy(epsilon=4), for example")
    return value


@cache
def _noise_multiplier(epsilon: float, delta: float) -> float:
    """The least noise of one Gaussian release of sensitivity 1 that is (ε, δ)-private."""
    dp, rdp = _accountants()
    try:
        return float(dp.calibrate_dp_mechanism(rdp.RdpAccountant, dp.GaussianDpEvent, epsilon, delta))
    except (ValueError, RuntimeError, dp.mechanism_calibration.NoBracketIntervalFoundError):
        raise FedCalError(
            f"no noise is known to give ε = {epsilon:g} with δ = {delta:g}: give a larger ε or δ"
        ) from None


@cache
def _epsilon(mu: float, delta: float) -> float:
    dp, rdp = _accountants()
    return float(rdp.RdpAccountant().compose(dp.GaussianDpEvent(1 / mu)).get_epsilon(delta))


def _accountants() -> tuple[Any, Any]:
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError:
        raise FedCalError("privacy needs dp-accounting: pip install 'fedcal[privacy]'") from None
    return dp_accounting, rdp
