"""Scalers and states from files: what no fit gives is refused in one line, though its digest fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedcal
from conversations import LOGIT_METHODS
from fedcal import FedCalError, Scaler
from fedcal.base.codec import pack, unpack
from fedcal.protocol import Client, Server
from fedcal.protocol.valid import check_client_state, check_params, check_personal
from tamper import reseal

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=(200, 3))
LABELS = (LOGITS / 2 + RNG.gumbel(size=LOGITS.shape)).argmax(1)
QUICK = {"fedcal": "rounds=1,steps=3", "fed-op": "rounds=3", "lr-ts": "rounds=2"}
Tensors = dict[str, np.ndarray]


def spec_of(name: str) -> str:
    quick = QUICK.get(name) or (QUICK["fedcal"] if name.startswith("fedcal-") and name != "fedcal-plus" else "")
    return f"{name}:{quick}" if quick else name


@pytest.mark.parametrize("name", LOGIT_METHODS)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.filterwarnings("ignore:fed-ts. the fit ended")
def test_what_every_method_fits_is_valid(name: str, scale: float) -> None:
    clients = {"a": (scale * LOGITS[:120], LABELS[:120]), "b": (scale * LOGITS[120:], LABELS[120:])}
    fitted = fedcal.calibrate(clients, spec_of(name), probs=False)
    check_params(fitted.method, fitted.params, 3)
    for personal in fitted.personal.values():
        check_personal(fitted.method, personal, fitted.params, 3)


def saved(tmp_path: Path, method: str, edit: Callable[[Tensors, dict[str, Any]], Any]) -> Path:
    path = tmp_path / "x.safetensors"
    fedcal.calibrate({"a": (LOGITS, LABELS)}, method).save(path)
    tensors, about = unpack(path.read_bytes())
    edit(tensors, about)
    path.write_bytes(pack(tensors, about))
    return path


T = "global/temperature"
BAD: dict[str, tuple[str, Callable[[Tensors, dict[str, Any]], Any], str]] = {
    "T = 0": ("avg-t", lambda t, _: t[T].fill(0), "a temperature of 0"),
    "T < 0": ("fed-ts", lambda t, _: t[T].fill(-100), "a temperature of -100"),
    "T = NaN": ("avg-t", lambda t, _: t[T].fill(np.nan), "'temperature' holds NaN"),
    "T as a vector": ("avg-t", lambda t, _: t.update({T: np.ones(3)}), "has the shape (3,), not ()"),
    "T as integers": ("avg-t", lambda t, _: t.update({T: np.ones((), np.int64)}), "is int64"),
    "T gone": ("avg-t", lambda t, _: t.pop(T), "cannot use these tensors"),
    "another name": ("avg-t", lambda t, _: t.update({"global/x": np.ones(1)}), "avg-t has no 'x'"),
    "a tensor elsewhere": ("avg-t", lambda t, _: t.update(x=np.ones(1)), "its clients are not those of its tensors"),
    "a personal part of nobody": ("avg-t", lambda _, a: a.update(clients=[]), "its clients are not those"),
    "a client twice": ("avg-t", lambda _, a: a.update(clients=["a", "a"]), "its clients are not those"),
    "clients a text": ("avg-t", lambda _, a: a.update(clients="a"), "clients should be a list, not 'a'"),
    "clients lists": ("avg-t", lambda _, a: a.update(clients=[["a"]]), "clients[0] should be a text"),
    "a client that steers": ("avg-t", lambda _, a: a.update(clients=["\x1b[2J"]), "cannot be shown"),
    "a personal NaN": ("avg-t", lambda t, _: t["personal/a/temperature"].fill(np.nan), "client a: 'temperature'"),
    "classes a million million": ("fed-ts", lambda _, a: a.update(n_classes=10**12), "n_classes should lie within"),
    "classes of other types": ("fed-ts", lambda _, a: a.update(classes=[["a"], "b", "c"]), "classes must be"),
    "other classes": ("fed-bias", lambda _, a: a.update(n_classes=4), "'bias' has the shape (4,), not (5,)"),
    "a net of other sizes": ("fedcal-small", lambda _, a: a["options"].update(hidden=4000), "'w1' has the shape"),
    "a net beyond measure": ("fedcal-small", lambda _, a: a["options"].update(hidden=10**8), "hidden must be at most"),
    "a map that falls": (
        "fed-hist",
        lambda t, _: t["global/hist"].__imul__(-1),
        "'hist' holds numbers that no fit gives",
    ),
    "no distribution": ("fedcal-plus", lambda t, _: t["global/prior"].fill(1), "'prior' holds numbers"),
    "a shift of other classes": (
        "fedcal-plus",
        lambda t, _: t.update({"personal/a/shift": np.zeros(2)}),
        "client a: fedcal-plus gives a client no shift of that shape",
    ),
    "a scale beyond measure": (
        "fed-vector",
        lambda t, _: t["global/vector"].put([0, 2], [1e308, 1e100]),
        "'vector' holds numbers that no fit gives",
    ),
    "a matrix beyond measure": ("fed-matrix", lambda t, _: t["global/matrix"].fill(1e300), "'matrix' holds numbers"),
    "a shift beyond measure": ("fed-bias", lambda t, _: t["global/bias"].put(0, -5e306), "'bias' holds numbers"),
    "a slope beyond measure": (
        "lr-ts",
        lambda t, _: t["global/weight"].put([1, 2], [1.7e308, -1e308]),
        "'weight' holds numbers that no fit gives",
    ),
    "a net of numbers beyond measure": ("fed-op", lambda t, _: t["global/w1"].fill(1e300), "'w1' holds numbers"),
    "a field more": ("avg-t", lambda _, a: a.update(more=1), "should have no 'more'"),
    "probs a number": ("avg-t", lambda _, a: a.update(probs=1), "probs should be true or false"),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_scalers_that_no_fit_gives(case: tuple[str, Any, str], tmp_path: Path) -> None:
    method, edit, words = case
    if method in ("fedcal-small", "fed-op", "lr-ts"):
        method = spec_of(method)
    path = saved(tmp_path, method, edit)
    with pytest.raises(FedCalError) as error:
        Scaler.load(path)
    assert words in str(error.value) and str(path) in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize(
    "text", ["[" * 10_000 + "]" * 10_000, "9" * 5_000, "Infinity", "NaN", "1e999", '{"a":' * 10_000]
)
def test_metadata_that_a_parser_trips_over(text: str, tmp_path: Path) -> None:
    path = saved(tmp_path, "avg-t", lambda *_: None)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    outer = json.loads(data[8 : 8 + size])
    outer["__metadata__"]["fedcal"] = outer["__metadata__"]["fedcal"].replace('"n_classes": 3', f'"n_classes": {text}')
    header = json.dumps(outer, separators=(",", ":")).encode()
    path.write_bytes(reseal(len(header).to_bytes(8, "little") + header + data[8 + size :]))
    with pytest.raises(FedCalError, match=r"x.safetensors is damaged") as error:
        Scaler.load(path)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("method", ["fed-bias", "avg-t:rounds=3,average=latest"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_server_state_that_is_not_finite_is_refused(method: str, value: float) -> None:
    server = Server(method, 3)
    client = Client(method, LOGITS, LABELS)
    assert server.request
    server.receive({"a": client.reply(server.request)})
    state, kept = server.state_dict(), client.state_dict()
    Server(method, 3).load_state_dict(state)
    next(iter(state["tensors"].values())).flat[0] = value
    with pytest.raises(FedCalError, match="holds NaN or infinity"):
        Server(method, 3).load_state_dict(state)
    check_client_state(kept)
    for name in kept["tensors"]:
        with pytest.raises(FedCalError, match="holds NaN or infinity"):
            check_client_state(kept | {"tensors": kept["tensors"] | {name: np.full((1,), value)}})
    for key, odd in (("round", "x"), ("round", -1), ("federation", []), ("order", [[], [], []]), ("spent", "x")):
        with pytest.raises(FedCalError, match="the client's state is damaged"):
            check_client_state(kept | {"about": kept["about"] | {key: odd}})
