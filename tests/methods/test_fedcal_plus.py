"""`accuracy="keep"` keeps every decision, globally and at every client; the prior shift has to be asked for."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedcal
from fedcal.base.seeds import numpy_rng
from fedcal.exact import candidates, stages
from fedcal.exact.linear import apply_linear, centre, pack_symmetric
from fedcal.exact.prepared import Prepared
from fedcal.measure.tally import Tally
from fedcal.methods import METHODS, fedcal_plus
from fedcal.methods.fit import Total


def two_sites(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A well-ordered model, too sure of itself, at two sites that see different classes."""
    rng, found = np.random.default_rng(seed), {}
    for name, lean in (("A", [2.0, 0.0, -2.0]), ("B", [-2.0, 0.0, 2.0])):
        y = rng.choice(3, size=1000, p=np.exp(lean) / np.exp(lean).sum())
        z = rng.normal(size=(1000, 3)) + 1.2 * np.eye(3)[y]
        found[name] = 4 * z, y
    return found


def moved(fitted: fedcal.Scaler, clients: dict, client: str | None) -> int:
    logits = clients[client or "A"][0]
    return int((np.asarray(fitted.predict_proba(logits, client)).argmax(1) != logits.argmax(1)).sum())


@pytest.mark.parametrize("informed", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_keep_keeps_every_clients_decisions(informed, seed):
    clients = two_sites(seed)
    fitted = fedcal.calibrate(clients, "fedcal-plus", accuracy="keep", informed=informed)
    assert [moved(fitted, clients, client) for client in (None, "A", "B")] == [0, 0, 0]


@pytest.mark.parametrize("informed", [True, False])
def test_a_prior_shift_with_keep_is_asked_for_by_name(informed):
    """It moves decisions at the clients, for the better, and the global scaler still moves none."""
    clients = two_sites()
    fitted = fedcal.calibrate(clients, "fedcal-plus", accuracy="keep", informed=informed, prior_shift=True)
    assert moved(fitted, clients, None) == 0 < moved(fitted, clients, "A")
    for client, (logits, labels) in clients.items():
        before = fedcal.nll(fitted.predict_proba(logits), labels)
        assert fedcal.nll(fitted.predict_proba(logits, client), labels) < before - 0.05


def test_the_prior_shift_can_be_left_out_of_improve():
    clients = two_sites()
    fitted = fedcal.calibrate(clients, "fedcal-plus", prior_shift=False)
    assert "prior" not in fitted.params
    logits = clients["A"][0]
    assert np.array_equal(fitted.predict_proba(logits, "A"), fitted.predict_proba(logits))


@pytest.mark.parametrize("informed", [True, False])
def test_keep_keeps_near_ties(informed):
    """Two logits that differ in their last bit: scaling or centring alone would tie or swap them."""
    rng = np.random.default_rng(0)
    a = 3 * rng.normal(size=2000)
    near = np.stack([a, np.nextafter(a, np.inf), a - 5, a - 9], axis=1)
    few, many = (near[:20], np.arange(20) % 4), (near, rng.integers(4, size=2000))
    for clients in ([few], [many]):
        fitted = fedcal.calibrate(clients, "fedcal-plus", accuracy="keep", informed=informed)
        for scale in (1.0, 10.0):
            assert (fitted.predict_proba(scale * near).argmax(1) == (scale * near).argmax(1)).all()


def test_keep_keeps_near_ties_of_probabilities():
    """As of votes that are added up in different orders: most of their logarithms are equal."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.15, 0.24, size=500)
    near = np.stack([p, np.nextafter(p, 1), *[(1 - 2 * p) / 4] * 4], axis=1)
    fitted = fedcal.calibrate([(near, rng.integers(6, size=500))], "fedcal-plus", accuracy="keep", probs=True)
    assert (fitted.predict_proba(near).argmax(1) == near.argmax(1)).all()
    model = fedcal.CalibratedModel(torch.nn.Identity(), fitted)
    assert (model(torch.from_numpy(near)).numpy().argmax(1) == near.argmax(1)).all()


def test_rows_in_a_pattern_are_fitted_as_any_others():
    """Whatever the order of the rows, folds hold all classes."""
    rng = np.random.default_rng(1)
    n, k = 200_000, 4
    y = np.arange(n) % k
    z = 2 * rng.normal(size=(n, k))
    z[np.arange(n), y] += 12
    noise = rng.random(n) < 0.05
    z[noise] = 2 * rng.normal(size=(int(noise.sum()), k))
    fitted = fedcal.calibrate([(z[: n // 2], y[: n // 2]), (z[n // 2 :], y[n // 2 :])], accuracy="keep")
    assert fedcal.ece(fitted.predict_proba(z), y) < 0.01


def skewed(n_clients: int, n: int, k: int, seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients of skewed labels, with a model that is over-confident, leans to some classes and mixes them."""
    rng, found = np.random.default_rng(seed), {}
    lean, mix = rng.normal(0, 0.7, k), rng.normal(0, 0.3 / k**0.5, (k, k))
    for c in range(n_clients):
        y = rng.choice(k, n, p=rng.dirichlet(np.full(k, 0.3)))
        z = rng.normal(size=(n, k)) + (2.5 + 0.3 * np.log(k)) * np.eye(k)[y]
        found[str(c)] = 2 * (z + z @ mix) + lean, y
    return found


@pytest.mark.parametrize(
    ("k", "rounds", "megabytes"), [(2, 20, 0.1), (10, 20, 2), (20, 20, 6), (21, 40, 2), (100, 40, 15)]
)
def test_rounds_and_bytes_stay_few(k, rounds, megabytes):
    fitted = fedcal.calibrate(skewed(4, 600 if k < 50 else 300, k), "fedcal-plus")
    assert fitted.ledger.rounds <= rounds and fitted.ledger.total_up <= megabytes * 1e6
    assert fitted.ledger.rounds <= sum(stage.times for stage in METHODS["fedcal-plus"].stages(k))


@pytest.mark.parametrize(("k", "n", "seed", "sure", "rounds"), [(10, 300, 6, 300.0, 20), (33, 600, 1, 1.0, 40)])
def test_rounds_stay_few_where_the_start_or_every_fit_is_slow(k, n, seed, sure, rounds):
    """A few huge logits hide the scale of the others, and the start takes four rounds; over 33 classes all fits take all of
    their rounds. These fits took 22 and 41."""
    clients = skewed(4, n, k, seed)
    for logits, _ in clients.values():
        logits[::20] *= sure
    assert fedcal.calibrate(clients, "fedcal-plus").ledger.rounds <= rounds


@pytest.mark.parametrize(
    "limits", [(), ((stages, "MATRIX_NEWTON_MAX"),), ((stages, "MATRIX_NEWTON_MAX"), (candidates, "FOLD_LARGE"))]
)
def test_few_rounds_lead_to_the_fits_without_a_fold(limits, monkeypatch):
    """As good out of fold as fits to the end: with whole Hessians, with blocks, and where a ridge is chosen first."""
    for module, name in limits:
        monkeypatch.setattr(module, name, 0)
    samples = [Prepared(lambda pair=pair: pair) for pair in tensors(skewed(4, 400, 6))]

    def out_of_fold() -> list[float]:
        clients = answered(stages.start(6, folded=True), samples)
        tried = answered(candidates.fit_all({"bias": (1.0,), "matrix": (1e2, 1.0)}, clients), samples)
        return answered(candidates.score(tried, clients), samples).total.tolist()

    few = out_of_fold()
    for name, value in {"NEWTON_ROUNDS": 200, "OTHER_ROUNDS": 200, "MOST_ROUNDS": 600, "CHOOSING": 1e-6}.items():
        monkeypatch.setattr(candidates, name, value)
    assert few == pytest.approx(out_of_fold(), rel=2e-3)


def test_a_family_whose_fits_have_not_arrived_is_chosen_where_it_gains_far_more_than_is_left(monkeypatch):
    """Of a skewed, accurate net, no matrix arrives within the rounds. It was left out, for 5 to 15 % more NLL."""
    clients = skewed(4, 400, 6)
    arrived = fedcal.calibrate(clients, "fedcal-plus", prior_shift=False)
    monkeypatch.setattr(candidates, "NEWTON_ROUNDS", 4)
    stopped = fedcal.calibrate(clients, "fedcal-plus", prior_shift=False)
    assert "matrix" in arrived.params and "matrix" in stopped.params
    logits, labels = (np.concatenate(part) for part in zip(*clients.values(), strict=True))
    nll = [fedcal.nll(scaler.predict_proba(logits), labels) for scaler in (arrived, stopped)]
    assert nll[1] == pytest.approx(nll[0], rel=0.01)


def chosen_of(losses: np.ndarray, hits: list[float], seen: float, monkeypatch) -> str:
    """The family that is chosen, by 100 samples' losses out of fold, and the matrix's summed loss on samples it has seen."""
    families = dict(zip(("temperature", "bias", "matrix"), (200.0, 180.0, seen), strict=True))
    tried = [
        SimpleNamespace(family=family, left=0.0, fold_map=None, fit=SimpleNamespace(loss=loss))
        for family, loss in families.items()
    ]

    def done(*_):
        yield from ()
        return tried

    monkeypatch.setattr(fedcal_plus, "fit_all", done)
    monkeypatch.setattr(fedcal_plus, "finish", done)
    clients = stages.Clients(10, 100.0, np.full(10, 10.0), 1.0, 1.0, True)
    program = fedcal_plus.choose_family(dict.fromkeys(families, (1.0,)), clients)
    next(program)
    with pytest.raises(StopIteration) as finished:
        program.send({"sum": losses.sum(1), "gram": pack_symmetric(losses @ losses.T), "hits": np.array(hits)})
    return finished.value.value[1].family


@pytest.mark.parametrize(("hits", "chosen"), [(41.0, "bias"), (52.0, "matrix")])
def test_no_family_is_chosen_that_is_right_less_often_than_the_temperature(hits, chosen, monkeypatch):
    """Nor one that replaces a smaller family than it. Of a random forest, whose logits of classes without a vote are the log
    of a tiny number, a matrix was chosen that was right 41 times in 100 out of fold, and the temperature 52 times."""
    losses = np.array([2.0, 1.8, 1.5])[:, None] + 0.1 * np.random.default_rng(0).normal(size=(3, 100))
    assert chosen_of(losses, [52.0, 53.0, hits], 140.0, monkeypatch) == chosen


@pytest.mark.parametrize(
    ("seen", "errors", "chosen"), [(140.0, 2.5, "matrix"), (2.0, 2.5, "bias"), (2.0, 3.5, "matrix")]
)
def test_a_map_that_has_memorised_its_samples_needs_more_evidence(seen, errors, chosen, monkeypatch):
    losses = np.array([2.0, 1.8, 1.8])[:, None] + 0.01 * np.random.default_rng(0).normal(size=(3, 100))
    noise = np.random.default_rng(1).normal(size=100)
    losses[2] = losses[1] - 0.5 * (
        (noise - noise.mean()) / noise.std() + errors / 10
    )  # a gain of so many standard errors
    assert chosen_of(losses, [50.0, 50.0, 50.0], seen, monkeypatch) == chosen


def test_a_map_that_has_memorised_few_samples_is_not_served():
    """Out of fold, a weakly shrunk matrix had 0.06 nats less than a strongly shrunk one. On others it had 0.14 more."""
    rng = np.random.default_rng(3)
    confused = rng.normal(size=(10, 10)) * 1.5

    def samples(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(10, size=n)
        return 2 * (0.8 * rng.normal(size=(n, 10)) + 2 * np.eye(10)[y]) + confused[y], y

    few, (z, y) = samples(100), samples(4000)
    fitted = fedcal.calibrate([few], "fedcal-plus", prior_shift=False)
    assert "matrix" in fitted.params
    assert fedcal.nll(fitted.predict_proba(z), y) < 0.4


@pytest.mark.parametrize("fold_large", [candidates.FOLD_LARGE, 0])
def test_a_map_that_fits_every_sample_has_an_honest_loss_out_of_fold(fold_large, monkeypatch):
    """With few errors, a weakly shrunk matrix separates all samples, and its loss is flat. A fit without a fold that started
    there would not forget the fold: the matrix looked ten times better than it is, and was chosen."""
    monkeypatch.setattr(candidates, "FOLD_LARGE", fold_large)
    z, y = accurate(300, 10)
    clients = answered(stages.start(10, folded=True), samples := [Prepared(lambda: (z, y))])
    tried = answered(candidates.fit_all({"temperature": (0.0,), "bias": (1.0,), "matrix": (0.1,)}, clients), samples)
    loss = answered(candidates.score(tried, clients), samples).total
    u = apply_linear("matrix", tried[-1].fit.t, centre(z))
    in_sample = (np.log(np.exp(u - u.max(1, keepdims=True)).sum(1)) + u.max(1) - u[np.arange(300), y]).sum()
    assert in_sample < loss[0] / 10 and loss[-1] > loss[0] / 2


@pytest.mark.parametrize(("n", "k"), [(60, 10), (300, 10), (1000, 10), (100, 3), (100, 2), (500, 40), (1000, 100)])
def test_few_samples_of_an_accurate_model_do_no_harm(n, k):
    """The more accurate the model, the fewer errors tell how sure it may be."""
    for seed in range(3):
        fitted = fedcal.calibrate([accurate(n, k, seed)], "fedcal-plus", prior_shift=False)
        z, y = accurate(4000, k, seed, "test")
        before, after = Tally.of(z, y).summary(), Tally.of(fitted.apply(z), y).summary()
        assert after["nll"] < before["nll"] + 0.01
        assert after["accuracy"] > before["accuracy"] - 0.005


def accurate(n: int, k: int, seed: int = 0, split: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Samples of a model that is right about 97 times in 100, and over-confident."""
    rng = numpy_rng(seed, "accurate", split)
    y = rng.integers(k, size=n)
    return 2 * (rng.normal(size=(n, k)) + (3.0 + 0.45 * np.log(k)) * np.eye(k)[y]), y


def tensors(clients: dict[str, tuple[np.ndarray, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(z, y) for z, y in clients.values()]


def answered(program, samples):
    """What a program returns that is sent the sums of these clients' replies."""
    sums = None
    while True:
        try:
            query = program.send(sums)
        except StopIteration as finished:
            return finished.value
        whole = Total()
        for client in samples:
            whole.add(query.reply(client))
        sums = whole.sums()
