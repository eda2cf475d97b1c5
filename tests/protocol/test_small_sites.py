"""What honest sums tell a curious server of a site with few samples: what docs/privacy.md and docs/threat-model.md say."""

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from fedcal.base.folds import FEWEST, held_out
from fedcal.exact.head import HEAD, HEAD_ALL
from fedcal.exact.head_queries import HeadStart, HeadSums
from fedcal.exact.head_samples import join
from fedcal.exact.linear import unpack_symmetric
from fedcal.exact.prepared import ALL
from fedcal.exact.queries import Points
from fedcal.methods import get_method
from fedcal.methods.sets import SetScores, WithSets
from fedcal.monitor.alternatives import calibration_sums
from fedcal.protocol import Client, Policy, Request

FEDERATION = "0" * 32


def samples(n, k=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    return rng.normal(size=(n, k)) + 1.5 * np.eye(k)[y], y


def ask(client, query):
    return client.reply(Request(FEDERATION, client.round + 1, query)).content


@pytest.mark.parametrize("coverage", ["marginal", "class"])
def test_a_histogram_of_scores_shows_each_held_out_samples_score(coverage):
    """Five held-out samples of 25: the probability of each label, to within a bin; by class also the label."""
    logits, labels = samples(25)
    method = get_method(f"fed-ts:alpha=0.1,coverage={coverage}")
    assert isinstance(method, WithSets)
    told = ask(Client(method, logits, labels, policy=Policy()), SetScores({"temperature": np.array(1.0)}))
    edges = method.sets.edges(3)
    rows, bins = np.nonzero(told["set_thresholds"])
    held = held_out(logits, labels)
    p = np.exp(logits[held]) / np.exp(logits[held]).sum(1, keepdims=True)
    scores = 1 - p[np.arange(FEWEST), labels[held]]
    order = np.lexsort((scores, labels[held])) if coverage == "class" else np.argsort(scores)
    assert ((edges[bins] < scores[order]) & (scores[order] <= edges[bins + 1])).all()
    assert coverage == "marginal" or rows.tolist() == labels[held][order].tolist()


def test_a_site_with_fewer_held_out_samples_than_its_policy_wants_shows_no_score():
    client = Client("fed-ts:alpha=0.1", *samples(25), policy=Policy(min_count=6))
    assert not ask(client, SetScores({"temperature": np.array(1.0)}))["set_thresholds"].any()


def head_client(calibrating, trained, d=16, k=3, policy=None):
    rng = np.random.default_rng(1)
    logits, labels = samples(calibrating + trained, k)
    features = rng.normal(size=(len(labels), d))
    rows = join(logits, features)
    rows[calibrating:, -1] = 1.0
    return Client(f"fed-head:features={d}", rows, labels, policy=policy or Policy()), features


def test_the_second_moment_of_fewer_samples_than_features_tells_who_is_among_them():
    """They span a space in which no other feature vector lies."""
    client, features = head_client(8, 0)
    moment = unpack_symmetric(ask(client, HeadStart())["moment"])
    values, vectors = np.linalg.eigh(moment)
    assert (values > 1e-9 * values.max()).sum() == 8
    space = vectors[:, -8:]

    def outside(x):
        x = np.append(x, 1.0)
        return np.linalg.norm(x - space @ (space.T @ x))

    assert max(map(outside, features)) < 1e-6
    assert min(outside(x) for x in np.random.default_rng(2).normal(size=(100, 16))) > 0.5


def test_training_samples_are_told_apart_from_the_others_and_few_are_not_told():
    """Heads with and without training samples differ by these: of one alone, that is its features."""

    def stolen(client):
        at = np.zeros((1, 1 + 3 * 17))
        query = HeadSums((Points(HEAD, ALL, "none", at), Points(HEAD_ALL, ALL, "none", at)), np.zeros((1, 17)))
        found = ask(client, query)
        return (found["1/grad"] - found["0/grad"])[0, 1:].reshape(3, 17)

    client, features = head_client(20, 1, policy=Policy(min_count=1))
    row = stolen(client)[0]
    assert np.allclose(row[:-1] / row[-1], features[-1])  # the gradient is (p − e) times (features, 1)
    guarded, _ = head_client(20, 4)
    assert not stolen(guarded).any() and not ask(guarded, HeadStart())["trained"].any()
    assert len(guarded.samples.labels) == 20
    assert stolen(head_client(20, 5)[0]).any()


def test_the_sums_of_a_small_batch_of_the_monitor_give_its_predictions():
    """Twelve sums of five samples and two classes: solved for the five probabilities."""
    z = torch.tensor([-1.1, 0.3, 0.9, 2.0, -0.4], dtype=torch.float64)
    y = torch.tensor([0, 0, 1, 1, 1])

    def sums(scores):
        scores = torch.as_tensor(scores)
        return calibration_sums(torch.stack([torch.zeros_like(scores), scores], 1), y, 0.25).numpy()

    told = sums(z)
    rng = np.random.default_rng(0)
    fits = [least_squares(lambda s: sums(s) - told, rng.normal(size=5), xtol=1e-15, ftol=1e-15) for _ in range(20)]
    best = min(fits, key=lambda fit: fit.cost)
    found = np.concatenate([np.sort(best.x[:2]), np.sort(best.x[2:])])  # their order is not told
    assert np.allclose(found, np.concatenate([np.sort(z[:2]), np.sort(z[2:])]), atol=0.01)
