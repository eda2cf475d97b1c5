"""Damaged files, many of each kind: one line and exit 2, or finite output; never a traceback, a hang or a heap of memory.

A bounded number by default; `FEDCAL_DAMAGE=1000 pytest tests/test_damaged_files.py` tries as many of each.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fedcal
from commands import run
from fedcal import FedCalError
from fedcal.base.store import read_json
from fedcal.protocol.wire import unpack_reply
from fedcal.report import load, markdown
from fedcal.simulate import federation
from fedcal.simulate.assemble import assemble
from fedcal.simulate.checkpoint import load_checkpoint, save_checkpoint
from fedcal.simulate.config import Config
from tamper import mutate_json, mutate_tensors

pytestmark = pytest.mark.usefixtures("built_once")
TIMES = int(os.environ.get("FEDCAL_DAMAGE", "60"))
K, SITES = 3, ("siteA", "siteB")
Mutate = Callable[[bytes, np.random.Generator], bytes]
CONFIG = Config(data="synthetic", limit=200, clients=2, rounds=2, epochs=1, method=("avg-t:average=latest", "fed-bias"))


def draw(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(60, K))
    return 3 * z, (z + rng.gumbel(size=z.shape)).argmax(1)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one sound file of every kind."""
    place = tmp_path_factory.mktemp("sound")
    for number, site in enumerate(SITES):
        logits, labels = draw(number)
        np.savez(place / f"{site}.npz", logits=logits, labels=labels)
    clients = {site: draw(number) for number, site in enumerate(SITES)}
    fedcal.calibrate(clients).save(place / "fedcal-plus.safetensors")
    fedcal.calibrate(clients, "fedcal-small:rounds=1,steps=3").save(place / "fedcal-small.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for name, spec in (("exact", "fed-bias"), ("nets", "fedcal-no-wm:rounds=3,steps=3")):
            run(f"server start {name} --classes {K} --sites siteA,siteB --method {spec}")
            for number in (1, 2):
                for site in SITES:
                    run(f"client reply {name}/request-{number:04d}.safetensors {site}.npz --state {name}-{site}")
                if number == 1:
                    run(f"server receive {name} {name}/siteA-0001.safetensors {name}/siteB-0001.safetensors")
        run("run --data synthetic --limit 200 --clients 2 --rounds 2 --method uncal --method avg-t --out run -q")
    state = assemble(CONFIG.resolve())
    federation.train(state, 1, lambda *_: None)
    save_checkpoint(place / "checkpoint.safetensors", state)
    return place


@pytest.fixture
def place(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(sound, tmp_path / "x")
    monkeypatch.chdir(tmp_path / "x")
    return tmp_path / "x"


def damage(
    file: Path, mutate: Mutate, use: Callable[[], int], check: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> Counter[int]:
    """Use the file in many damaged forms; count how it ended."""
    good, codes, rng = file.read_bytes(), Counter[int](), np.random.default_rng(0)
    others = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file() and path != file}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(TIMES):
        file.write_bytes(bad := mutate(good, rng))
        began = time.process_time()
        capsys.readouterr()
        code = use()
        lines = capsys.readouterr().err.splitlines()
        assert time.process_time() - began < 5, f"damage {number} takes too long"
        assert code == 0 or (code == 2 and len(lines) == 1 and lines[0].startswith("fedcal: ")), (number, code, lines)
        assert not any("\x1b" in line for line in lines)
        if code == 0:
            check()
        codes[code if bad != good else 0] += 1
        for path, data in others.items():
            if not path.exists() or path.read_bytes() != data:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        for path in [p for p in Path().rglob("*") if p.is_file() and p not in others and p != file]:
            path.unlink()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "over 1 GB"
    assert codes[2] > TIMES / 2, codes
    print(file, dict(codes))
    return codes


def tried(function: Callable[[], object]) -> int:
    """What the command line would end with."""
    try:
        function()
    except FedCalError as error:
        print(f"fedcal: {error}", file=sys.stderr)
        return 2
    return 0


@pytest.mark.parametrize("name", ["fedcal-plus", "fedcal-small"])
def test_scalers(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def finite() -> None:
        probs = np.load("out.npz")["probs"]
        assert np.isfinite(probs).all() and np.allclose(probs.sum(1), 1)

    file = Path(f"{name}.safetensors")
    damage(file, mutate_tensors, lambda: run(f"apply {file} siteA.npz --out out.npz"), finite, capsys)


@pytest.mark.parametrize("name", ["exact", "nets"])
def test_what_a_site_reads(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = Path(f"{name}/request-0002.safetensors")
    line = f"client reply {request} siteA.npz --state {name}-siteA --out reply"

    def accepted() -> None:
        unpack_reply(Path("reply").read_bytes())

    damage(next(Path(f"{name}-siteA").iterdir()), mutate_tensors, lambda: run(line), accepted, capsys)
    damage(request, mutate_tensors, lambda: run(line), accepted, capsys)


@pytest.mark.parametrize("name", ["exact", "nets"])
def test_what_a_server_reads(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = f"server receive {name} {name}/siteA-0002.safetensors {name}/siteB-0002.safetensors"
    for file, mutate in {
        f"{name}/siteA-0002.safetensors": mutate_tensors,
        f"{name}/round-0-0001.safetensors": mutate_tensors,
        f"{name}/federation.json": mutate_json,
    }.items():
        damage(Path(file), mutate, lambda: run(line), lambda: None, capsys)


def test_checkpoints(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def resume() -> None:
        load_checkpoint(Path("checkpoint.safetensors"), assemble(CONFIG.resolve()))

    damage(Path("checkpoint.safetensors"), mutate_tensors, lambda: tried(resume), lambda: None, capsys)


@pytest.mark.parametrize("name", ["results.json", "rounds.jsonl", "config.json"])
def test_run_folders(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def report() -> object:
        if name == "config.json":
            return Config.from_dict(read_json(Path("run/config.json")))
        return markdown(load("run").results)

    def line_of(data: bytes, rng: np.random.Generator) -> bytes:
        first, second = data.splitlines()
        return mutate_json(first, rng) + b"\n" + second + b"\n"

    mutate = line_of if name == "rounds.jsonl" else mutate_json
    damage(Path("run") / name, mutate, lambda: tried(report), lambda: None, capsys)
