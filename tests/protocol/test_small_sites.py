"""What honest sums tell a curious server of a site with few samples: what docs/privacy.md and docs/threat-model.md say."""

import numpy as np
import pytest
import torch
from scipy.optimize import least_squares

from fedcal import FedCalError
from fedcal.base.folds import FEWEST, held_out
from fedcal.exact.head import HEAD, HEAD_ALL
from fedcal.exact.head_queries import HeadStart, HeadSums
from fedcal.exact.head_samples import join
from fedcal.exact.linear import unpack_symmetric
from fedcal.exact.prepared import ALL
from fedcal.exact.queries import Points
from fedcal.methods.sets import SetScores
from fedcal.monitor.alternatives import calibration_sums
from fedcal.protocol import Client, Policy, Request

FEDERATION = "0" * 32


def samples(n, k=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(k, size=n)
    return rng.normal(size=(n, k)) + 1.5 * np.eye(k)[y], y


def ask(client, query):
    return client.reply(Request(FEDERATION, client.round + 1, query)).content


def scores_of(logits, labels):
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return 1 - p[np.arange(len(labels)), labels]


def shown(client, params=None):
    """The scores that a client's histograms show, to within a bin: one array for each histogram."""
    told = ask(client, SetScores(params or {"temperature": np.array(1.0)}))["set_thresholds"]
    edges = client.method.sets.edges(3)
    middles = (edges[:-1] + edges[1:]) / 2
    return [np.repeat(middles, row.astype(int)) for row in told]


def test_a_histogram_of_scores_shows_each_held_out_samples_score():
    """Five held-out samples of 25: the probability of each label, to within a bin."""
    logits, labels = samples(25)
    held = held_out(logits, labels)
    (found,) = shown(Client("fed-ts:alpha=0.1", logits, labels, policy=Policy()))
    assert len(found) == FEWEST and np.allclose(found, np.sort(scores_of(logits[held], labels[held])), atol=0.01)


def test_a_class_of_few_held_out_samples_is_not_shown_by_itself():
    """Rare classes share a histogram; one of fewer than `min_count` is not sent. What is shown is right."""
    logits, labels = samples(200)
    labels = np.where(labels == 0, np.arange(200) % 3, labels)  # fewer of class 0
    held = held_out(logits, labels)
    scores, y = scores_of(logits[held], labels[held]), labels[held]
    counts = np.bincount(y, minlength=3).tolist()
    assert counts[0] == min(counts) and len(set(counts)) == 3
    first, second, third = sorted(counts)
    for least, hidden in ((first, 0), (first + 1, 1), (second + 1, 2), (third + 1, 3)):
        client = Client("fed-ts:coverage=class", logits, labels, policy=Policy(min_count=least))
        *rows, rare = shown(client)
        together = [count for count in counts if count < least]
        assert len(together) == hidden
        for k, row in enumerate(rows):
            expected = np.sort(scores[y == k]) if counts[k] >= least else np.zeros(0)
            assert len(row) == len(expected) and np.allclose(row, expected, atol=0.01)
        assert len(rare) == (sum(together) if sum(together) >= least else 0)
        assert all(not 0 < len(row) < least for row in (*rows, rare))


def test_a_positive_class_of_few_held_out_samples_is_not_shown():
    logits, labels = samples(200)
    count = int((labels[held_out(logits, labels)] == 1).sum())
    for least, expected in ((count, count), (count + 1, 0)):
        (row,) = shown(Client("fed-ts:positive=1", logits, labels, policy=Policy(min_count=least)))
        assert len(row) == expected


def test_scores_under_maps_of_the_servers_choice_tell_nothing_of_a_class_of_one():
    """A map that hides one class would leave the difference of two logits; it may ask once per beginning, four times."""
    logits, labels = samples(25, seed=6)
    assert (labels[held_out(logits, labels)] == 0).sum() == 1
    client = Client("fed-matrix:alpha=0.1,coverage=class", logits, labels, policy=Policy())
    for hidden in (1, 2, 1, 2):
        matrix = np.eye(3, 4)
        matrix[hidden, 3] = -1e3 - client.round  # another request each time
        *rows, rare = shown(client, {"matrix": matrix.flatten()})
        assert not any(map(len, rows)) and len(rare) == FEWEST
    with pytest.raises(FedCalError, match="more often than it needs"):
        shown(client, {"matrix": np.eye(3, 4).flatten()})


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
