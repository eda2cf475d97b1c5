"""Runs that look like real ones: probabilities are simulated, and every number follows from them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedcal.measure.paired import Paired

BINS = 15
METHODS = {  # name: (summary, logits too large by, shift of the classes, what leaves a client, bytes up)
    "uncal": ("no calibration", 2.4, 0.0, "nothing", 0),
    "val-ts": ("one temperature on the pooled calibration data", 1.02, 0.0, "logits and labels", 18_000),
    "ens": ("the ensemble of all clients' temperatures", 1.25, 0.0, "one temperature", 8),
    "avg-t": ("the mean of the clients' temperatures", 0.75, 0.0, "one temperature", 8),
    "lr-ts": ("a linear model of the temperature", 3.4, 0.0, "a weight vector", 88),
    "fedcal": ("order-preserving scalers, averaged after weight matching", 1.08, 0.0, "a scaler", 22_056),
    "fedcal-no-wm": ("order-preserving scalers, plainly averaged", 1.3, 0.0, "a scaler", 22_056),
    "fed-ts": ("one temperature, fitted exactly from sums", 1.02, 0.0, "loss, gradient, Hessian", 24),
    "fed-bias": ("temperature and class bias, from sums", 1.0, 0.2, "loss, gradient, Hessian", 1_056),
}


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def bins(p, y):
    confidence, hit = p.max(1), p.argmax(1) == y
    b = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    # count, confidence, hits, variance
    return [np.bincount(b, w, BINS) for w in (None, confidence, hit, confidence * (1 - confidence))]


def ece(p, y):
    _, confidence, hits, _ = bins(p, y)
    return float(np.abs(confidence - hits).sum() / len(y))


def floor(p, y):
    """Expected ECE of a perfectly calibrated model: the mean of |a normal| in each bin."""
    return float(np.sqrt(2 / np.pi * bins(p, y)[3]).sum() / len(y))


def scores(p, y, rng):
    rank = np.argsort(-p, 1)
    again = [ece(p[i], y[i]) for i in rng.integers(0, len(y), (40, len(y)))] if rng else []
    e, f, onehot = ece(p, y), floor(p, y), np.eye(p.shape[1])[y]
    return {
        "n": len(y),
        "accuracy": float((rank[:, 0] == y).mean()),
        "top3": float((rank[:, :3] == y[:, None]).any(1).mean()) if p.shape[1] > 3 else None,
        "ece": e,
        "ece_floor": f,
        "ece_low": float(min(e, np.quantile(again, 0.025))) if again else None,
        "ece_high": float(max(e, np.quantile(again, 0.975))) if again else None,
        "ece_debiased": max(e - f, 0.0),
        "classwise_ece": 2 * e / p.shape[1],
        "nll": float(-np.log(p[np.arange(len(y)), y] + 1e-12).mean()),
        "brier": float(((p - onehot) ** 2).sum(1).mean()),
        "confidence": float(p.max(1).mean()),
    }


def reliability(p, y):
    count, confidence, hits, variance = bins(p, y)
    safe = np.maximum(count, 1)
    mean, spread = confidence / safe, 1.96 * np.sqrt(variance) / safe

    def listed(values):
        return [float(v) if n else None for v, n in zip(values, count, strict=True)]

    return {
        "edges": np.linspace(0, 1, BINS + 1).tolist(),
        "count": [int(n) for n in count],
        "confidence": listed(mean),
        "accuracy": listed(hits / safe),
        "low": listed(np.clip(mean - spread, 0, 1)),
        "high": listed(np.clip(mean + spread, 0, 1)),
    }


def over_clients(p, y, owner, names):
    """The means over clients, and the lists they come from; a client without test samples has None."""
    held = [owner == c for c in range(len(names))]
    each = [scores(p[mine], y[mine], None) if mine.any() else None for mine in held]
    seen = [s for s in each if s]
    means = {k: None if seen[0][k] is None else float(np.mean([s[k] for s in seen])) for k in seen[0]}
    worst = max((s["ece"], n) for s, n in zip(each, names, strict=True) if s)
    keys = ("n", "ece", "ece_floor", "accuracy")
    lists = {k: [s[k] if s else None for s in each] for k in keys}
    return means | {"worst_ece": worst[0], "worst_client": worst[1]}, lists


def make_results(data, classes, clients, n_test, beta, spread, seed=0, methods=METHODS):
    rng = np.random.default_rng(seed)
    k, c = len(classes), len(clients)
    prior = rng.dirichlet(np.full(k, beta), c)
    counts = np.stack([rng.multinomial(int(n), q) for n, q in zip(rng.integers(40, 160, c), prior, strict=True)])
    owner = rng.integers(0, c - 1 if c > 4 else c, n_test)  # the last of many clients has no test samples
    truth = rng.normal(0, spread, (n_test, k)) + np.log(prior[owner] + 0.02)
    y = (softmax(truth).cumsum(1) > rng.random((n_test, 1))).argmax(1)
    learnt = truth + rng.normal(0, 0.4, (c, k))[owner]  # the model is a little off, differently at each client
    entries, tops = {}, {}
    for name, (summary, sharp, noise, leaves, up) in methods.items():
        z = sharp * (learnt + noise * rng.normal(size=(1, k)))
        p = softmax(z)
        tops[name] = p.max(1), p.argmax(1) == y
        tuned = np.ones(c) if name == "uncal" else rng.normal(1, 0.1, c) / sharp**0.8
        local, local_each = over_clients(p, y, owner, clients)
        own, own_each = over_clients(softmax(z * tuned[owner, None]), y, owner, clients)
        entries[name] = {
            "summary": summary,
            "global": scores(p, y, rng),
            "local": local,
            "own": own,
            "clients": {"local": local_each, "own": own_each},
            "reliability": reliability(p, y),
            "cost": {
                "leaves": leaves,
                "bytes_up": up,
                "bytes_down": up,
                "bytes_up_total": 30 * up,
                "bytes_down_total": 30 * up,
                "rounds": 30 if up > 1000 else int(up > 0),
            },
            "notes": {"permuted_share": 0.0, "degenerate_clients": 2} if name == "fedcal" else {},
        }
    paired = Paired.of(tops)
    for name, entry in entries.items():
        against = {other: list(paired.difference(name, other)) for other in entries if other != name}
        entry["global"]["ece_against"] = against
    share, base = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    kl = (share * np.log(np.where(share > 0, share / np.maximum(base, 1e-12), 1))).sum(1)
    config = {
        "data": data, "model": "cnn", "partition": "dirichlet", "beta": beta, "clients": c,
        "clients_per_round": min(5, c), "rounds": 30, "local_epochs": 3, "batch_size": 32, "lr": 0.01,
        "momentum": 0.9, "scaler": "op-mlp", "seed": seed,
    }  # fmt: skip
    return {
        "schema": 1, "fedcal": "0.1.0", "device": "cpu", "torch": "2.13.0", "config": config,
        "data": {
            "name": data, "classes": classes, "clients": clients, "train_counts": counts.tolist(),
            "cal_counts": (counts // 8).tolist(), "test_counts": (counts // 4).tolist(),
            "G": float(kl.max()), "kl": kl.tolist(), "parameters": 123_456,
        },
        "methods": entries,
    }  # fmt: skip


def make_rounds(seed=0, rounds=30):
    rng = np.random.default_rng(seed)
    fade = np.exp(-np.arange(1, rounds + 1) / 8)
    return [
        {
            "round": t + 1,
            "loss": float(0.2 + 2 * f + rng.normal(0, 0.02)),
            "accuracy": float(0.93 - 0.7 * f + rng.normal(0, 0.01)),
            "ece": float(0.1 + 0.15 * f * rng.random()),
            "clients": sorted(rng.choice(20, 5, replace=False).tolist()),
            "seconds": 0.1,
        }
        for t, f in enumerate(fade)
    ]


def save_run(folder: Path, results, rounds) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(results["config"]))
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds))
    return folder


def make_digits():
    return make_results("digits", [str(i) for i in range(10)], [str(i) for i in range(20)], 450, 0.5, 6.0)


def make_heart():
    few = {name: METHODS[name] for name in ("uncal", "ens", "fedcal")}
    sites = ["cleveland", "hungarian", "switzerland", "va"]
    return make_results("heart", ["healthy", "disease"], sites, 184, 2.0, 1.6, 1, few)


def make_stress(methods=METHODS):
    classes, clients = [f"class-{i}" for i in range(100)], [str(i) for i in range(100)]
    return make_results("cifar100", classes, clients, 10_000, 0.3, 2.5, 2, methods)


@pytest.fixture(scope="session")
def digits():
    return make_digits()


@pytest.fixture(scope="session")
def heart():
    return make_heart()


@pytest.fixture(scope="session")
def stress():
    return make_stress({name: METHODS[name] for name in ("uncal", "fedcal")})


@pytest.fixture(scope="session")
def rounds():
    return make_rounds()


@pytest.fixture
def run_dir(tmp_path, digits, rounds):
    return save_run(tmp_path / "run", digits, rounds)


@pytest.fixture(scope="session")
def write_run():
    return save_run
