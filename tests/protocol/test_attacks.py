"""Attacks of a malicious server on one client, written as attacks: they succeed without a policy, and fail against it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcal import FedCalError
from fedcal.base.query import Query
from fedcal.exact.linear import centre
from fedcal.exact.prepared import ALL
from fedcal.exact.queries import LinearSums, Points, Slope, Start
from fedcal.methods import get_method
from fedcal.methods.fit import FitScaler
from fedcal.protocol import Client, Policy, Reply, Request, Scaler

K, N = 3, 40
FEDERATION = "0" * 32


def samples(n: int = N, k: int = K, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    return torch.from_numpy(3 * rng.normal(size=(n, k)) + 2 * np.eye(k)[y]), torch.from_numpy(y)


class Attacker:
    """A server that asks one client whatever it likes, and counts its questions."""

    def __init__(self, client: Client, check: bool) -> None:
        self.client, self.check, self.questions = client, check, 0

    def ask(self, query: Query) -> Reply:
        self.questions += 1
        return self.client.reply(Request(FEDERATION, self.questions, query), check=self.check)


# --- 1: the samples themselves ----------------------------------------------------------------------------------------


def test_attack_1_a_request_for_every_logit_and_label() -> None:
    """A header that says `val-ts`, and a client that takes its method from the server."""
    logits, labels = samples()
    query = FitScaler({"temperature": torch.ones((), dtype=torch.float64)}, 0)
    stolen = Attacker(Client("val-ts", logits, labels), check=True).ask(query).content
    assert torch.equal(stolen["logits"], logits) and torch.equal(stolen["labels"], labels)

    with pytest.raises(FedCalError, match=r"val-ts sends every logit and label: refused, unless .* --allow-pooling"):
        Attacker(Client("val-ts", logits, labels, policy=Policy()), check=True).ask(query)
    allowed = Client("val-ts", logits, labels, policy=Policy(allow_pooling=True))
    assert torch.equal(Attacker(allowed, check=True).ask(query).content["logits"], logits)


# --- 2: a knife -------------------------------------------------------------------------------------------------------


class Knife:
    """Cut the samples by a plane, steeper and steeper: a gradient then sums up those on one side of it.

    The difference between two planes that have one sample between them is that sample's logits.
    """

    def __init__(self, gradient: Callable[[Tensor], Tensor], sharpness: float, limit: int) -> None:
        self.gradient, self.sharpness, self.left, self.found = gradient, sharpness, limit, list[Tensor]()

    def beyond(self, where: float) -> Tensor:
        """The sum of (logits, 1) of all samples whose first logit is above `where`, and a constant."""
        if self.left < 1:
            raise StopIteration
        self.left -= 1
        w = torch.zeros(K, K + 1, dtype=torch.float64)
        w[0, 0], w[0, K], w[2, K] = self.sharpness, -self.sharpness * where, -1e3
        return self.gradient(w.flatten()).view(K, K + 1)[0]

    def run(self, low: float, high: float) -> list[Tensor]:
        """Halve the stretch until there is one sample in each part, or the questions are used up."""
        with contextlib.suppress(StopIteration):
            self._cut(low, self.beyond(low), high, self.beyond(high), 40)
        return self.found

    def _cut(self, low: float, above_low: Tensor, high: float, above_high: Tensor, depth: int) -> None:
        within = above_low - above_high
        count = float(within[K])
        if count < 0.5 or not depth:
            return
        if abs(count - 1) < 1e-9:
            self.found.append(within[:K])
            return
        middle = (low + high) / 2
        above = self.beyond(middle)
        self._cut(low, above_low, middle, above, depth - 1)
        self._cut(middle, above, high, above_high, depth - 1)


def gradient_of(attacker: Attacker) -> Callable[[Tensor], Tensor]:
    return lambda t: attacker.ask(LinearSums((Points("matrix", ALL, "none", t[None]),))).content["0/grad"][0]


def stolen(found: list[Tensor], logits: Tensor) -> int:
    """How many of the samples were found, to nine digits."""
    truth = centre(logits)
    return len(
        {int((truth - one).abs().sum(1).argmin()) for one in found if float((truth - one).abs().amax(1).min()) < 1e-9}
    )


def test_attack_2_gradients_at_parameters_of_the_servers_choice() -> None:
    """Labelled `fed-ts`, which asks for two numbers: every sample's logits in about three questions each."""
    logits, labels = samples()
    free = Attacker(Client("fed-ts", logits, labels), check=False)  # a client that does not look at what it is asked
    found = Knife(gradient_of(free), 1e7, 1000).run(-15, 15)
    assert stolen(found, logits) == N and free.questions < 12 * N

    guarded = Attacker(Client("fed-ts", logits, labels, policy=Policy()), check=True)
    with pytest.raises(FedCalError, match="asks for LinearSums, which fed-ts never does: do not reply"):
        Knife(gradient_of(guarded), 1e7, 1000).run(-15, 15)
    for b in (1e7, 1e3, 1e-3):  # nor at temperatures that no fit comes to
        with pytest.raises(FedCalError, match="which no fit comes to: do not reply"):
            guarded.ask(Slope(b))


def test_attack_2_within_the_stages() -> None:
    """What remains, where the method is one of matrices: as many questions as four beginnings have, and no sharper knife."""
    logits, labels = samples(200)
    client = Client("fed-matrix", logits, labels, policy=Policy())
    server = Attacker(client, check=True)
    with pytest.raises(FedCalError, match="which no fit comes to"):
        Knife(gradient_of(server), 1e7, 1000).run(-15, 15)
    server.questions = 0
    knife = Knife(gradient_of(server), 3e3, 1000)
    with pytest.raises(FedCalError, match="more often than it needs"):
        knife.run(-3.3, 3.3)
    assert server.questions == 241 and stolen(knife.found, logits) <= 30  # of 200; without a policy all of them
    with pytest.raises(FedCalError, match="more often than it needs"):
        server.ask(Start())


def test_attack_2_differences_between_folds() -> None:
    """All samples less those outside a fold: without a least number, a client of five shows each of them."""
    logits, labels = samples(9)
    client = Client("fedcal-plus", logits, labels, policy=Policy())
    for fold in range(5):
        one = torch.ones(1, 1, dtype=torch.float64)
        points = tuple(Points("temperature", outside, "full", one) for outside in (ALL, fold))
        sums = client.method.reply(LinearSums(points), client.samples, {}).content
        inside, whole = float((sums["0/loss"] - sums["1/loss"]).abs()), float(sums["0/loss"])
        assert inside < 1e-9 or inside == pytest.approx(whole)  # the fold holds none of the nine, or all


def test_attack_2_a_client_of_few_samples_says_that_it_has_none() -> None:
    for n, replies in ((4, False), (5, True)):
        reply = Attacker(Client("fed-bias", *samples(n), policy=Policy()), check=True).ask(Start())
        assert (reply.n, bool(reply.content)) == ((n, True) if replies else (0, False))
    many = Policy(min_count=50)
    assert Attacker(Client("fed-bias", *samples(), policy=many), check=True).ask(Start()).n == 0


# --- 3: scalers to measure --------------------------------------------------------------------------------------------


def test_attack_3_scalers_of_the_servers_choice_to_measure() -> None:
    """One scaler of a federation is measured, as often as it is asked for; a second one is not."""
    method = get_method("fed-ts")
    free, guarded = Client(method, *samples()), Client(method, *samples(), policy=Policy())
    scalers = [Scaler(method, {"temperature": torch.tensor(t).double()}, K) for t in (1.0, 2.0, 0.05)]
    for scaler in scalers:
        free.measure(FEDERATION, scaler, 3_000_000)  # as often as it likes, in as many bins
    with pytest.raises(FedCalError, match="asks for 3000000 bins, where this site gives at most 100"):
        guarded.measure(FEDERATION, scalers[0], 3_000_000)
    for _ in range(3):
        guarded.measure(FEDERATION, scalers[0], 15)
    for scaler, bins in ((scalers[1], 15), (scalers[2], 15), (scalers[0], 30)):
        with pytest.raises(FedCalError, match="has measured a scaler of this federation already"):
            guarded.measure(FEDERATION, scaler, bins)
    with pytest.raises(FedCalError, match="this site has joined federation"):
        guarded.measure("1" * 32, scalers[0], 15)
    again = Client(method, *samples(), policy=Policy())
    again.load_state_dict(guarded.state_dict())  # it remembers that over a restart
    with pytest.raises(FedCalError, match="already"):
        again.measure(FEDERATION, scalers[1], 15)


def test_a_request_clipped_twice_is_two_requests() -> None:
    """Clipped to another norm the same sums differ: what differs is told of the samples that were clipped."""
    pytest.importorskip("dp_accounting")
    from fedcal.protocol import Privacy

    one = Request(FEDERATION, 1, Slope(1.0), Privacy(float("inf"), clip=1.0))
    other = replace(one, clipping=Privacy(float("inf"), clip=2.0))
    assert one.digest != other.digest and Request(FEDERATION, 1, Slope(1.0)).digest != one.digest
