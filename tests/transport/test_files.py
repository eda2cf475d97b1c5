"""A federation by files: three sites and a server, each a process and a folder of its own."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedcal.base.store import read_tensors, write_tensors
from fedcal.cli.main import main
from fedcal.protocol.scaler_file import load_scaler

SITES = ["siteA", "siteB", "siteC"]
K = 3
SHELL = """
import contextlib, io, os
import typer
from fedcal.cli import main as cli

os.chdir(folder)
cli.app = typer.main.get_command(cli.app)  # built once, not for every command
while line := pipe.recv():
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            cli.main(line.split())
        except SystemExit as ended:
            code = ended.code
    pipe.send((code, said.getvalue()))
"""


class Shell:
    """A process in a folder that runs the `fedcal` commands given to it, as a shell would."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["fedcal.cli"])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=exec, args=(SHELL, {"pipe": theirs, "folder": str(folder)}))
        self.process.start()
        theirs.close()

    def __call__(self, line: str) -> str:
        self.pipe.send(line)
        code, said = self.pipe.recv()
        assert code == 0, line
        return said

    def close(self) -> None:
        self.pipe.send("")
        self.process.join()
        self.pipe.close()


def write_site(path: Path, seed: int, n: int = 150, k: int = K) -> None:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) + np.eye(k)[seed % k]
    np.savez(path, logits=3 * z, labels=(z + rng.gumbel(size=z.shape)).argmax(1))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bits(params: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: value.contiguous().numpy().tobytes() for name, value in params.items()}


def command(line: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == code


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[dict[str, Shell]]:
    found = {name: Shell(tmp_path / name) for name in ("server", *SITES)}
    yield found
    for shell in found.values():
        shell.close()


def test_three_sites_and_a_server_reach_what_calibrate_does(
    tmp_path: Path, shells: dict[str, Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte; only questions, answers and the scaler are carried from folder to folder."""
    for number, site in enumerate(SITES):
        write_site(tmp_path / site / f"{site}.npz", number)
    monkeypatch.chdir(tmp_path)
    for spec in ("fedcal-plus", "fed-ts", "fedcal-small:rounds=2"):
        method = spec.partition(":")[0]
        federate(tmp_path, shells, method, spec)
        files = " ".join(f"{site}/{site}.npz" for site in SITES[::-1])
        command(f"calibrate {files} --method {spec} --seed 3 --out {method} -q")
        whole = load_scaler(f"{method}/scaler.safetensors")
        by_hand = load_scaler(f"server/{method}/scaler.safetensors")
        assert whole.name == method and by_hand.own == {}
        assert bits(by_hand.params) == bits(whole.params)
        for site in SITES:
            assert bits(load_scaler(f"{site}/{method}-scaler.safetensors").own[site]) == bits(whole.own[site])
        assert Path(f"server/{method}.safetensors").read_bytes() == Path(f"{method}/scaler.safetensors").read_bytes()
    kept = {name for name in snapshot(tmp_path / "server") if name.endswith((".npz", ".state.safetensors"))}
    assert not kept, "nothing of a site's own comes to the server"


def federate(place: Path, shells: dict[str, Shell], method: str, spec: str) -> None:
    """Every round by hand, and in the end the sites' own parts."""
    server, folder = shells["server"], place / "server" / method
    server(f"server start {method} --method {spec} --classes {K} --sites siteB,siteA,siteC --seed 3")
    number, said = 1, ""
    while not said.startswith("Done"):
        question = f"question-{number:04d}.safetensors"
        for site in SITES:
            shutil.copy(folder / question, place / site)
            shells[site](f"client answer {question} {site}.npz --state {method}.state --out answer")
            shutil.copy(place / site / "answer", folder / f"{site}-{number:04d}.safetensors")
        said = server(f"server add {method} " + " ".join(f"{method}/{s}-{number:04d}.safetensors" for s in SITES[::-1]))
        number += 1
    for site in SITES:
        shutil.copy(folder / "scaler.safetensors", place / site)
        shells[site](
            f"client finish scaler.safetensors {site}.npz --state {method}.state --out {method}-scaler.safetensors"
        )
    parts = " ".join(f"../{site}/{method}-scaler.safetensors" for site in SITES)
    server(f"server merge {method}/scaler.safetensors {parts} --out {method}.safetensors")


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation of three sites that have all answered the second round, which is not yet added; and another one."""
    place = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for number, site in enumerate(SITES):
            write_site(Path(f"{site}.npz"), number)
        for name in ("dir", "other"):
            command(f"server start {name} --classes {K} --sites siteA,siteB,siteC")
        for site in SITES:
            command(f"client answer other/question-0001.safetensors {site}.npz --state other-{site}")
            command(f"client answer dir/question-0001.safetensors {site}.npz")
        command("server add dir dir/siteA-0001.safetensors dir/siteB-0001.safetensors dir/siteC-0001.safetensors")
        for site in SITES:
            command(f"client answer dir/question-0002.safetensors {site}.npz")
    return place


@pytest.fixture
def place(second_round: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(second_round, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(path: str, edit: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[], None]:
    """Tamper with a file's tensors and header."""

    def do() -> None:
        tensors, about = read_tensors(Path(path))
        tensors = {name: value.clone() for name, value in tensors.items()}
        edit(tensors, about)
        write_tensors(Path(path), tensors, about)

    return do


def first(tensors: dict[str, Any], value: float) -> None:
    next(iter(tensors.values())).view(-1)[0] = value


B2 = "dir/siteB-0002.safetensors"
ADD = f"server add dir dir/siteA-0002.safetensors {B2} dir/siteC-0002.safetensors"
ANSWER = "client answer dir/question-0002.safetensors"
START = "server start new --classes 3 --sites siteA,siteB"
BAD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "NaN": (change(B2, lambda t, _: first(t, float("nan"))), ADD, "siteB's answer: "),
    "infinite": (change(B2, lambda t, _: first(t, float("inf"))), ADD, "is not finite"),
    "value too large": (change(B2, lambda t, _: first(t, 1e40)), ADD, "reaches 1e+40"),
    "file too large": (change(B2, lambda t, _: t.update(x=torch.zeros(10**6))), ADD, "not an answer of this round"),
    "more than asked": (change(B2, lambda t, _: t.update(x=torch.zeros(1))), ADD, "siteB's answer should not hold 'x'"),
    "less than asked": (change(B2, lambda t, _: t.pop(next(iter(t)))), ADD, "siteB's answer lacks"),
    "nothing": (change(B2, lambda t, _: t.clear()), ADD, "siteB's answer lacks"),
    "other shape": (
        change(B2, lambda t, _: t.update({k: torch.zeros(9, dtype=torch.float64) for k in list(t)[:1]})),
        ADD,
        "torch.float64 of shape (9,), not",
    ),
    "other type": (change(B2, lambda t, _: t.update({k: v.float() for k, v in t.items()})), ADD, "is torch.float32"),
    "other K": (change(B2, lambda _, a: a.update(n_classes=5)), ADD, "siteB has 5 classes, the federation 3"),
    "other n": (change(B2, lambda _, a: a.update(n=10**6)), ADD, "declares 1000000 samples, but 150"),
    "n not a number": (change(B2, lambda _, a: a.update(n="many")), ADD, "declares 'many' samples"),
    "n in a first answer": (
        change("other/siteB-0001.safetensors", lambda t, _: t["n"].fill_(10**6)),
        "server add other other/siteA-0001.safetensors other/siteB-0001.safetensors other/siteC-0001.safetensors",
        "siteB's answer: 'n' counts 1e+06 samples, but 150 are declared",
    ),
    "negative labels": (
        change("other/siteB-0001.safetensors", lambda t, _: t["labels"].mul_(-1)),
        "server add other other/siteA-0001.safetensors other/siteB-0001.safetensors other/siteC-0001.safetensors",
        "siteB's answer: 'labels' holds a negative count",
    ),
    "indefinite Hessian": (
        change(B2, lambda t, _: t["newton/temperature/all/hess"].mul_(-1)),
        ADD,
        "siteB's answer: 'newton/temperature/all/hess' has a negative second derivative",
    ),
    "other question": (change(B2, lambda _, a: a.update(question="0")), ADD, "siteB answers another question"),
    "not an answer": (lambda: shutil.copy("dir/question-0002.safetensors", B2), ADD, "not an answer"),
    "cut short": (lambda: Path(B2).write_bytes(Path(B2).read_bytes()[:50]), ADD, "is damaged or no safetensors file"),
    "replayed round": (
        lambda: shutil.copy("dir/siteB-0001.safetensors", B2),
        ADD,
        "siteB answers round 1, but round 2",
    ),
    "other federation": (
        lambda: shutil.copy("other/siteB-0001.safetensors", B2),
        ADD,
        "siteB answers another federation",
    ),
    "unknown site": (change(B2, lambda _, a: a.update(site="siteX")), ADD, "unknown site 'siteX'"),
    "one site twice": (lambda: shutil.copy("dir/siteA-0002.safetensors", B2), ADD, "a second answer of siteA"),
    "one site missing": (
        lambda: None,
        f"server add dir {B2}",
        "round 2: no answer of siteA, siteC; wait for it, or go on",
    ),
    "missing file": (lambda: Path(B2).unlink(), ADD, f"{B2}: no such file"),
    "without nobody": (lambda: None, ADD + " --without siteX", "unknown site 'siteX'"),
    "answer of one left out": (lambda: None, ADD + " --without siteB", "unknown site 'siteB'"),
    "no federation": (lambda: None, f"server add nowhere {B2}", "nowhere holds no federation"),
    "sums of another": (
        change("dir/sums-0001.safetensors", lambda _, a: a.update(federation="x")),
        ADD,
        "belongs to another federation",
    ),
    "site of other K": (
        lambda: write_site(Path("siteB.npz"), 1, k=4),
        f"{ANSWER} siteB.npz",
        "siteB: 4 classes, where",
    ),
    "unknown name": (lambda: None, f"{ANSWER} siteB.npz --name sitB", "unknown site 'sitB': did you mean 'siteB'?"),
    "no state": (lambda: Path("siteB.state.safetensors").unlink(), f"{ANSWER} siteB.npz", "give --state"),
    "state of another site": (
        lambda: None,
        f"{ANSWER} siteB.npz --state siteA.state.safetensors",
        "not the state of siteB",
    ),
    "state of another federation": (lambda: None, f"{ANSWER} siteB.npz --state other-siteB", "of another federation"),
    "question of the past": (
        lambda: None,
        "client answer dir/question-0001.safetensors siteB.npz",
        "round 1 is past: siteB has answered round 2 already",
    ),
    "no question": (lambda: None, f"client answer {B2} siteB.npz", "is not a question"),
    "question damaged": (
        change("dir/question-0002.safetensors", lambda _, a: a.pop("options")),
        f"{ANSWER} siteB.npz",
        "is damaged, or of another version",
    ),
    "start twice": (lambda: None, START.replace("new", "dir"), "dir holds a federation already"),
    "start with a pooling method": (lambda: None, START + " --method val-ts", "sends every logit"),
    "start with no rounds": (lambda: None, START + " --method uncal", "asks the sites nothing"),
    "sites of one name": (lambda: None, "server start new --classes 3 --sites a,a", "apart"),
    "site a path": (lambda: None, "server start new --classes 3 --sites ../a", "cannot name a site"),
    "one class": (
        lambda: None,
        "server start new --classes 1 --sites a",
        "classes must be a whole number of at least 2",
    ),
    "finish other K": (
        lambda: write_site(Path("x.npz"), 1, k=4),
        "client finish done.safetensors x.npz --out y.safetensors",
        "4 classes for a scaler of 3",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_bad_exchange(
    case: tuple[Callable[[], Any], str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, line, word = case
    if "done.safetensors" in line:
        command("calibrate siteA.npz --method fed-ts --out done -q")
        shutil.copy("done/scaler.safetensors", "done.safetensors")
    spoil()
    before = snapshot(place)
    capsys.readouterr()
    command(line, code=2)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("fedcal: ") and word in said[0]
    assert snapshot(place) == before


def test_a_round_can_be_answered_and_asked_again(place: Path) -> None:
    """The same bytes: a lost answer, a lost question, a server killed before it counted the round."""
    before = snapshot(place)
    Path("dir/question-0002.safetensors").unlink()
    command("server status dir")
    command(f"{ANSWER} siteB.npz")
    assert snapshot(place) == before
    command(ADD)
    after = snapshot(place)
    Path("dir/sums-0002.safetensors").unlink()
    command(ADD)
    assert snapshot(place) == after


def test_going_on_without_a_site(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    command("server add dir dir/siteA-0002.safetensors dir/siteC-0002.safetensors --without siteB")
    said = capsys.readouterr().out
    assert "Going on without siteB" in said and "question-0003.safetensors is for siteA, siteC." in said
    command("client answer dir/question-0003.safetensors siteB.npz", code=2)
    assert "unknown site 'siteB'" in capsys.readouterr().err


def test_a_site_that_took_no_part_can_finish(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("calibrate siteA.npz siteB.npz --out cal -q")
    write_site(Path("new.npz"), 5)
    capsys.readouterr()
    command("client finish cal/scaler.safetensors new.npz --out new-scaler.safetensors")
    assert "took no part" in capsys.readouterr().out
    assert any(name.startswith("own/new/") for name in load_file("new-scaler.safetensors"))
