"""Scalers: a short repr, names and classes; what is saved comes back, and damage is told in one line."""

import json
import re
import subprocess
import sys
import time

import numpy as np
import pytest

import fedcal
from fedcal import FedCalError, Scaler
from fedcal.base.store import read_tensors, write_tensors

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=(200, 3))
LABELS = (LOGITS / 2 + RNG.gumbel(size=LOGITS.shape)).argmax(1)
WORDS = np.array(["cat", "dog", "owl"])
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


@pytest.mark.parametrize("classes", [["cat", "dog", "owl"], [1, 5, 7], [0.5, 1.5, 2.5], None])
def test_what_is_saved_comes_back(classes, tmp_path):
    labels = LABELS if classes is None else np.array(classes)[LABELS]
    fitted = fedcal.calibrate({"a": (PROBS, labels)}, probs=True, classes=classes)
    fitted.save(tmp_path / "x.safetensors")
    again = Scaler.load(tmp_path / "x.safetensors")
    assert (again.method.name, again.classes, again.probs) == ("fedcal-plus", tuple(classes or ()), True)
    assert again.method == fitted.method and again.n_classes == 3
    for client in (None, "a"):
        assert np.array_equal(again.predict_proba(PROBS, client), fitted.predict_proba(PROBS, client))
    again.welcome("b", PROBS, labels)


def test_nothing_is_saved_that_cannot_be_loaded(tmp_path):
    """A name that a terminal cannot show, or that has no end, is refused before the fit, and at the latest when saving."""
    for name in ("a\nb", "\u202eb", "\x1b[31m", "x" * 1001):
        why = "1001 characters: give it at most 1000" if len(name) > 1000 else "cannot be shown: rename it"
        for clients, stream in (({name: (LOGITS, LABELS)}, False), ({name: (LOGITS, LABELS)}, True)):
            with pytest.raises(FedCalError, match=why):
                fedcal.calibrate(clients, "fed-ts", stream=stream)
        fitted = fedcal.calibrate({"a": (LOGITS, LABELS)})
        with pytest.raises(FedCalError, match=why):
            fitted.welcome(name, LOGITS, LABELS)
        fitted.personal[name] = {}
        with pytest.raises(FedCalError, match="the scaler cannot be saved"):
            fitted.save(tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_clients_whose_names_hold_slashes(tmp_path):
    half = LABELS < 1
    names = {"a": half, "a/b": ~half, "a%2Fb": LABELS == 2, "50 %": LABELS == 1}
    fitted = fedcal.calibrate({name: (LOGITS[rows], LABELS[rows]) for name, rows in names.items()})
    fitted.save(tmp_path / "x.safetensors")
    again = Scaler.load(tmp_path / "x.safetensors")
    for name in names:
        assert np.array_equal(again.predict_proba(LOGITS, name), fitted.predict_proba(LOGITS, name))


def test_scalers_of_many_clients_are_read_in_little_time(tmp_path):
    """All tensors were looked through for each client: 5 s for 8,000 clients."""
    fitted = fedcal.calibrate({"a": (LOGITS, LABELS)}, "avg-t")
    fitted.personal = {f"client {i}": {"temperature": np.array(1 + i / 20_000)} for i in range(20_000)}
    fitted.save(tmp_path / "x.safetensors")
    began = time.process_time()
    again = Scaler.load(tmp_path / "x.safetensors")
    assert time.process_time() - began < 5
    assert again.personal.keys() == fitted.personal.keys()
    assert all(again.personal[name] == fitted.personal[name] for name in ("client 0", "client 19999"))


def rewrite(path, **changes):
    tensors, about = read_tensors(path)
    about = {key: value for key, value in (about | changes).items() if value != "gone"}
    write_tensors(path, tensors, json.loads(json.dumps(about)))


def test_files_of_earlier_versions_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    fedcal.calibrate([(LOGITS, LABELS)], "avg-t").save(path)
    rewrite(path, schema=1)
    with pytest.raises(FedCalError, match="not a scaler that this fedcal knows"):
        Scaler.load(path)


def test_a_service_needs_few_packages(tmp_path):
    """As docs/serve.md says: NumPy, safetensors and threadpoolctl."""
    path = tmp_path / "x.safetensors"
    fedcal.calibrate({"a": (LOGITS, LABELS)}, alpha=0.2, coverage="site").save(path)
    absent = ("torch", "scipy", "sklearn", "pooch", "rich", "typer", "matplotlib", "jinja2")
    code = f"""
import sys
import time
sys.modules |= dict.fromkeys({absent!r})
import fedcal, numpy as np
scaler, logits = fedcal.Scaler.load({str(path)!r}), np.eye({LOGITS.shape[1]})
print(scaler.predict_proba(logits, client="a").shape == scaler.predict_set(logits).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


@pytest.mark.parametrize("changes", [{"classes": ["a"]}, {"classes": "abc"}, {"classes": [[1]] * 3}, {"probs": "yes"}])
def test_damage_is_one_line(changes, tmp_path):
    path = tmp_path / "x.safetensors"
    fedcal.calibrate([(LOGITS, LABELS)], "avg-t").save(path)
    rewrite(path, **changes)
    with pytest.raises(FedCalError, match="is damaged"):
        Scaler.load(path)


def test_an_unknown_client_is_one_sentence():
    scaler = fedcal.calibrate({"big": ([[2.0, 1.0], [0.0, 1.0]] * 20, [0, 1] * 20)}, "fedcal-plus", probs=False)
    for name, hint in (("bgi", "did you mean 'big'?"), ("zzz", "choose from big")):
        with pytest.raises(FedCalError, match=re.escape(f"{hint} (leave it out for the global scaler, or make")):
            scaler.apply([[1.0, 2.0]], name)
