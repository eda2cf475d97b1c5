"""Bad input: one line that says what is wrong, where and what to do. Nothing is written, nothing is lost."""

from __future__ import annotations

import gzip
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fedcal
from fedcal import Config, FedCalError, Reliability
from fedcal.base.store import read_json, write_json
from fedcal.cli.main import main
from fedcal.data.sources import SOURCES
from fedcal.nets.mlp import init_mlp

LOGITS = np.random.default_rng(0).normal(size=(12, 3))
LABELS = np.arange(12) % 3
PROBS = np.full((12, 3), 1 / 3)
WORDS = np.array(["cat", "dog", "owl"])
TINY = Config(model="logistic", clients=4, rounds=2, method=("uncal", "avg-t"), checkpoint_every=1)


def spoilt(array: np.ndarray, value: Any) -> np.ndarray:
    """The array in floating point with one value replaced, the second."""
    out = array.astype(float)
    out.reshape(-1)[1] = value
    return out


def calibrate(logits: Any = LOGITS, labels: Any = LABELS, method: Any = "avg-t", **options: Any) -> None:
    fedcal.calibrate([(logits, labels)], method, **options)


def net(hidden: int) -> dict[str, torch.Tensor]:
    return init_mlp(3, hidden, torch.Generator().manual_seed(0))


def cases(table: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("case", table.values(), ids=table.keys())


def assert_refused(call: Callable[[], Any], word: str) -> None:
    with pytest.raises(FedCalError) as caught:
        call()
    message = str(caught.value)
    assert word in message
    assert len(message.splitlines()) == 1


# --- Python: users' own logits -------------------------------------------------------------------------------------

LOGITS_AND_LABELS: dict[str, tuple[Callable[[], Any], str]] = {
    "logits of two classes, labels of three": (lambda: calibrate(LOGITS[:, 0]), "client 0: labels must lie in 0..1"),
    "logits 3-D": (lambda: calibrate(LOGITS[None]), "not (1, 12, 3)"),
    "logits K=0": (lambda: calibrate(LOGITS[:, :0]), "not (12, 0)"),
    "logits scalar": (lambda: calibrate(0.5), "not ()"),
    "logits None": (lambda: calibrate(None), "numeric array"),
    "logits NaN": (lambda: calibrate(spoilt(LOGITS, np.nan)), "row 0 holds NaN or infinity"),
    "logits inf": (lambda: calibrate(spoilt(LOGITS, np.inf)), "row 0 holds NaN or infinity"),
    "logits strings": (lambda: calibrate(LOGITS.astype(str)), "numeric array"),
    "logits objects": (
        lambda: calibrate(LOGITS.astype(object)),
        "client 0: logits must be a numeric array or tensor, not one of object: convert it",
    ),
    "logits ragged": (lambda: calibrate([[1, 2, 3], [4, 5]]), "numeric array"),
    "logits complex": (lambda: calibrate(LOGITS.astype(complex)), "real numbers"),
    "labels too high": (lambda: calibrate(labels=spoilt(LABELS, 7)), "0..2: found 7; or name them by `classes`"),
    "labels negative": (lambda: calibrate(labels=spoilt(LABELS, -1)), "0..2: found -1"),
    "labels with fractions": (lambda: calibrate(labels=LABELS + 0.5), "whole numbers: found 0.5"),
    "labels NaN": (lambda: calibrate(labels=spoilt(LABELS, np.nan)), "client 0: labels must be finite"),
    "labels inf": (lambda: calibrate(labels=spoilt(LABELS, np.inf)), "labels must be finite"),
    "labels one-hot": (lambda: calibrate(labels=np.eye(3)[LABELS]), "argmax"),
    "labels too few": (lambda: calibrate(labels=LABELS[:-1]), "11 labels for 12 rows"),
    "labels strings, not all": (lambda: calibrate(labels=WORDS[LABELS % 2]), "2 different labels for 3 columns"),
    "labels strings and numbers": (
        lambda: fedcal.calibrate([(LOGITS, LABELS), (LOGITS, WORDS[LABELS])], "avg-t"),
        "6 different labels for 3 columns",
    ),
    "labels with gaps": (lambda: calibrate(labels=["a", "b", ""] * 4), "labels must not be empty: row 2"),
    "labels missing": (lambda: calibrate(labels=["a", "b", None] * 4), "all numbers or all strings"),
    "labels dates": (lambda: calibrate(labels=LABELS.astype("M8[D]")), "numbers or strings, not datetime64"),
    "labels ragged": (lambda: calibrate(labels=[[1], [2, 3]]), "labels must be an array, not list"),
    "labels text of numbers": (
        lambda: calibrate(np.eye(12), np.arange(12).astype(str)),
        "numbers written as text, whose order is unclear",
    ),
    "labels of no class": (lambda: calibrate(labels=WORDS[LABELS], classes=["hen", *WORDS[:2]]), "unknown label 'owl'"),
    "classes too few": (lambda: calibrate(classes=["a", "b"]), "classes must be a list of 3 different labels"),
    "classes a string": (lambda: calibrate(classes="abc"), "classes must be a list of 3 different labels"),
    "classes a number": (lambda: calibrate(classes=3), "classes must be a list of 3 different labels"),
    "classes of truths and numbers": (lambda: calibrate(classes=[True, False, 2]), "True and False among numbers"),
    "classes alike": (lambda: calibrate(classes=["a", "b", "a"]), "classes must be a list of 3 different labels"),
    "probs an array": (lambda: calibrate(probs=PROBS), "probs must be True or False"),
    "logits said to be probs": (lambda: calibrate(probs=True), "client 0: probs are not probabilities"),
    "a score said to be a probability": (lambda: calibrate(LOGITS[:, 0], LABELS % 2, probs=True), "not probabilities"),
    "a number for privacy": (lambda: calibrate(method="fed-ts", privacy=4), "privacy must be a Privacy, not 4"),
    "probs said of apply": (
        lambda: fedcal.calibrate([(LOGITS, LABELS)], "uncal").apply(PROBS, probs="yes"),  # type: ignore[arg-type]
        "probs must be True or False",
    ),
    "welcome other K": (
        lambda: fedcal.calibrate([(LOGITS, LABELS)], "avg-t").welcome("a", LOGITS[:, :2], LABELS % 2),
        "logits of 2 classes for a scaler of 3",
    ),
    "welcome unknown labels": (
        lambda: fedcal.calibrate([(LOGITS, WORDS[LABELS])], "avg-t").welcome("a", LOGITS, ["cow"] * 12),
        "unknown label 'cow': the classes are cat, dog, owl",
    ),
    "welcome words to numbers": (
        lambda: fedcal.calibrate([(LOGITS, LABELS)], "avg-t").welcome("a", LOGITS, WORDS[LABELS]),
        "labels are strings, such as 'cat': give `classes`",
    ),
    "stream of words, not all": (
        lambda: fedcal.calibrate({"a": (LOGITS, WORDS[LABELS % 2])}, "fed-ts", stream=True),
        "2 different labels for 3 columns",
    ),
    "stream of other words": (
        lambda: fedcal.calibrate({"a": (LOGITS, WORDS[LABELS]), "b": (LOGITS, ["cow"] * 12)}, "fed-ts", stream=True),
        "client b: unknown label 'cow'",
    ),
    "no clients": (lambda: fedcal.calibrate([]), "no clients"),
    "clients None": (lambda: fedcal.calibrate(None), "list of pairs"),  # type: ignore[arg-type]
    "all clients empty": (lambda: calibrate(LOGITS[:0], LABELS[:0]), "every client is empty"),
    "clients of other K": (
        lambda: fedcal.calibrate({"a": (LOGITS, LABELS), "b": (LOGITS[:, :2], LABELS % 2)}),
        "client b: logits of 2 classes where the others have 3",
    ),
    "client no pair": (lambda: fedcal.calibrate([LOGITS]), "client 0: expected a pair"),  # type: ignore[list-item]
    "client of three": (lambda: fedcal.calibrate([(LOGITS, LABELS, 1)]), "expected a pair"),  # type: ignore[list-item]
    "clients of one name": (lambda: fedcal.calibrate({0: (LOGITS, LABELS), "0": (LOGITS, LABELS)}), "rename one"),  # type: ignore[dict-item]
    "method misspelt": (lambda: calibrate(method="fedcla"), "unknown method 'fedcla': did you mean 'fedcal'?"),
    "method far off": (lambda: calibrate(method="zzz"), "choose from uncal"),
    "method no name": (lambda: calibrate(method=["avg-t"]), "method must be a name"),
    "labels beside the logits": (
        lambda: fedcal.calibrate(LOGITS, LABELS),  # type: ignore[arg-type]
        "samples are given first, as {client: (logits, labels)}",
    ),
    "evaluate with labels beside": (
        lambda: fedcal.evaluate(LOGITS, LABELS),  # type: ignore[arg-type]
        "scaler must be a fedcal.Scaler, not ndarray; sites are {name: (logits, labels)}",
    ),
    "classes too many": (
        lambda: fedcal.calibrate([(LOGITS, LABELS)], classes=["a", "b", "c", "d"]),
        "3 columns for 4 classes (a, b, c, d): give each class its column",
    ),
    "option unknown": (
        lambda: calibrate(method="fedcal", hiden=3),
        "unknown option 'hiden' (did you mean 'hidden'?): its options",
    ),
    "option of another choice": (
        lambda: calibrate(method="fedcal", net="row"),
        "unknown net 'row': did you mean 'raw'",
    ),
    "option of another type": (
        lambda: calibrate(method="fedcal", hidden="8"),
        "hidden must be a whole number, not '8'",
    ),
    "option out of range": (lambda: calibrate(method="fedcal", hidden=0), "fedcal: hidden must be at least 1"),
    "rounds negative": (lambda: calibrate(rounds=-1), "rounds must be a whole number of at least 0, not -1"),
    "rounds a fraction": (lambda: calibrate(rounds=2.5), "rounds must be a whole number"),
    "rounds a string": (lambda: calibrate(rounds="3"), "rounds must be a whole number"),
    "seed negative": (lambda: calibrate(seed=-1), "seed must be a whole number"),
    "apply to other K": (
        lambda: fedcal.calibrate([(LOGITS, LABELS)], "fedcal", rounds=0).apply(LOGITS[:, :2]),
        "logits of 2 classes for a scaler of 3",
    ),
    "apply to NaN": (
        lambda: fedcal.calibrate([(LOGITS, LABELS)], "uncal").predict_proba(spoilt(LOGITS, np.nan)),
        "row 0 holds NaN",
    ),
    "match other shapes": (lambda: fedcal.match(net(4), net(5)), "nets of one shape: w1 is (4, 3) here and (5, 3)"),
    "match no nets": (lambda: fedcal.match({}, {}), "match needs a net"),
}

METRICS: dict[str, tuple[Callable[[], Any], str]] = {
    "logits for probabilities": (lambda: fedcal.ece(LOGITS, LABELS), "pass softmax(logits)"),
    "probs below 0": (lambda: fedcal.nll([[-0.1, 1.1]], [0]), "row 0 holds 1.1"),
    "probs above 1": (lambda: fedcal.brier([[0.0, 1.005]], [0]), "row 0 holds 1.005"),
    "probs NaN": (lambda: fedcal.accuracy(spoilt(PROBS, np.nan), LABELS), "row 0 holds NaN or infinity"),
    "probs 3-D": (lambda: fedcal.mce(PROBS[None], LABELS), "shape (samples, classes)"),
    "P(class 1), labels of three": (lambda: fedcal.mce(PROBS[:, 0], LABELS), "labels must lie in 0..1: found 2"),
    "P(class 1) above 1": (lambda: fedcal.ece([0.2, 1.5], [0, 1]), "row 1 holds 1.5"),
    "top k of decision scores": (lambda: fedcal.top_k([-3.0, 1.5], [0, 1]), "scores are not probabilities"),
    "labels too high": (lambda: fedcal.classwise_ece(PROBS, LABELS + 7), "0..2: found 9"),
    "labels strings, not all": (lambda: fedcal.nll(PROBS, WORDS[LABELS % 2]), "2 different labels for 3 columns"),
    "labels of no class": (lambda: fedcal.nll(PROBS, LABELS, classes=WORDS), "unknown label 0"),
    "no samples": (lambda: fedcal.ece(PROBS[:0], LABELS[:0]), "no samples"),
    "n_bins 0": (lambda: fedcal.ece(PROBS, LABELS, 0), "n_bins must be a whole number of at least 1, not 0"),
    "n_bins negative": (lambda: fedcal.equal_mass_ece(PROBS, LABELS, -3), "n_bins must be"),
    "n_bins a float": (lambda: fedcal.mce(PROBS, LABELS, 15.0), "not 15.0"),  # type: ignore[arg-type]
    "n_bins a bool": (lambda: fedcal.ece(PROBS, LABELS, True), "not True"),
    "top 0": (lambda: fedcal.top_k(PROBS, LABELS, k=0), "k must be a whole number of at least 1"),
    "reliability of other bins": (
        lambda: Reliability.of(PROBS, LABELS, 10) + Reliability.of(PROBS, LABELS, 15),
        "10 and 15 bins do not add",
    ),
    "merged to no bins": (lambda: Reliability.of(PROBS, LABELS).merge_to(0), "n_bins must be"),
    "band of level 95": (lambda: Reliability.of(PROBS, LABELS).band(95), "level must lie between 0 and 1"),
    "interval of level 95": (lambda: Reliability.of(PROBS, LABELS).interval(95), "level must lie between 0 and 1"),
}


@cases(LOGITS_AND_LABELS)
def test_logits_and_labels(case: tuple[Callable[[], Any], str]) -> None:
    assert_refused(*case)


@cases(METRICS)
def test_metrics(case: tuple[Callable[[], Any], str]) -> None:
    assert_refused(*case)


@pytest.mark.parametrize("kind", ["u1", "u2", "u4", "u8", "i1", ">i8", ">f4"])
def test_any_whole_label_is_good(kind: str) -> None:
    assert fedcal.accuracy(PROBS, LABELS.astype(kind)) == 1 / 3


def test_views_and_read_only_arrays_are_good() -> None:
    fixed = LOGITS.copy()
    fixed.flags.writeable = False
    calibrate(fixed)
    calibrate(LOGITS[::-1], LABELS[::-1])


# --- Python: a config ------------------------------------------------------------------------------------------------

CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "beta 0": ({"beta": 0}, "beta must be above 0, not 0"),
    "beta negative": ({"beta": -0.5}, "beta must be above 0"),
    "beta NaN": ({"beta": float("nan")}, "beta must be above 0, not nan"),
    "beta inf": ({"beta": float("inf")}, "beta must be at most 1000000000, not inf"),
    "beta a string": ({"beta": "0.5"}, "beta must be a number, not '0.5'"),
    "clients 0": ({"clients": 0}, "clients must be at least 1"),
    "rounds 0": ({"rounds": 0}, "rounds must be at least 1"),
    "rounds None": ({"rounds": None}, "rounds must be a whole number, not None"),
    "rounds a bool": ({"rounds": True}, "rounds must be a whole number, not True"),
    "rounds a float": ({"rounds": 2.0}, "rounds must be a whole number, not 2.0"),
    "clients_per_round 0": ({"clients_per_round": 0}, "clients_per_round must be at least 1"),
    "lr 0": ({"lr": 0}, "lr must be above 0"),
    "lr negative": ({"lr": -1.0}, "lr must be above 0"),
    "lr beyond float32": ({"lr": 1e39}, "lr must be at most"),
    "momentum 1": ({"momentum": 1}, "momentum must be below 1"),
    "momentum negative": ({"momentum": -0.1}, "momentum must be at least 0"),
    "epochs 0": ({"epochs": 0}, "epochs must be at least 1"),
    "batch_size 0": ({"batch_size": 0}, "batch_size must be at least 1"),
    "batch_size endless": ({"batch_size": 10**19}, "batch_size must be at most"),
    "threads endless": ({"threads": 10**12}, "threads must be at most 1024"),
    "cal_fraction 0": ({"cal_fraction": 0}, "cal_fraction must be above 0"),
    "cal_fraction 1": ({"cal_fraction": 1}, "cal_fraction must be below 1"),
    "cal_fraction 1.5": ({"cal_fraction": 1.5}, "cal_fraction must be below 1, not 1.5"),
    "n_bins 0": ({"n_bins": 0}, "n_bins must be at least 1"),
    "n_bins endless": ({"n_bins": 10**12}, "n_bins must be at most"),
    "seed negative": ({"seed": -1}, "seed must be at least 0"),
    "bool for a string": ({"data": True}, "data must be a text"),
    "field of a method": (
        {"method": ("fedcal:shared_init=no",)},
        "fedcal: shared_init must be true or false, not 'no'",
    ),
    "data misspelt": ({"data": "digit"}, "unknown data set 'digit': did you mean 'digits'?"),
    "model misspelt": ({"model": "logistc"}, "did you mean 'logistic'?"),
    "partition misspelt": ({"partition": "shard"}, "did you mean 'shards'?"),
    "algorithm misspelt": ({"algorithm": "fedavgg"}, "unknown algorithm 'fedavgg': did you mean 'fedavg'?"),
    "option no choice": ({"method": ("fedcal:net=7",)}, "fedcal: unknown net '7': choose from raw, sorted, plain"),
    "method twice, written differently": ({"method": ("fedcal", "fedcal:hidden=64")}, "'fedcal' is given 2 times"),
    "method misspelt": ({"method": ("avgt",)}, "did you mean 'avg-t'?"),
    "method twice": ({"method": ("uncal", "avg-t", "uncal")}, "method 'uncal' is given 2 times: name it once"),
    "method a string": ({"method": "uncal"}, "method must be a tuple of names, not 'uncal'"),
    "method not names": ({"method": (1,)}, "method must be a tuple of names"),
    "no method": ({"method": ()}, "no method given"),
}

RUNS: dict[str, tuple[dict[str, Any], str]] = {
    "more clients than samples": ({"clients": 10**6}, "the number of clients must lie in 1..1347"),
    "more clients a round than clients": ({"clients_per_round": 5}, "clients_per_round is 5, but there are 4 clients"),
    "cnn on features": ({"data": "heart", "model": "cnn", "clients": None}, "model cnn needs images"),
    "natural where there is none": ({"partition": "natural", "clients": None}, "digits has no natural clients"),
    "natural clients counted": ({"data": "heart"} | {"clients": 3}, "heart has 4 natural clients, not 3"),
    "shards that miss classes": ({"partition": "shards"}, "cannot hold all 10 classes"),
    "shards of too many": ({"partition": "shards", "classes_per_client": 11}, "classes_per_client must lie in 1..10"),
    "device unknown": ({"device": "xyz"}, "unknown device 'xyz': choose cpu"),
    "device absent": ({"device": "cuda"}, "device 'cuda' is not here"),
    "device of another kind": ({"device": "meta"}, "device 'meta' is not supported"),
    "data missing": ({"data": "mnist", "data_dir": "nowhere"}, "fedcal data fetch mnist --data-dir nowhere"),
}


@cases(CONFIGS)
def test_config(case: tuple[dict[str, Any], str]) -> None:
    options, word = case
    assert_refused(lambda: Config(**options), word)


@cases(RUNS)
def test_run_writes_nothing(case: tuple[dict[str, Any], str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    options, word = case
    before = snapshot(place)
    assert_refused(lambda: fedcal.run(replace(TINY, **options), "new"), word)
    assert_refused(lambda: fedcal.run(replace(TINY, **options), "done", overwrite=True), word)
    assert snapshot(place) == before


def test_divergence_is_told(tmp_path: Path) -> None:
    assert_refused(lambda: fedcal.run(replace(TINY, lr=1e9, momentum=0.99, weight_decay=1e9)), "diverged")


def test_a_folder_name_too_long(tmp_path: Path) -> None:
    for how in ({}, {"resume": True}, {"overwrite": True}):
        assert_refused(lambda how=how: fedcal.run(TINY, tmp_path / ("x" * 300), **how), "File name too long")


def test_a_path_with_a_newline_stays_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "a\nb").write_text("")
    assert_refused(lambda: fedcal.run(TINY, tmp_path / "a\nb"), "a b is a file")


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that was stopped after its first round, and another that was, of another seed."""
    folder = tmp_path_factory.mktemp("runs")

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    fedcal.run(TINY, folder / "done")
    for name, seed in (("half", 0), ("other", 1)):
        with pytest.raises(KeyboardInterrupt):
            fedcal.run(replace(TINY, seed=seed), folder / name, on_round=stop)
    return folder


@pytest.fixture
def place(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with copies of those runs, a file, and a data folder."""
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mnist").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDCAL_DATA", raising=False)
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def edit(path: str, **changes: Any) -> None:
    write_json(Path(path), read_json(Path(path)) | changes)


def cut(path: str) -> None:
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: -len(data) // 4])  # within the second line of two


def mnist(magic: int = 8, short: bool = False) -> None:
    """MNIST's first file, all zeros; not what it says it is, or cut short."""
    file = SOURCES["mnist"].files[0]
    data = struct.pack(">HBB3I", 0, magic, 3, *file.shape) + bytes(int(np.prod(file.shape)))
    packed = gzip.compress(data, 1)
    Path("mnist", file.name).write_bytes(packed[: len(packed) // 2] if short else packed)


def nothing() -> None:
    pass


RUN = "run --model logistic --clients 4 --rounds 2 --method uncal"
RESUME = "run --resume --out half"
MNIST = "run --data mnist --data-dir . --out new"

COMMANDS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "option unknown": (nothing, "run --bogus", "No such option: --bogus"),
    "option misspelt": (nothing, "run --round 3", "--rounds"),
    "command unknown": (nothing, "frobnicate", "No such command 'frobnicate': see fedcal --help"),
    "command of data unknown": (nothing, "data frobnicate", "see fedcal data --help"),
    "command missing": (nothing, "", "choose a command: see fedcal --help"),
    "command of data missing": (nothing, "data", "choose a command: see fedcal data --help"),
    "value missing": (nothing, "run --rounds", "'--rounds' requires an argument: see fedcal"),
    "argument missing": (nothing, "report", "Missing argument 'RUN'"),
    "argument too many": (nothing, "run digits", "digits"),
    "not a whole number": (nothing, "run --rounds ten", "'--rounds'"),
    "not a number": (nothing, "run --beta high", "'--beta'"),
    "beta negative": (nothing, "run --beta -1 --out new", "beta must be above 0, not -1"),
    "choice unknown": (nothing, "run --method fedcal:start=mached --out new", "did you mean 'matched'?"),
    "table unknown": (nothing, "run --table html", "'--table'"),
    "data unknown": (nothing, "run --data minst --out new", "did you mean 'mnist'?"),
    "method unknown": (nothing, "run --method fedcall --out new", "did you mean 'fedcal'?"),
    "method twice": (nothing, "run --method uncal --method uncal", "name it once"),
    "device unknown": (nothing, f"{RUN} --device xyz --out new", "unknown device 'xyz'"),
    "out under a file": (nothing, f"{RUN} --out file/run", "cannot lock file/run: Not a directory"),
    "out a file": (nothing, f"{RUN} --out file", "file is a file: choose another folder"),
    "out too long": (nothing, f"{RUN} --out {'x' * 300}", "File name too long"),
    "out holds a run": (nothing, f"{RUN} --out done", "done holds a run already"),
    "out holds half a run": (nothing, f"{RUN} --out half", "half holds a run already"),
    "out holds results alone": (lambda: Path("done/config.json").unlink(), f"{RUN} --out done", "rounds.jsonl"),
    "resume without out": (nothing, "run --resume", "--resume needs --out"),
    "resume and overwrite": (nothing, f"{RESUME} --overwrite", "contradict"),
    "resume too long": (nothing, f"run --resume --out {'x' * 300}", "File name too long"),
    "resume with another option": (
        nothing,
        f"{RESUME} --beta 0.1",
        "half was run with beta=0.5, not 0.1: give 0.5 again",
    ),
    "resume with a bad option": (nothing, f"{RESUME} --beta -1", "fedcal: beta must be above 0"),
    "resume with other methods": (nothing, f"{RESUME} --method ens", "half was run with method="),
    "resume without config": (
        lambda: Path("half/config.json").unlink(),
        f"{RUN} --resume --out half",
        "half/config.json is missing",
    ),
    "config of another schema": (lambda: edit("half/config.json", schema=99), RESUME, "half/config.json: schema 99"),
    "config cut short": (lambda: cut("half/config.json"), RESUME, "half/config.json cannot be read as JSON"),
    "config no JSON": (lambda: Path("half/config.json").write_text("beta: 1"), RESUME, "cannot be read as JSON"),
    "config no text": (lambda: Path("half/config.json").write_bytes(b"\xff\xfe"), RESUME, "cannot be read as JSON"),
    "config a list": (lambda: Path("half/config.json").write_text("[]"), RESUME, "JSON object, not list"),
    "config nested": (lambda: Path("half/config.json").write_text("[" * 10**5), RESUME, "cannot be read as JSON"),
    "config with an unknown field": (
        lambda: edit("half/config.json", betta=1),
        RESUME,
        "half/config.json: unknown field 'betta': did you mean 'beta'?",
    ),
    "config with a bad value": (lambda: edit("half/config.json", beta="x"), RESUME, "half/config.json: beta must be"),
    "config with a null": (lambda: edit("half/config.json", rounds=None), RESUME, "rounds must be a whole number"),
    "config with a method as a number": (
        lambda: edit("half/config.json", method=[3]),
        RESUME,
        "half/config.json: method must be a tuple of names",
    ),
    "config with an unknown option": (
        lambda: edit("half/config.json", method=[{"method": "fedcal", "options": {"hiden": 8}}]),
        RESUME,
        "half/config.json: fedcal: unknown option 'hiden'",
    ),
    "checkpoint cut short": (
        lambda: cut("half/checkpoint.safetensors"),
        RESUME,
        "half/checkpoint.safetensors is damaged or not a file of fedcal's",
    ),
    "checkpoint empty": (lambda: Path("half/checkpoint.safetensors").write_bytes(b""), RESUME, "is damaged"),
    "checkpoint of another run": (
        lambda: shutil.copy("other/checkpoint.safetensors", "half"),
        RESUME,
        "half/checkpoint.safetensors belongs to another run: delete it",
    ),
    "checkpoint not a checkpoint": (
        lambda: shutil.copy("done/model.safetensors", "half/checkpoint.safetensors"),
        RESUME,
        "belongs to another run",
    ),
    "checkpoint not of fedcal": (
        lambda: save_file({"w": torch.zeros(2)}, "half/checkpoint.safetensors"),
        RESUME,
        "half/checkpoint.safetensors is damaged or not a file of fedcal's (it has no digest",
    ),
    "report of no folder": (nothing, "report nowhere", "nowhere/results.json: no such file"),
    "report of a file": (nothing, "report file", "file/results.json"),
    "report of half a run": (nothing, "report half", "has the run in half finished?"),
    "results missing": (lambda: Path("done/results.json").unlink(), "report done", "done/results.json: no such file"),
    "results cut short": (lambda: cut("done/results.json"), "report done", "done/results.json cannot be read as JSON"),
    "results of another schema": (lambda: edit("done/results.json", schema=1), "report done", "schema 1"),
    "results without methods": (
        lambda: edit("done/results.json", methods={}),
        "report done",
        "'methods' or 'config' is empty",
    ),
    "results a list": (lambda: Path("done/results.json").write_text("[]"), "report done", "no 'schema'"),
    "rounds cut short": (lambda: cut("done/rounds.jsonl"), "report done", "done/rounds.jsonl, line"),
    "figure format unknown": (nothing, "report done --figures new --figure-format gif", "'--figure-format'"),
    "table format unknown": (nothing, "report done --format html", "'--format'"),
    "fetch of unknown data": (nothing, "data fetch minst", "did you mean 'mnist'?"),
    "verify of unknown data": (nothing, "data verify minst", "did you mean 'mnist'?"),
    "verify of missing files": (
        nothing,
        "data verify mnist --data-dir .",
        "mnist: 4 of 4 files are missing or damaged",
    ),
    "data files missing": (
        nothing,
        MNIST,
        "mnist/train-images-idx3-ubyte.gz is missing: expected 60000 samples",
    ),
    "data folder a file": (nothing, "run --data mnist --data-dir file --out new", "Not a directory"),
    "data file cut short": (lambda: mnist(short=True), MNIST, "train-images-idx3-ubyte.gz is damaged"),
    "data file of another kind": (lambda: mnist(magic=9), MNIST, "expected the idx header"),
}


def assert_one_line(stderr: str, word: str) -> None:
    lines = [line for line in stderr.splitlines() if line.strip()]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("fedcal: ")
    assert word in lines[0]


@cases(COMMANDS)
def test_command(case: tuple[Callable[[], Any], str, str], place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil, command, word = case
    spoil()
    before = snapshot(place)
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert_one_line(err, word)
    assert "Traceback" not in out + err
    assert snapshot(place) == before


def test_missing_files_are_fetched_with_the_command_named(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(MNIST.split())
    assert capsys.readouterr().err.endswith("; get it with: fedcal data fetch mnist --data-dir .\n")


def test_figures_under_a_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["report", "done", "--figures", "file/figures"])
    assert stopped.value.code == 2
    assert_one_line(capsys.readouterr().err, "cannot write file/figures/")
    assert Path("file").read_text() == "mine"


def test_a_log_that_cannot_be_written_ends_the_run_in_one_line(tmp_path: Path) -> None:
    def spoil(state: Any) -> None:
        (tmp_path / "run" / "rounds.jsonl").unlink()
        (tmp_path / "run" / "rounds.jsonl").mkdir()

    assert_refused(lambda: fedcal.run(TINY, tmp_path / "run", on_start=spoil), "rounds.jsonl: Is a directory")


@pytest.mark.parametrize(
    ("command", "word"),
    [("run --bogus", "--bogus"), (f"{RUN} --out file/run", "cannot lock file/run")],
    ids=["usage", "files"],
)
def test_process(command: str, word: str, place: Path) -> None:
    code = "import sys; from fedcal.cli.main import main; main(sys.argv[1:])"
    done = subprocess.run([sys.executable, "-c", code, *command.split()], capture_output=True, text=True)
    assert done.returncode == 2
    assert_one_line(done.stderr, word)
