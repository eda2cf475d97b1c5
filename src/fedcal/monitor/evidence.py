"""An e-process: evidence against a null hypothesis that stays valid however long and however often one looks.

A batch of samples gives each alternative a log-likelihood ratio whose exponential has mean at most 1 under the null. A drift
may begin with any batch, so each alternative starts again with every batch: a share `cash(t-1) - cash(t)` of the wealth is
put on "the drift begins with batch t", and the rest waits. The wealth, summed over alternatives and beginnings, is a
nonnegative supermartingale that begins at 1. It ever reaches 1/α with a probability of at most α (Ville's inequality): over
any horizon, at any batch sizes, and with power after a calm year, since what waits is not lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def cash(t: int) -> float:
    """The share of the wealth that still waits for a drift after `t` batches: it falls slowly, to see late drifts."""
    return 1 / (1 + math.log1p(t))


@dataclass(frozen=True)
class Evidence:
    """The wealth of one null hypothesis after some batches.

    A further first dimension of `started` holds independent streams, as the simulations have them.
    """

    log_prior: Tensor  # (A,) of the alternatives; it sums to 1
    started: Tensor  # (…, A) log of each alternative's wealth that is at stake, its prior left out
    t: int = 0  # batches so far

    @classmethod
    def new(cls, log_prior: Tensor, streams: tuple[int, ...] = ()) -> Evidence:
        """No evidence yet."""
        return cls(log_prior, torch.full((*streams, len(log_prior)), -math.inf, dtype=torch.float64))

    def add(self, log_ratio: Tensor) -> Evidence:
        """The evidence after one more batch.

        Args:
            log_ratio: (…, A) the batch's log-likelihood ratio of each alternative.
        """
        stake = torch.tensor(math.log(cash(self.t) - cash(self.t + 1)), dtype=torch.float64)
        return replace(self, started=torch.logaddexp(self.started, stake) + log_ratio, t=self.t + 1)

    @property
    def log_value(self) -> Tensor:
        """Log of the e-value: 0 is no evidence, and log 20 or more is had in at most 5 % of all streams without drift."""
        waiting = torch.tensor(math.log(cash(self.t)), dtype=torch.float64)
        return (self.log_prior + torch.logaddexp(self.started, waiting)).logsumexp(-1)

    @property
    def weights(self) -> Tensor:
        """How the alternatives share what is at stake: which of them explains the drift."""
        return (self.log_prior + self.started).softmax(-1)
