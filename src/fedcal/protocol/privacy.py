"""Differential privacy for additive methods: what leaves is clipped and noised here, for Flower's wrappers do not touch it.

    unit "sample"    every sample's summand is clipped to norm C: one sample more or less changes a sum by C at most
    unit "client"    the client's whole sum is clipped to norm C: the same for one client more or less

Central: clients clip, the server adds N(0, (σ C)²) to every coordinate of each round's sum, and must be trusted with the
sums. Local: each client adds that noise itself, and nobody need be trusted. σ is the least that keeps `rounds` releases
within (ε, δ), by Google's dp-accounting (RDP of the Gaussian mechanism). The number of samples that a client says it has is
not noised: it is taken as public.

Noise comes from the operating system's entropy, never from a run's seed: who knows the seed could take it off again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor

from fedcal.base.checks import check_value, check_whole
from fedcal.base.logits import Params
from fedcal.base.query import Query
from fedcal.errors import FedCalError
from fedcal.exact.prepared import Prepared
from fedcal.methods import Method, Update
from fedcal.methods.fit import Total


@dataclass(frozen=True)
class Privacy:
    """(ε, δ) for at most `rounds` rounds of sums clipped to `clip`."""

    epsilon: float
    delta: float = 1e-5
    clip: float = 5.0
    rounds: int = 10
    unit: Literal["sample", "client"] = "sample"

    def __post_init__(self) -> None:
        for name, rules in {"epsilon": {"above": 0}, "delta": {"above": 0, "below": 1}, "clip": {"above": 0}}.items():
            check_value(name, getattr(self, name), float, rules)
        check_whole(self.rounds, "rounds", low=1)
        if self.unit not in ("sample", "client"):
            raise FedCalError(f"unit must be sample or client, not {self.unit!r}")

    @cached_property
    def noise(self) -> float:
        """σ, in units of `clip`."""
        if not math.isfinite(self.epsilon):
            return 0.0
        dp, rdp = _accountants()
        return dp.calibrate_dp_mechanism(rdp.RdpAccountant, self._releases(), self.epsilon, self.delta)

    def _releases(self) -> Any:
        dp, _ = _accountants()
        return lambda sigma: dp.SelfComposedDpEvent(dp.GaussianDpEvent(sigma), self.rounds)

    def spent(self, releases: int) -> float:
        """The ε that so many rounds have cost."""
        if not releases:
            return 0.0
        if not self.noise:
            return math.inf
        dp, rdp = _accountants()
        accountant = rdp.RdpAccountant()
        accountant.compose(dp.GaussianDpEvent(self.noise), releases)
        return float(accountant.get_epsilon(self.delta))

    def report(self, where: str, releases: int) -> dict[str, Any]:
        """What results say of it."""
        return {
            "where": where, "unit": self.unit, "epsilon": self.spent(releases), "delta": self.delta, "clip": self.clip,
            "noise": self.noise, "releases": releases,
        }  # fmt: skip

    def check(self, method: Method) -> None:
        """Whether this method's updates can be made private so."""
        if not method.additive:
            raise FedCalError("privacy is for additive methods (fed-ts, fed-bias, …): `fedcal methods` tells which")
        if self.unit == "sample" and not method.per_sample:
            raise FedCalError("this method sends likelihoods of whole clients: choose unit='client', or fed-bias")

    # --- at a client ---------------------------------------------------------------------------------------------------

    def clipping(self) -> Privacy:
        """Return the same clipping without noise: what clients of a server with central privacy do."""
        return Privacy(math.inf, clip=self.clip, unit=self.unit)

    def at_client(self, method: Method, query: Query, samples: Prepared, memory: Params, update: Update) -> Params:
        """Return the update's content, clipped, and noised where this is the client's own policy."""
        self.check(method)
        if self.unit == "client":
            return self.noised(clipped(update.content, self.clip))
        whole = Total()
        for z, y in zip(samples.logits.double().split(1), samples.labels.split(1), strict=True):
            alone = Prepared(partial(tuple, (z, y)))
            whole.add(clipped(method.reply(query, alone, memory).content, self.clip))
        return self.noised(whole.sums())

    # --- the noise -----------------------------------------------------------------------------------------------------

    def noised(self, sums: Params) -> Params:
        """Gaussian noise on every coordinate."""
        if not self.noise:
            return sums
        entropy = torch.Generator()
        entropy.seed()
        scale = self.noise * self.clip
        return {name: value + scale * _normal(value, entropy) for name, value in sums.items()}


def clipped(content: Params, clip: float) -> Params:
    """All tensors together scaled down to that norm, if they are longer."""
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in content.values()))
    return content if norm <= clip else {name: value * (clip / norm) for name, value in content.items()}


def _normal(like: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(like.shape, dtype=torch.float64, generator=rng).to(like.dtype)


def _accountants() -> tuple[Any, Any]:
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError:
        raise FedCalError("privacy needs dp-accounting: pip install 'fedcal[flower]'") from None
    return dp_accounting, rdp
