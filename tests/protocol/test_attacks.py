"""Attacks of a malicious server on one client, written as attacks: they succeed without a policy, and fail against it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from fedcal import FedCalError
from fedcal.base.folds import FOLDS
from fedcal.base.query import Query
from fedcal.exact.head import HEAD
from fedcal.exact.head_queries import HeadSums
from fedcal.exact.head_samples import join
from fedcal.exact.linear import centre
from fedcal.exact.prepared import ALL
from fedcal.exact.private_queries import Confidences, Gains, MatrixSums, Scales, ScaleSums
from fedcal.exact.private_query import FEATURE, VALUES, PrivateQuery
from fedcal.exact.queries import LinearSums, Points, Slope, Start
from fedcal.methods import get_method
from fedcal.methods.fit import FitScaler
from fedcal.protocol import Client, Policy, Privacy, Reply, Request, Scaler

K, N = 3, 40
FEDERATION = "0" * 32


def samples(n: int = N, k: int = K, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    return 3 * rng.normal(size=(n, k)) + 2 * np.eye(k)[y], y


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
    query = FitScaler({"temperature": np.ones(())}, 0)
    stolen = Attacker(Client("val-ts", logits, labels), check=True).ask(query).content
    assert np.array_equal(stolen["logits"], logits) and np.array_equal(stolen["labels"], labels)

    with pytest.raises(FedCalError, match=r"val-ts sends every logit and label: refused, unless .* --allow-pooling"):
        Attacker(Client("val-ts", logits, labels, policy=Policy()), check=True).ask(query)
    allowed = Client("val-ts", logits, labels, policy=Policy(allow_pooling=True))
    assert np.array_equal(Attacker(allowed, check=True).ask(query).content["logits"], logits)


# --- 2: a knife -------------------------------------------------------------------------------------------------------


Cut = Callable[
    [list[float]], np.ndarray
]  # planes ↦ for each, the sum of (logits, 1) of all samples beyond it, and a constant


def matrix_cut(where: float, sharpness: float) -> np.ndarray:
    """A matrix map whose first gradient sums up the samples whose first logit is above `where`."""
    w = np.zeros((K, K + 1))
    w[0, 0] = sharpness
    w[0, K], w[1, K] = -sharpness * where / 2, sharpness * where / 2  # so that neither is beyond the bounds
    w[2, K] = w[1, K] - 1e3
    return w.flatten()


class Knife:
    """Cut the samples by planes, so steep that a gradient sums up those on one side.

    The difference between two planes that have one sample between them is that sample's logits.
    """

    def __init__(self, cut: Cut, narrowest: float, at_once: int = 1) -> None:
        self.cut, self.narrowest, self.at_once, self.beyond = cut, narrowest, at_once, dict[float, np.ndarray]()

    def slices(self) -> list[tuple[float, float, np.ndarray]]:
        """What lies between neighbouring planes."""
        planes = sorted(self.beyond)
        return [(a, b, self.beyond[a] - self.beyond[b]) for a, b in pairwise(planes)]

    def next_planes(self) -> list[float]:
        """Halves of the slices with the fewest samples, but more than one; thirds, quarters, … where they are few."""
        left = [(float(s[K]), a, b) for a, b, s in self.slices() if s[K] > 1.5 and b - a > self.narrowest]
        left = sorted(left)[: self.at_once]
        parts = self.at_once // len(left) if left else 0
        return [a + (b - a) * i / (parts + 1) for _, a, b in left for i in range(1, parts + 1)]

    def tell(self, planes: list[float], beyond: np.ndarray) -> None:
        self.beyond.update(zip(planes, beyond, strict=True))

    def run(self, low: float, high: float) -> None:
        """Go on until there is one sample in each slice, or the client replies no more."""
        for plane in (low, high):
            self.tell([plane], self.cut([plane]))
        while planes := self.next_planes():
            self.tell(planes, self.cut(planes))

    @property
    def found(self) -> list[np.ndarray]:
        return [inside[:K] for _, _, inside in self.slices() if abs(float(inside[K]) - 1) < 1e-9]


def asks_matrices(attacker: Attacker, sharpness: float) -> Cut:
    def cut(planes: list[float]) -> np.ndarray:
        at = np.stack([matrix_cut(plane, sharpness) for plane in planes])
        return attacker.ask(LinearSums((Points("matrix", ALL, "none", at),))).content["0/grad"][:, : K + 1]

    return cut


def stolen(found: list[np.ndarray], logits: np.ndarray) -> int:
    """How many of the samples were found, to nine digits."""
    truth = centre(logits)
    return len(
        {int(np.abs(truth - one).sum(1).argmin()) for one in found if float(np.abs(truth - one).max(1).min()) < 1e-9}
    )


def test_attack_2_gradients_at_parameters_of_the_servers_choice() -> None:
    """Labelled `fed-ts`, which asks for two numbers: every sample's logits in about three questions each."""
    logits, labels = samples()
    free = Attacker(Client("fed-ts", logits, labels), check=False)  # a client that does not look at what it is asked
    knife = Knife(asks_matrices(free, 1e7), 1e-5)
    knife.run(-15, 15)
    assert stolen(knife.found, logits) == N and free.questions < 12 * N
    several = Attacker(Client("fed-ts", logits, labels), check=False)
    knife = Knife(asks_matrices(several, 1e7), 1e-5, at_once=128)
    knife.run(-15, 15)
    assert stolen(knife.found, logits) == N and several.questions < 10  # many maps in one request

    guarded = Attacker(Client("fed-ts", logits, labels, policy=Policy()), check=True)
    with pytest.raises(FedCalError, match="asks for LinearSums, which fed-ts never does: do not reply"):
        Knife(asks_matrices(guarded, 1e7), 1e-5).run(-15, 15)
    for b in (1e7, 1e3, 1e-3):  # nor at temperatures that no fit comes to
        guarded = Attacker(Client("fed-ts", logits, labels, policy=Policy()), check=True)
        with pytest.raises(FedCalError, match="which no fit comes to: do not reply"):
            guarded.ask(Slope(b))


SHARPEST, REACH = 3e3, 6.0  # what the bounds leave


def steal_within_fed_matrix(logits: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """One map in each request, as many requests as the policy allows: samples found, and questions."""
    server = Attacker(Client("fed-matrix", logits, labels, policy=Policy()), check=True)
    knife = Knife(asks_matrices(server, SHARPEST), 1e-3)
    with contextlib.suppress(FedCalError):
        knife.run(-REACH, REACH)
    return stolen(knife.found, logits), server.questions


def steal_within_fedcal_plus(logits: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """Six maps of all samples and six of those outside each fold in every request: six knives with planes of their own."""
    server = Attacker(Client("fedcal-plus", logits, labels, policy=Policy()), check=True)
    knives = {fold: Knife(asks_matrices(server, SHARPEST), 1e-3, 6) for fold in (ALL, *range(FOLDS))}

    def cut(planes: dict[int, list[float]]) -> None:
        points = (
            Points("matrix", fold, "none", np.stack([matrix_cut(plane, SHARPEST) for plane in some]))
            for fold, some in planes.items()
        )
        sums = server.ask(LinearSums(tuple(points))).content
        for i, (fold, some) in enumerate(planes.items()):
            knives[fold].tell(some, sums[f"{i}/grad"][:, : K + 1])

    with contextlib.suppress(FedCalError):
        cut({fold: np.linspace(-REACH, REACH - 0.1 * (fold + 1), 6).tolist() for fold in knives})
        while planes := {fold: some for fold, knife in knives.items() if (some := knife.next_planes())}:
            cut(planes)
    return stolen([one for knife in knives.values() for one in knife.found], logits), server.questions


def test_attack_2_within_the_stages() -> None:
    """What remains, where the method is one of matrices: as many questions as two fits have, and no sharper knife."""
    logits, labels = samples(200)
    client = Client("fed-matrix", logits, labels, policy=Policy())
    server = Attacker(client, check=True)
    with pytest.raises(FedCalError, match="which no fit comes to"):
        Knife(asks_matrices(server, 1e7), 1e-5).run(-15, 15)
    assert client.talk.replies == 0
    client = Client("fed-matrix", logits, labels, policy=Policy())
    with pytest.raises(FedCalError, match="does not, or more often than it needs"):
        Knife(asks_matrices(Attacker(client, check=True), SHARPEST), 1e-5).cut([-1.0, 1.0])
    assert client.talk.replies == 0
    found, questions = steal_within_fed_matrix(logits, labels)
    assert 5 < found <= 60 and questions == 129  # of 200; without a policy all of them


def test_attack_2_within_the_stages_of_fedcal_plus() -> None:
    found, questions = steal_within_fedcal_plus(*samples(200))
    assert 5 < found <= 120 and questions <= 48


def test_attack_2_differences_between_folds() -> None:
    """All samples less those outside a fold: without a least number, a client of five shows each of them."""
    logits, labels = samples(9)
    client = Client("fedcal-plus", logits, labels, policy=Policy())
    for fold in range(5):
        at = np.ones((1, 1))
        query = LinearSums(tuple(Points("temperature", of, "none", at) for of in (ALL, fold)))
        sums = client.method.reply(query, client.samples, {}).content
        whole, outside = float(sums["0/loss"][0]), float(sums["1/loss"][0])
        inside = abs(whole - outside)
        assert inside < 1e-9 or inside == pytest.approx(whole)  # the fold holds none of the nine, or all


def test_attack_2_a_client_of_few_samples_says_that_it_has_none() -> None:
    for n, replies in ((4, False), (5, True)):
        reply = Attacker(Client("fed-bias", *samples(n), policy=Policy()), check=True).ask(Start())
        assert (reply.n, bool(reply.content)) == ((n, True) if replies else (0, False))
    many = Policy(min_count=50)
    assert Attacker(Client("fed-bias", *samples(), policy=many), check=True).ask(Start()).n == 0


# --- what refusals tell -------------------------------------------------------------------------------------------------


D = 6  # features


def asks_heads(attacker: Attacker, row: np.ndarray, too_many: bool) -> bool:
    """Whether a client refuses a head because of its samples: which a server sees also where sums are masked.

    `too_many`: with a fault beside it, so that no reply is counted: which of two reasons the client gives tells the same.
    """
    at = np.zeros((1, 1 + K * (D + 1)))
    at[0, 1 : D + 2], at[0, D + 2 : 2 * D + 3] = row, -row
    try:
        attacker.ask(HeadSums((Points(HEAD, ALL, "none", at),), np.zeros((999 if too_many else 1, D + 1))))
    except FedCalError as error:
        return "a head that makes logits larger" in str(error)
    return False


def root_mean_square(refuses: Callable[[float], bool]) -> float:
    """Of the samples' numbers, found by where a client begins to refuse their multiples."""
    low, high = 1e-2, 1e12
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuses(middle) else (middle, high)
    return 1e4 / low


def features_of_client(n: int) -> tuple[Client, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, D))
    return Client(f"fed-head:features={D}", join(rng.normal(size=(n, K)), x), np.arange(n) % K, policy=Policy()), x


@pytest.mark.parametrize("too_many", [False, True])
def test_refusals_do_not_tell_the_sample_of_a_client_that_says_it_has_none(too_many: bool) -> None:
    """They told its features to 13 digits: (x · w)² for every w."""
    client, x = features_of_client(1)
    attacker, unit = Attacker(client, check=True), np.eye(D + 1)

    def number(j: int) -> float:
        row = 100 * unit[D] + unit[j]
        return root_mean_square(lambda s: asks_heads(attacker, s * row, too_many)) / math.sqrt(2 / K) - 100

    assert min(abs(number(j) - x[0, j]) for j in range(D)) > 0.01
    assert client.talk.replies == 0


def test_refusals_do_not_tell_the_second_moment_of_a_clients_features() -> None:
    """They told it to the last digit, and not one reply was counted."""
    client, x = features_of_client(40)
    attacker, unit = Attacker(client, check=True), np.eye(D + 1)
    found = [
        root_mean_square(lambda s, j=j: asks_heads(attacker, s * unit[j], True)) / math.sqrt(2 / K) for j in range(D)
    ]
    truth = np.sqrt((x**2).mean(0))
    assert sum(abs(a - b) < 0.1 for a, b in zip(found, truth, strict=True)) <= 1


def test_a_client_that_has_refused_for_its_samples_replies_no_more() -> None:
    """Not in this federation, also after a restart; a fault that has nothing to do with them changes nothing."""
    client = Client("fed-bias", *samples(), policy=Policy())
    attacker = Attacker(client, check=True)
    with pytest.raises(FedCalError, match=r"asks for Slope|never asks"):
        attacker.ask(Slope(1.0))
    attacker.ask(Start())
    steep = LinearSums((Points("bias", ALL, "none", np.array([[1e9, 0, 0, 0]])),))
    with pytest.raises(FedCalError, match="which no fit comes to"):
        attacker.ask(steep)
    attacker.client = Client("fed-bias", *samples(), policy=Policy())
    attacker.client.load_state_dict(client.state_dict())
    for query in (steep, LinearSums((Points("bias", ALL, "none", np.array([[1.0, 0, 0, 0]])),))):
        with pytest.raises(FedCalError, match=r"has refused a request .* replies no more"):
            attacker.ask(query)
    scaler = Scaler(client.method, {"bias": np.array([1.0, 0, 0, 0])}, K)
    with pytest.raises(FedCalError, match="replies no more"):
        client.measure(FEDERATION, scaler, 15)


def test_by_central_privacy_a_refusal_does_not_tell_of_few_samples() -> None:
    """Whatever the size of their logits: a client of four samples counts as none."""
    query = ScaleSums(K, 0.1, 1.0, np.array([1e6, 0, 0, 0]))
    for scale, refuses in ((1e-6, False), (1e6, True)):
        for n in (4, 5):
            logits, labels = samples(n)
            client = Client("fed-bias", scale * logits, labels, policy=Policy())
            with pytest.raises(FedCalError) if refuses and n == 5 else contextlib.nullcontext():
                assert not PrivateAttacker(client).sums(query).any() or n == 5


# --- 2, under a privacy by which the client adds no noise -----------------------------------------------------------------


CENTRAL = Privacy(1.0)  # the server would add the noise


class PrivateAttacker(Attacker):
    """A server that asks private queries, and says by which privacy."""

    def __init__(self, client: Client, privacy: Privacy | None = CENTRAL) -> None:
        super().__init__(client, check=True)
        self.privacy = privacy

    def sums(self, query: PrivateQuery) -> np.ndarray:
        self.questions += 1
        return self.client.reply(Request(FEDERATION, self.questions, query, self.privacy)).content[VALUES]

    def gradient(self, w: np.ndarray, clip: float) -> np.ndarray:
        query = MatrixSums(len(w), 0.1, clip, w, "matrix")
        return query.read(self.sums(query))[0].reshape(w.shape)


def read_between_planes(client: Client, logits: np.ndarray, steep: float = 1e5) -> np.ndarray:
    """The sample furthest in a direction, from two gradients of a matrix: one plane before it, one behind it."""
    server, truth = PrivateAttacker(client), centre(logits)
    clip, direction = 1.01 * float(np.linalg.norm(truth, axis=1).max()), np.array([1.0, 0.0, -1.0])
    along = np.sort(FEATURE * truth / clip @ direction)
    beyond = []
    for plane in ((along[-1] + along[-2]) / 2, along[-1] + 1e-3):
        w = np.zeros((K, K + 1))
        w[0, :K], w[0, K], w[2, K] = steep * direction, -steep * plane, -3 * steep
        beyond.append(server.gradient(w, clip)[0])
    inside = beyond[0] - beyond[1]
    return inside[:K] / inside[K] * clip / FEATURE


def read_slabs(client: Client, k: int, n: int, replies: int = 7) -> list[np.ndarray]:
    """Samples that are alone in one of k − 1 slabs, along random directions: without knowing anything of the samples."""
    server, rng, clip, steep, found = PrivateAttacker(client), np.random.default_rng(1), 60.0, 8e4, list[np.ndarray]()
    all_first = np.zeros((k, k + 1))
    all_first[0, k] = 1e6
    labels = server.gradient(all_first, clip)
    for _ in range(replies):
        direction = rng.normal(size=k)
        direction = (direction - direction.mean()) / np.linalg.norm(direction - direction.mean())
        planes, w = np.linspace(-0.3, 0.3, k - 1), np.zeros((k, k + 1))
        for c in range(k):
            w[c, :k], w[c, k] = steep * c * direction, -steep * planes[:c].sum()
        slabs = (server.gradient(w, clip) - labels)[1:]
        weight = (n - (Policy().min_count - 1)) / n  # of each sample, under a policy
        found += [slab[:k] / slab[k] * clip / FEATURE for slab in slabs if abs(slab[k] / weight - 1) < 0.01]
    return found


def test_attack_2_by_central_privacy() -> None:
    """The server says that it adds the noise, and asks a client of `fed-ts` for gradients of a matrix."""
    logits, labels = samples()
    truth = centre(logits)
    furthest = truth[(truth @ np.array([1.0, 0.0, -1.0])).argmax()]
    assert read_between_planes(Client("fed-matrix", logits, labels), logits) == pytest.approx(furthest, abs=0.01)
    for spec in ("fed-ts", "fed-bias", "fed-beta", "fed-hist", "fed-op", "fedcal-plus:accuracy=keep,informed=false"):
        with pytest.raises(FedCalError, match=r"asks for MatrixSums, which .* never does: do not reply"):
            read_between_planes(Client(spec, logits, labels, policy=Policy()), logits)
    with pytest.raises(FedCalError, match="asks for MatrixSums where fed-vector does not"):
        read_between_planes(Client("fed-vector", logits, labels, policy=Policy()), logits)
    for spec in ("fed-matrix", "fedcal-plus"):
        with pytest.raises(FedCalError, match="larger than 10000, which no fit comes to"):
            read_between_planes(Client(spec, logits, labels, policy=Policy()), logits)


def test_attack_2_by_central_privacy_without_knowing_the_samples() -> None:
    n, k = 40, 10
    rng = np.random.default_rng(0)
    logits, labels = 3 * rng.normal(size=(n, k)), rng.integers(k, size=n)
    found = read_slabs(Client("fed-matrix", logits, labels), k, 10**9)  # without a policy each sample counts whole
    truth = centre(logits)
    assert len([one for one in found if np.abs(truth - one).max(1).min() < 0.2]) >= 3
    for spec in ("fed-ts", "fed-matrix", "fedcal-plus"):
        with pytest.raises(FedCalError, match="do not reply to this server"):
            read_slabs(Client(spec, logits, labels, policy=Policy()), k, n)


@pytest.mark.parametrize(
    "privacy", [CENTRAL, Privacy(1e6, where="local"), Privacy(1.0, where="distributed", nodes=10**9)]
)
def test_a_privacy_of_the_servers_choice_is_no_protection(privacy: Privacy) -> None:
    """Noise whose size the server chooses hides nothing from it: bounds hold unless the privacy is the client's own."""
    logits, labels = samples()
    steep = MatrixSums(K, 0.1, 20.0, np.full((K, K + 1), 2e4))
    with pytest.raises(FedCalError, match="larger than 10000"):
        PrivateAttacker(Client("fed-matrix", logits, labels, policy=Policy()), privacy).sums(steep)


BIAS = np.array([1.0, 0.1, 0.0, -0.1])
MATRIX = np.concatenate([np.eye(K), np.zeros((K, 1))], 1)
MORE = {
    "label counts, for fed-ts": ("fed-ts", Scales(K, 0.1)),
    "label counts, for fed-op": ("fed-op", Scales(K, 0.1)),
    "a bias, for fed-ts": ("fed-ts", ScaleSums(K, 0.1, 9.0, BIAS)),
    "a bias, for fed-beta": ("fed-beta", ScaleSums(K, 0.1, 9.0, BIAS)),
    "a temperature out of its limits": ("fed-ts", ScaleSums(K, 0.1, 1.5, np.array([21.0]))),
    "the same through a small norm": ("fed-ts", ScaleSums(K, 0.1, 0.01, np.array([1.0]))),
    "gains at such a temperature": ("fed-ts", Gains(K, 0.1, ({"temperature": np.array([0.01])},))),
    "gains of a bias, for fed-ts": ("fed-ts", Gains(K, 0.1, ({"bias": BIAS},))),
    "gains of many maps": ("fed-bias", Gains(K, 0.1, ({"bias": BIAS},) * 2)),
    "gains of a matrix, for fed-bias": ("fed-bias", Gains(K, 0.1, ({"matrix": MATRIX.ravel()},))),
    "gains of a steep matrix": ("fed-matrix", Gains(K, 0.1, ({"matrix": 1e4 * MATRIX.ravel()},))),
    "confidences, for fed-bias": ("fed-bias", Confidences(K, 0.1, 1.0)),
    "confidences at a steep scale": ("fed-hist", Confidences(K, 0.1, 1e4)),
    "a steep bias": ("fed-bias", ScaleSums(K, 0.1, 9.0, 1e5 * BIAS)),
    "an intercept": ("fed-bias", ScaleSums(K, 0.1, 9.0, np.array([1.0, 2e4, 0.0, 0.0]))),
    "part of a Hessian": ("fed-bias", ScaleSums(K, 0.1, 9.0, BIAS, full=False)),
    "a matrix, for fed-vector": ("fed-vector", MatrixSums(K, 0.1, 9.0, np.ones((K, K + 1)), "vector")),
    "a vector, for fed-matrix": ("fed-matrix", MatrixSums(K, 0.1, 9.0, MATRIX, "vector")),
}


@pytest.mark.parametrize(("spec", "query"), MORE.values(), ids=MORE.keys())
def test_by_central_privacy_a_server_learns_no_more_than_without(spec: str, query: PrivateQuery) -> None:
    client = Client(spec, *samples(), policy=Policy())
    with pytest.raises(FedCalError, match="do not reply to this server"):
        PrivateAttacker(client).sums(query)
    assert client.talk.replies == 0


def test_private_queries_without_any_privacy_are_refused() -> None:
    client = Client("fed-bias", *samples())
    with pytest.raises(FedCalError, match="a private query without privacy: do not reply"):
        PrivateAttacker(client, None).sums(Scales(K, 0.1))


def test_a_federation_is_private_or_it_is_not() -> None:
    """Else a server had the replies of a fit of each kind."""
    client = Client("fed-bias", *samples(), policy=Policy())
    server = PrivateAttacker(client)
    server.sums(Scales(K, 0.1))
    with pytest.raises(FedCalError, match="takes part under differential privacy, and the request is without"):
        server.ask(Start())
    client = Client("fed-bias", *samples(), policy=Policy())
    server = PrivateAttacker(client)
    server.ask(Start())
    with pytest.raises(FedCalError, match="takes part without differential privacy, and the request is under"):
        server.sums(Scales(K, 0.1))


def test_how_often_a_private_query_is_replied_to() -> None:
    """As often as two private fits of the method ask: of a matrix twice each time that the fit begins."""
    client = Client("fed-matrix", *samples(), policy=Policy())
    server = PrivateAttacker(client)
    for reply in range(2 * (1 + Policy().max_restarts)):
        server.gradient(MATRIX + 1e-3 * reply, 9.0)
    with pytest.raises(FedCalError, match="more often than it needs"):
        server.gradient(MATRIX, 9.0)


# --- 3: scalers to measure --------------------------------------------------------------------------------------------


def test_attack_3_scalers_of_the_servers_choice_to_measure() -> None:
    """One scaler of a federation is measured, as often as it is asked for; a second one is not."""
    method = get_method("fed-ts")
    free, guarded = Client(method, *samples()), Client(method, *samples(), policy=Policy())
    scalers = [Scaler(method, {"temperature": np.array(t).astype(float)}, K) for t in (1.0, 2.0, 0.05)]
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
    other = replace(one, privacy=Privacy(float("inf"), clip=2.0))
    assert one.digest != other.digest and Request(FEDERATION, 1, Slope(1.0)).digest != one.digest
