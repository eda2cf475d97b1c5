"""fed-head: better than fedcal-plus where features tell more than logits, and a no where they do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedcal
from fedcal.base.folds import held_out
from fedcal.errors import FedCalError
from fedcal.exact import head_choice, head_fit
from fedcal.exact.head import HEAD
from fedcal.exact.head_samples import join
from fedcal.methods import get_method
from fedcal.methods.sets import SetScores
from fedcal.protocol import Client, Policy, Privacy, Request, Scaler, Server
from heads import dealt, federation


def test_many_small_clients_reply_as_one_or_one_by_one(monkeypatch):
    from fedcal.transport import memory

    x, y, head = federation(1200, 3, 4)
    clients = [(x[i : i + 4], y[i : i + 4]) for i in range(0, 1200, 4)]
    train = {str(i): (x[i : i + 3] + 0.1, y[i : i + 3]) for i in range(300)}
    together = fedcal.calibrate(clients, "fed-head", head=head, train=train)
    monkeypatch.setattr(memory, "MANY", 10**9)
    alone = fedcal.calibrate(clients, "fed-head", head=head, train=train)
    assert together.params.keys() == alone.params.keys() and HEAD in alone.params
    for name, value in alone.params.items():
        assert np.allclose(together.params[name], value, atol=1e-8)
    assert np.allclose(together.personal["7"]["shift"], alone.personal["7"]["shift"], atol=1e-8)


# --- what it is for ---------------------------------------------------------------------------------------------------


def test_a_drifted_head_is_refitted():
    x, y, head = federation(1500, 4, 8, seed=3)
    new_x, new_y, _ = federation(4000, 4, 8, seed=3)
    logits = [(a @ head[0].T, b) for a, b in dealt(x, y, 5)]
    plus = fedcal.calibrate(logits, "fedcal-plus")
    scaler = fedcal.calibrate(dealt(x, y, 5), "fed-head", head=head)
    assert HEAD in scaler.params and float(scaler.params["trained"]) == 0.0
    before = fedcal.nll(plus.predict_proba(new_x @ head[0].T), new_y)
    after = fedcal.nll(scaler.predict_proba(new_x), new_y)
    assert after < before - 0.1
    assert scaler.ledger.rounds <= 40


@pytest.mark.parametrize("seed", range(3))
def test_it_says_no_where_features_tell_no_more(seed):
    """The model's head is right but for its temperature: fedcal-plus finds that, and its scaler is the result."""
    x, y, head = federation(1000, 3, 5, seed=seed, good_head=True)
    noise = np.random.default_rng(seed).normal(size=(1000, 20))
    features, wide = np.c_[x, noise], (np.c_[head[0], np.zeros((3, 20))], head[1])
    scaler = fedcal.calibrate(dealt(features, y, 4), "fed-head", head=wide)
    assert HEAD not in scaler.params
    plus = fedcal.calibrate([(a @ head[0].T, b) for a, b in dealt(x, y, 4)], "fedcal-plus")
    expected = plus.predict_proba(x @ head[0].T)
    assert np.allclose(scaler.predict_proba(features), expected, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_ridge_suits_new_samples(seed, monkeypatch):
    """300 samples of 64 features: by samples that a head has seen, the weakest ridge would look best."""
    rng = np.random.default_rng(seed)
    truth = 0.5 * rng.normal(size=(5, 64))
    head = truth + 0.35 * rng.normal(size=(5, 64)), np.zeros(5)
    x = rng.normal(size=(3300, 64))
    y = (x @ truth.T + rng.gumbel(size=(3300, 5))).argmax(1)

    def nll_on_new(rows, spec, **given):
        scaler = fedcal.calibrate([(rows[i:300:3], y[i:300:3]) for i in range(3)], spec, **given)
        return fedcal.nll(scaler.predict_proba(rows[300:]), y[300:])

    chosen = nll_on_new(x, "fed-head", head=head)
    assert chosen < nll_on_new(x @ head[0].T, "fedcal-plus") - 0.12
    for module in (head_choice, head_fit):
        monkeypatch.setattr(module, "RIDGES", module.RIDGES[-1:])
    assert chosen < nll_on_new(x, "fed-head", head=head) - 0.01


def test_training_samples_that_the_model_has_learnt_by_heart_do_not_make_it_sure():
    """Their features give their labels away. The head is judged on other samples, and so are its confidences."""
    rng = np.random.default_rng(0)
    x, y, head = federation(1200, 4, 8, seed=5)
    learnt_y = rng.integers(4, size=800)
    learnt = 4 * rng.normal(size=(4, 8))[learnt_y] + 0.1 * rng.normal(size=(800, 8))
    new_x, new_y, _ = federation(3000, 4, 8, seed=5)
    scaler = fedcal.calibrate([(x, y)], "fed-head", head=head, train=[(learnt, learnt_y)])
    alone = fedcal.calibrate([(x, y)], "fed-head", head=head)
    losses = [fedcal.nll(of.predict_proba(new_x), new_y) for of in (scaler, alone)]
    assert losses[0] < losses[1] + 0.01 and float(scaler.params.get("trained", 0.0)) == 0.0


@pytest.mark.parametrize(
    "case",
    [
        {"k": 2}, {"d": 1}, {"k": 100, "d": 20, "n": 700}, {"d": 512, "n": 300}, {"scale": 1e9}, {"scale": 1e-9}, {"n": 30},
    ],
    ids=str,
)  # fmt: skip
def test_other_shapes(case):
    x, y, head = federation(**{"n": 400, **case})
    scaler = fedcal.calibrate(dealt(x, y, 3), "fed-head", head=head)
    for client in (None, 0):
        probs = scaler.predict_proba(x, client)
        assert probs.shape == (len(y), len(head[0])) and np.isfinite(probs).all()
    assert fedcal.nll(scaler.predict_proba(x), y) <= fedcal.nll(_softmax(x @ head[0].T), y) + 0.02


def _softmax(u):
    p = np.exp(u - u.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def test_features_that_do_not_vary_a_class_that_nobody_has_and_huge_units():
    x, y, head = federation(600, 3, 4)
    wide = np.c_[x, np.full(600, 7.0), np.zeros(600), 1e8 * x[:, :1] + 1e10]
    weight = np.zeros((5, 7))
    weight[:3, :4] = head[0]
    scaler = fedcal.calibrate([(wide, y)], "fed-head", head=(weight, np.zeros(5)))  # classes 3 and 4 have no sample
    probs = scaler.predict_proba(wide)
    assert np.isfinite(probs).all() and (probs[:, 3:] < 0.05).all()
    still = np.full((200, 3), 2.0)
    found = fedcal.calibrate([(still, y[:200])], "fed-head", head=(np.ones((3, 3)), np.zeros(3)))
    plus = fedcal.calibrate([(3 * still, y[:200])], "fedcal-plus")
    assert np.allclose(found.predict_proba(still), plus.predict_proba(3 * still), atol=1e-9)


# --- use --------------------------------------------------------------------------------------------------------------


def test_saved_welcomed_and_served(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    inputs = torch.randn(900, 5, dtype=torch.float64)
    with torch.no_grad():
        features = model[:2](inputs)
        labels = (4 * features[:, :3] + torch.randn(900, 3)).argmax(1)
    scaler = fedcal.calibrate(
        [(features[:500], labels[:500]), (features[500:], labels[500:])], "fed-head", head=model[2]
    )
    assert HEAD in scaler.params and "features of 3 classes" in repr(scaler)
    scaler.save(tmp_path / "s.safetensors")
    again = Scaler.load(tmp_path / "s.safetensors")
    assert again.method == scaler.method and torch.equal(again.predict_proba(features), scaler.predict_proba(features))
    again.welcome("new", features[:100], labels[:100])
    for client in (None, "new"):
        served = fedcal.CalibratedModel(model, again, client)
        assert torch.allclose(served(inputs), again.predict_proba(features, client), atol=1e-12)
        exported = torch.export.export(served, (inputs[:7],)).module()
        assert torch.allclose(exported(inputs[:7]), served(inputs[:7]), atol=1e-12)
    assert isinstance(model[2], nn.Linear)  # the user's model is left as it was


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"global/model_bias": None}, "a last layer is both"),
        ({"global/model_weight": np.full((3, 4), 1e308)}, "'model_weight' holds numbers that no fit gives"),
        ({"global/model_bias": np.full(3, -1e308)}, "'model_bias' holds numbers that no fit gives"),
    ],
)
def test_a_last_layer_from_a_stranger_is_checked(change, words, tmp_path):
    from fedcal.base.store import read_tensors, write_tensors

    x, y, head = federation(200, 3, 4)
    fedcal.calibrate([(x, y)], "fed-head", head=head).save(tmp_path / "scaler")
    tensors, about = read_tensors(tmp_path / "scaler")
    write_tensors(tmp_path / "scaler", {k: v for k, v in (tensors | change).items() if v is not None}, about, False)
    with pytest.raises(FedCalError, match=words):
        Scaler.load(tmp_path / "scaler")


def test_a_file_cannot_ask_for_giant_rows():
    """A scaler's file names the number of features, and rows of that width are tried on it."""
    with pytest.raises(FedCalError, match="features must be at most 1000000"):
        get_method("fed-head:features=1000000000")


def test_string_labels_and_float16_features():
    x, y, head = federation(500, 3, 4)
    names = np.array(["cat", "dog", "fox"])
    scaler = fedcal.calibrate([(x.astype(np.float16), names[y])], "fed-head", head=head)
    assert scaler.classes == ("cat", "dog", "fox") and np.isfinite(scaler.predict_proba(x.astype(np.float16))).all()


X, Y, GIVEN_HEAD = federation(120, 3, 4)
BAD = {
    "give head=": lambda: fedcal.calibrate([(X, Y)], "fed-head"),
    "head must be torch.nn.Linear or a pair": lambda: fedcal.calibrate([(X, Y)], "fed-head", head=3),
    "its bias has shape": lambda: fedcal.calibrate([(X, Y)], "fed-head", head=(GIVEN_HEAD[0], np.zeros(4))),
    "head must be finite": lambda: fedcal.calibrate([(X, Y)], "fed-head", head=(GIVEN_HEAD[0] * np.nan, np.zeros(3))),
    "client 0: 3 features, where the head takes 4": lambda: fedcal.calibrate([(X[:, :3], Y)], "fed-head", head=GIVEN_HEAD),
    "must have shape (samples, features)": lambda: fedcal.calibrate([(X[:, 0], Y)], "fed-head", head=GIVEN_HEAD),
    "row 0 is not": lambda: fedcal.calibrate([(X * np.nan, Y)], "fed-head", head=GIVEN_HEAD),
    "labels must lie in 0..2": lambda: fedcal.calibrate([(X, Y + 9)], "fed-head", head=GIVEN_HEAD),
    "120 labels for 10 rows": lambda: fedcal.calibrate([(X[:10], Y)], "fed-head", head=GIVEN_HEAD),
    "unknown client 'b'": lambda: fedcal.calibrate({"a": (X, Y)}, "fed-head", head=GIVEN_HEAD, train={"b": (X, Y)}),
    "leave stream out": lambda: fedcal.calibrate({"a": (X, Y)}, "fed-head", head=GIVEN_HEAD, stream=True),
    "leave probs out": lambda: fedcal.calibrate([(X, Y)], "fed-head", head=GIVEN_HEAD, probs=True),
    "has no private form": lambda: fedcal.calibrate([(X, Y)], "fed-head", head=GIVEN_HEAD, privacy=Privacy(4, 1e-5)),
    "fed-ts takes logits": lambda: fedcal.calibrate([(X, Y)], "fed-ts", head=GIVEN_HEAD),
    "features=9, but the last layer takes 4": lambda: fedcal.calibrate([(X, Y)], "fed-head", head=GIVEN_HEAD, features=9),
    "no samples": lambda: fedcal.calibrate([(X[:0], Y[:0])], "fed-head", head=GIVEN_HEAD),
}  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_line(words):
    with pytest.raises(FedCalError) as refused:
        BAD[words]()
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_a_scaler_of_features_says_so():
    scaler = fedcal.calibrate([(X, Y)], "fed-head", head=GIVEN_HEAD)
    with pytest.raises(FedCalError, match="this scaler was fitted on 4 features and their head; you gave 3 logits"):
        scaler.predict_proba(X[:, :3])
    with pytest.raises(FedCalError, match="you gave 9 columns"):
        scaler.predict_proba(np.zeros((2, 9)))
    with pytest.raises(FedCalError, match="the model ends with Softmax, not with"):
        fedcal.CalibratedModel(nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), scaler)
    with pytest.raises(FedCalError, match="last layer is not the one that this scaler was fitted on"):
        fedcal.CalibratedModel(nn.Linear(7, 3), scaler)(torch.zeros(2, 7))


def test_a_policy_refuses_heads_that_no_fit_comes_to():
    from conversations import make_samples, suited
    from fedcal.exact.head_queries import HeadSums
    from fedcal.exact.queries import Points
    from fedcal.protocol.bounds import check_bounds
    from fedcal.protocol.client import Client

    spec = "fed-head:features=4"
    client = Client(spec, *suited(spec, make_samples([90], 3))[0], policy=Policy())
    basis = np.zeros((1, 5))
    for at, basis_given, words in (
        (1e7 * np.ones((1, 16)), basis, "a head that makes logits larger than 10000"),
        (np.ones((1, 15)), basis, "head parameters of shape"),
        (np.ones((1, 16)), np.zeros((9, 5)), "a Hessian in more directions"),
    ):
        with pytest.raises(FedCalError, match=words):
            check_bounds(HeadSums((Points(HEAD, -1, "none", at),), basis_given), 1.0, 3, client.samples)


# --- conformal sets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coverage", ["marginal", "class", "site"])
def test_sets_cover_and_their_samples_are_not_fitted_on(coverage, tmp_path):
    """Three federations of six clients, whose heads are fitted on training samples too; on new samples."""
    hits, total = 0, 0
    for seed in range(3):
        x, y, head = federation(5400, seed=seed)
        clients, train = dealt(x[:900], y[:900], 6, seed), dealt(x[900:1200], y[900:1200], 6, seed)
        scaler = fedcal.calibrate(clients, "fed-head", head=head, train=train, alpha=0.05, coverage=coverage)
        sets = scaler.predict_set(x[1200:])
        assert sets.shape == (4200, 4) and sets.any(1).all() and 0.25 < sets.mean() < 0.9
        hits, total = hits + sets[np.arange(4200), y[1200:]].sum(), total + 4200
        held = [held_out(scaler._logits(part, None), labels) for part, labels in clients]
        assert scaler.params["set_counts"].sum() == sum(one.sum() for one in held)
        kept = [(part[~out], labels[~out]) for (part, labels), out in zip(clients, held, strict=True)]
        alone = fedcal.calibrate(kept, "fed-head", head=head, train=train)
        assert all(np.array_equal(alone.params[name], scaler.params[name]) for name in alone.params)
        assert np.allclose(alone.personal["3"]["shift"], scaler.personal["3"]["shift"])
    assert 0.94 < hits / total < 0.98
    scaler.save(tmp_path / "scaler.safetensors")
    again = Scaler.load(tmp_path / "scaler.safetensors")
    assert (again.predict_set(x[1200:]) == sets).all() and again.method == scaler.method
    scaler.welcome("new", x[1200:1400], y[1200:1400])
    assert scaler.predict_set(x[1400:], client="new").any(1).all()


@pytest.mark.parametrize("scale", [1.0, 1e-7])
def test_sets_of_clients_with_a_policy(scale):
    """Small features have large heads; and none of the samples that are held out is told apart."""
    x, y, head = federation(1200, scale=scale)
    rows = join(x @ head[0].T, x)
    rows[1000:, -1] = 1.0
    server = Server("fed-head:features=6,alpha=0.1,coverage=site", 4)
    order = np.random.default_rng(0).permutation(1200)
    clients = {
        str(i): Client(server.plan.method, rows[part], y[part], policy=Policy())
        for i, part in enumerate(np.split(order, [300, 800]))
    }
    while (request := server.request) is not None:
        server.receive({name: client.reply(request) for name, client in clients.items()})
    assert server.scaler.params["set_counts"] == pytest.approx(200, abs=3) and HEAD in server.scaler.params
    asked = SetScores({HEAD: server.scaler.params[HEAD] * 1e9})
    other = Client(server.plan.method, rows, y, policy=Policy())
    with pytest.raises(FedCalError, match="a head that makes logits larger"):
        other.reply(Request("f", 1, asked))
