"""A federation by files: sites and a server, each a process and a folder of its own."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedcal
from fedcal import METHODS, FedCalError, Scaler
from fedcal.base.arrays import softmax
from fedcal.base.store import read_tensors, write_tensors
from fedcal.cli.main import main
from fedcal.exact.private_queries import Scales
from fedcal.methods import get_method
from fedcal.protocol import Client, LostState, Policy, Privacy, Request, Server
from fedcal.protocol.wire import pack, pack_request, unpack
from fedcal.transport import files
from fedcal.transport.journal import Journal

SITES = ["siteA", "siteB", "siteC"]
K = 3
SHELL = """
import contextlib, io, os
import typer
from fedcal.cli import main as cli

os.chdir(folder)
cli.app = typer.main.get_command(cli.app)  # built once, not for every command
while line := pipe.recv():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            cli.main(line.split())
        except SystemExit as ended:
            code = ended.code
    pipe.send((code, printed.getvalue()))
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
        code, printed = self.pipe.recv()
        assert code == 0, line
        return printed

    def close(self) -> None:
        self.pipe.send("")
        self.process.join()
        self.pipe.close()


def make_samples(seed: int, n: int = 150, k: int = K) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, k)) + np.eye(k)[seed % k]
    return 3 * z, (z + rng.gumbel(size=z.shape)).argmax(1)


def write_site(path: Path, seed: int, n: int = 150, k: int = K) -> None:
    logits, labels = make_samples(seed, n, k)
    np.savez(path, logits=logits, labels=labels)


def samples_of_sites() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {site: make_samples(number) for number, site in enumerate(SITES)}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def bits(params: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in params.items()}


def command(line: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == code


# --- the same as in memory ---------------------------------------------------------------------------------------------


SPECS = [
    {
        "fedcal-literal": "fedcal-literal:rounds=2,steps=20",
        "fedcal-no-wm": "fedcal-no-wm:rounds=3,steps=20",
        "fed-op": "fed-op:rounds=12",
        "lr-ts": "lr-ts:rounds=4",
    }.get(name, f"{name}:rounds=2,steps=20" if name.startswith("fedcal") and not method.additive else name)
    for name, method in METHODS.items()
    if name != "uncal" and not method.needs_pooled_data and method.takes == "logits"
]
OPTIONS = [
    "fedcal-plus:accuracy=keep,prior_shift=true",
    "avg-t:rounds=3,average=latest",
    "fedcal-plus:coverage=site",
    "fed-bias:coverage=class,score=aps",
]


@pytest.mark.parametrize("spec", [*SPECS, *OPTIONS])
def test_every_method_gives_the_bytes_that_it_gives_in_memory(spec: str, tmp_path: Path) -> None:
    samples, server = samples_of_sites(), tmp_path / "server"
    federation = files.start(server, spec, K, SITES[::-1], seed=3)
    while federation.server.request is not None:
        replies = [
            files.reply(federation.output, pair, site, tmp_path / site, tmp_path / f"{site}-reply")
            for site, pair in samples.items()
        ]
        federation = files.receive(server, replies[::-1])
    whole, by_files = fedcal.calibrate(samples, spec, seed=3), Scaler.load(federation.output)
    assert by_files.method == whole.method and by_files.personal == {}
    assert bits(by_files.params) == bits(whole.params)
    assert federation.server.ledger == whole.ledger
    for site, pair in samples.items():
        assert files.finish(federation.output, pair, site, tmp_path / site, tmp_path / f"{site}-scaler")
    files.merge(federation.output, [tmp_path / f"{site}-scaler" for site in SITES], tmp_path / "merged")
    whole.save(tmp_path / "whole")
    assert (tmp_path / "merged").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[dict[str, Shell]]:
    found = {name: Shell(tmp_path / name) for name in ("server", *SITES)}
    yield found
    for shell in found.values():
        shell.close()


def test_three_sites_and_a_server_are_processes(
    tmp_path: Path, shells: dict[str, Shell], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte what `calibrate` gives; only requests, replies and the scaler are carried from folder to folder."""
    for number, site in enumerate(SITES):
        write_site(tmp_path / site / f"{site}.npz", number)
    monkeypatch.chdir(tmp_path)
    for spec in ("fed-ts", "fedcal-small:rounds=2"):
        name = spec.partition(":")[0]
        run_by_hand(tmp_path, shells, name, spec)
        whole = fedcal.calibrate(samples_of_sites(), spec, seed=3)
        whole.save("whole.safetensors")
        assert Path(f"server/{name}.safetensors").read_bytes() == Path("whole.safetensors").read_bytes()
        for site in SITES:
            assert bits(Scaler.load(f"{site}/{name}-scaler.safetensors").personal[site]) == bits(whole.personal[site])
    kept = {name for name in snapshot(tmp_path / "server") if name.endswith(".npz") or ".state/" in name}
    assert not kept, "neither samples nor states come to the server"


def run_by_hand(place: Path, shells: dict[str, Shell], name: str, spec: str) -> None:
    """Every round by hand, and in the end the sites' personal parts."""
    server, folder = shells["server"], place / "server" / name
    server(f"server start {name} --method {spec} --classes {K} --sites siteB,siteA,siteC --seed 3")
    number, printed = 1, ""
    while not printed.startswith("Done"):
        request = f"request-{number:04d}.safetensors"
        for site in SITES:
            shutil.copy(folder / request, place / site)
            shells[site](f"client reply {request} {site}.npz --state {name}.state --out reply")
            shutil.copy(place / site / "reply", folder / f"{site}-{number:04d}.safetensors")
        replies = " ".join(f"{name}/{site}-{number:04d}.safetensors" for site in SITES[::-1])
        printed = server(f"server receive {name} {replies}")
        number += 1
    for site in SITES:
        shutil.copy(folder / "scaler.safetensors", place / site)
        shells[site](
            f"client finish scaler.safetensors {site}.npz --state {name}.state --out {name}-scaler.safetensors"
        )
    parts = " ".join(f"../{site}/{name}-scaler.safetensors" for site in SITES)
    server(f"server merge {name}/scaler.safetensors {parts} --out {name}.safetensors")


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second_round(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation whose three sites have replied to the second request, not yet received; and two other federations."""
    place = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for number, site in enumerate(SITES):
            write_site(Path(f"{site}.npz"), number)
        for name in ("dir", "other"):
            command(f"server start {name} --classes {K} --sites siteA,siteB,siteC")
        command(f"server start nets --classes {K} --sites siteA,siteB,siteC --method fedcal-no-wm:rounds=3,steps=5")
        for site in SITES:
            for name in ("other", "nets"):
                command(f"client reply {name}/request-0001.safetensors {site}.npz --state {name}-{site}")
            command(f"client reply dir/request-0001.safetensors {site}.npz")
        for name in ("dir", "nets"):
            replies = " ".join(f"{name}/{site}-0001.safetensors" for site in SITES)
            command(f"server receive {name} {replies}")
        for site in SITES:
            command(f"client reply dir/request-0002.safetensors {site}.npz")
            command(f"client reply nets/request-0002.safetensors {site}.npz --state nets-{site}")
    fedcal.calibrate(samples_of_sites(), "fed-ts").save(place / "done.safetensors")
    return place


@pytest.fixture
def place(second_round: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(second_round, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


Edit = Callable[[dict[str, Any], dict[str, Any]], Any]


def change(path: str, edit: Edit) -> Callable[[], None]:
    """Tamper with a message's tensors and header."""

    def do() -> None:
        tensors, header = unpack(Path(path).read_bytes())
        edit(tensors, header)
        Path(path).write_bytes(pack(tensors, header))

    return do


def change_stored(path: str, edit: Edit) -> Callable[[], None]:
    """Tamper with a file that the server or a site keeps; a folder stands for the one file in it."""

    def do() -> None:
        tensors, about = read_tensors(kept_in(path))
        edit(tensors, about)
        write_tensors(kept_in(path), tensors, about)

    return do


def kept_in(path: str) -> Path:
    """What a site keeps of the one federation that it takes part in."""
    return next(Path(path).glob("*.safetensors")) if Path(path).is_dir() else Path(path)


def first(tensors: dict[str, Any], value: float) -> None:
    next(iter(tensors.values())).flat[0] = value


B2 = "dir/siteB-0002.safetensors"
RECEIVE = f"server receive dir dir/siteA-0002.safetensors {B2} dir/siteC-0002.safetensors"
OTHER = "server receive other " + " ".join(f"other/{site}-0001.safetensors" for site in SITES)
NETS = "server receive nets " + " ".join(f"nets/{site}-0002.safetensors" for site in SITES)
REQUEST = "dir/request-0002.safetensors"
REPLY = f"client reply {REQUEST}"
START = "server start new --classes 3 --sites siteA,siteB"
BAD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "NaN": (change(B2, lambda t, _: first(t, float("nan"))), RECEIVE, "siteB's reply: "),
    "infinite": (change(B2, lambda t, _: first(t, float("inf"))), RECEIVE, "is not finite"),
    "value too large": (change(B2, lambda t, _: first(t, 1e40)), RECEIVE, "reaches 1e+40"),
    "file too large": (change(B2, lambda t, _: t.update(x=np.zeros(10**6))), RECEIVE, "not a reply of this round"),
    "more than asked": (
        change(B2, lambda t, _: t.update(x=np.zeros(1))),
        RECEIVE,
        "siteB's reply should not hold 'x'",
    ),
    "less than asked": (change(B2, lambda t, _: t.pop(next(iter(t)))), RECEIVE, "siteB's reply lacks"),
    "nothing": (change(B2, lambda t, _: t.clear()), RECEIVE, "siteB's reply lacks"),
    "other shape": (
        change(B2, lambda t, _: t.update({k: np.zeros(9) for k in list(t)[:1]})),
        RECEIVE,
        "float64 of shape (9,), not",
    ),
    "other type": (
        change(B2, lambda t, _: t.update({k: v.astype(np.float32) for k, v in t.items()})),
        RECEIVE,
        "is float32",
    ),
    "other n": (change(B2, lambda _, h: h.update(n=10**6)), RECEIVE, "declares 1000000 samples, but 150"),
    "n not a number": (change(B2, lambda _, h: h.update(n="many")), RECEIVE, "declares 'many' samples"),
    "n in a first reply": (
        change("other/siteB-0001.safetensors", lambda t, _: t["n"].fill(10**6)),
        OTHER,
        "siteB's reply: 'n' counts 1e+06 samples, but 150 are declared",
    ),
    "negative labels": (
        change("other/siteB-0001.safetensors", lambda t, _: np.negative(t["labels"], out=t["labels"])),
        OTHER,
        "siteB's reply: 'labels' holds a negative count",
    ),
    "negative loss": (
        change(B2, lambda t, _: np.negative(t["0/loss"], out=t["0/loss"])),
        RECEIVE,
        "siteB's reply: '0/loss' is negative",
    ),
    "other request": (
        change(B2, lambda _, h: h.update(to="0")),
        RECEIVE,
        "siteB replies to another request than that of round 2",
    ),
    "not a reply": (lambda: shutil.copy(REQUEST, B2), RECEIVE, f"{B2}: the message is not a reply"),
    "another version": (
        change(B2, lambda _, h: h.update(schema=1)),
        RECEIVE,
        f"{B2}: the message is of another version",
    ),
    "cut short": (
        lambda: Path(B2).write_bytes(Path(B2).read_bytes()[:50]),
        RECEIVE,
        f"{B2}: the message cannot be read",
    ),
    "replayed round": (
        lambda: shutil.copy("dir/siteB-0001.safetensors", B2),
        RECEIVE,
        "siteB replies to another request than that of round 2; ask siteB for another reply, or continue with",
    ),
    "other federation": (
        lambda: shutil.copy("other/siteB-0001.safetensors", B2),
        RECEIVE,
        "siteB replies to another request",
    ),
    "unknown site": (change(B2, lambda _, h: h.update(client="siteX")), RECEIVE, f"{B2}: unknown site 'siteX'"),
    "one site twice": (
        lambda: shutil.copy("dir/siteA-0002.safetensors", B2),
        RECEIVE,
        f"{B2}: a second reply of siteA",
    ),
    "one site missing": (
        lambda: None,
        f"server receive dir {B2}",
        "round 2: no reply from siteA, siteC: wait for them, or continue without (--without siteA --without siteC)",
    ),
    "no replies": (lambda: None, "server receive dir", "no reply from siteA, siteB, siteC"),
    "missing file": (lambda: Path(B2).unlink(), RECEIVE, f"{B2} cannot be read: No such file"),
    "a folder": (lambda: None, f"server receive dir {B2} nets", "nets cannot be read: Is a directory"),
    "without nobody": (lambda: None, RECEIVE + " --without siteX", "unknown site 'siteX'"),
    "without everybody": (
        lambda: None,
        "server receive dir --without siteA --without siteB --without siteC",
        "no site is left",
    ),
    "reply of a site that was left out": (lambda: None, NETS + " --without siteB", "unknown site 'siteB'"),
    "no federation": (lambda: None, f"server receive nowhere {B2}", "nowhere holds no federation"),
    "federation damaged": (
        lambda: Path("dir/federation.json").write_text("{"),
        RECEIVE,
        "dir/federation.json cannot be read as JSON",
    ),
    "federation without sites": (lambda: Path("dir/federation.json").write_text("{}"), RECEIVE, "is damaged"),
    "rounds of another": (
        change_stored("dir/round-0-0001.safetensors", lambda _, a: a.update(federation="x")),
        RECEIVE,
        "the rounds belong to another federation",
    ),
    "rounds of another method": (
        lambda: shutil.copy("nets/round-0-0001.safetensors", "dir/round-0-0001.safetensors"),
        RECEIVE,
        "the state is of another federation: its method is 'fedcal-no-wm', not 'fedcal-plus'",
    ),
    "a round is lost": (
        lambda: shutil.move("dir/round-0-0001.safetensors", "dir/round-0-0002.safetensors"),
        RECEIVE,
        "dir/round-0-0001.safetensors is missing",
    ),
    "site of other K": (
        lambda: write_site(Path("siteB.npz"), 1, k=4),
        f"{REPLY} siteB.npz",
        "siteB: 4 classes, where the federation has 3",
    ),
    "unknown name": (lambda: None, f"{REPLY} siteB.npz --name sitB", "unknown site 'sitB': did you mean 'siteB'?"),
    "lost state": (
        lambda: shutil.rmtree("nets-siteB"),
        "client reply nets/request-0002.safetensors siteB.npz --state nets-siteB",
        "nets-siteB: what this client kept from its last reply is gone",
    ),
    "state of another site": (
        lambda: None,
        f"{REPLY} siteB.npz --state siteA.state",
        ".safetensors is not the state of siteB: give its own with --state",
    ),
    "state of another federation": (
        lambda: None,
        "client reply nets/request-0002.safetensors siteB.npz --state other-siteB",
        "siteB takes part in another federation, as other-siteB says",
    ),
    "state a file": (lambda: None, f"{REPLY} siteB.npz --state {B2}", f"--state {B2} is a file: give a folder"),
    "state damaged": (
        change_stored("siteB.state", lambda _, a: a.pop("round")),
        f"{REPLY} siteB.npz",
        "the client's state is damaged",
    ),
    "state cut short": (
        lambda: kept_in("siteB.state").write_bytes(b"x"),
        f"{REPLY} siteB.npz",
        ".safetensors is damaged",
    ),
    "request of the past": (
        lambda: None,
        "client reply dir/request-0001.safetensors siteB.npz",
        "round 1 is past: this client has replied to round 2 already",
    ),
    "no request": (lambda: None, f"client reply {B2} siteB.npz", f"{B2}: the message is not a request"),
    "no such request": (lambda: None, "client reply nothing siteB.npz", "nothing cannot be read: No such file"),
    "request damaged": (change(REQUEST, lambda _, h: h.pop("options")), f"{REPLY} siteB.npz", "options must be"),
    "request for pooled data": (
        change(REQUEST, lambda _, h: h.update(method="val-ts", options={})),
        f"{REPLY} siteB.npz",
        "val-ts sends every logit and label",
    ),
    "request of another method": (
        change(REQUEST, lambda _, h: h.update(method="fed-op", options={})),
        f"{REPLY} siteB.npz",
        "the server asks for LinearSums, which fed-op never does: do not reply",
    ),
    "start twice": (lambda: None, START.replace("new", "dir"), "dir holds a federation already"),
    "start with no rounds": (lambda: None, START + " --method uncal", "asks the sites nothing"),
    "start with no such option": (lambda: None, START + " --method fed-ts:x=1", "unknown option 'x'"),
    "sites of one name": (lambda: None, "server start new --classes 3 --sites a,a", "different names"),
    "site a round": (lambda: None, "server start new --classes 3 --sites Round-0,b", "the server's own files"),
    "site a request": (lambda: None, "server start new --classes 3 --sites a,request", "the server's own files"),
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
    "merge another's": (
        lambda: fedcal.calibrate([make_samples(5)], "fed-ts").save("part.safetensors"),
        "server merge done.safetensors part.safetensors --out y.safetensors",
        "part.safetensors: not a part of done.safetensors",
    ),
    "merge another method's": (
        lambda: fedcal.calibrate([make_samples(5)], "avg-t").save("part.safetensors"),
        "server merge done.safetensors part.safetensors --out y.safetensors",
        "part.safetensors: not a part of done.safetensors",
    ),
}


@pytest.mark.parametrize("case", BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_one_line_and_changes_nothing(
    case: tuple[Callable[[], Any], str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, line, words = case
    spoil()
    before = snapshot(place)
    capsys.readouterr()
    command(line, code=2)
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 1 and printed[0].startswith("fedcal: ") and words in printed[0], printed
    assert snapshot(place) == before


def test_a_lost_state_is_its_own_exception(place: Path) -> None:
    request, pair = Path("nets/request-0002.safetensors"), make_samples(1)
    with pytest.raises(LostState, match="give --state"):
        files.reply(request, pair, "siteB", Path("gone"))
    with pytest.raises(LostState, match=r"siteB.state: what this client kept"):  # it is of another federation
        files.reply(request, pair, "siteB", Path("siteB.state"), join=True)


def private_request(path: Path, where: str = "local") -> Policy:
    """Write a request for most of a site's privacy budget; return the policy that states it."""
    pytest.importorskip("dp_accounting", reason="needs dp-accounting: pip install 'fedcal[privacy]'")
    plan = Server("fed-bias", 3).plan
    path.write_bytes(pack_request(plan, Request(plan.federation, 1, Scales(3, 0.8)), ["siteB"]))
    return Policy(privacy=Privacy(2.0, where=where, nodes=3))


def test_federations_that_a_site_joins_share_its_privacy_budget(tmp_path: Path) -> None:
    pair = make_samples(1)
    for name in ("one", "two"):
        policy = private_request(tmp_path / name)
        ask = partial(files.reply, tmp_path / name, pair, "siteB", tmp_path / "state", policy=policy, join=True)
        if name == "one":
            assert ask().read_bytes() == ask().read_bytes()
        else:
            with pytest.raises(FedCalError, match="is used up"):
                ask()


@pytest.mark.parametrize("other", [None, 1.0])
def test_a_sites_budget_is_not_taken_for_that_of_another_privacy(tmp_path: Path, other: float | None) -> None:
    """Neither in the federation where it was spent, nor in another one."""
    pair, state = make_samples(1), tmp_path / "state"
    policy = private_request(tmp_path / "one")
    files.reply(tmp_path / "one", pair, "siteB", state, policy=policy)
    changed = Policy(privacy=Privacy(other, where="local")) if other else Policy()
    with pytest.raises(
        FedCalError, match=r"safetensors: .*was spent under Privacy\(epsilon=2.0.*: give that one again"
    ):
        files.reply(tmp_path / "one", pair, "siteB", state, policy=changed)
    private_request(tmp_path / "two")
    if other:
        with pytest.raises(FedCalError, match="was spent under Privacy"):
            files.reply(tmp_path / "two", pair, "siteB", state, policy=changed, join=True)
    scaler = fedcal.calibrate({"siteB": pair}, "fed-bias")
    scaler.federation = files.read_request(tmp_path / "one")[0].federation
    scaler.save(tmp_path / "scaler.safetensors")  # the personal part needs no budget
    assert files.finish(tmp_path / "scaler.safetensors", pair, "siteB", state, tmp_path / "own.safetensors")


def test_a_share_of_the_noise_does_not_travel_by_files(tmp_path: Path) -> None:
    policy = private_request(tmp_path / "one", "distributed")
    with pytest.raises(FedCalError, match="within a total only"):
        files.reply(tmp_path / "one", make_samples(1), "siteB", tmp_path / "state", policy=policy)


@pytest.mark.parametrize("where", ["local", "distributed"])
def test_a_policy_with_privacy_refuses_a_server_that_cannot_give_any(tmp_path: Path, where: str) -> None:
    """No command makes a private fit by files: advice to ask the server for one would lead nowhere."""
    request = files.start(tmp_path / "server", "fed-bias", 3, ["siteB"]).folder / "request-0001.safetensors"
    policy = Policy(privacy=Privacy(2.0, where=where, nodes=3))
    with pytest.raises(FedCalError, match="a server of files makes no private fit: use Flower, or leave it out"):
        files.reply(request, make_samples(1), "siteB", tmp_path / "state", policy=policy)
    assert not (tmp_path / "state").exists()


def test_an_exact_method_needs_no_state(place: Path) -> None:
    before = snapshot(place)
    shutil.rmtree("siteB.state")
    command(f"{REPLY} siteB.npz")
    assert Path(B2).read_bytes() == before[B2]


@pytest.mark.parametrize("name", ["dir", "nets"])
def test_a_round_can_be_replied_to_and_asked_again(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes: a lost reply, a lost request, a server killed before it counted the round."""
    receive = RECEIVE if name == "dir" else NETS
    state = "siteB.state" if name == "dir" else "nets-siteB"
    before = snapshot(place)
    Path(f"{name}/request-0002.safetensors").unlink()
    command(f"server status {name}")
    command(f"client reply {name}/request-0002.safetensors siteB.npz --state {state}")
    assert snapshot(place) == before
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        command(receive, code=130)
    assert snapshot(place).keys() - before.keys() == {f"{name}/request-0003.safetensors"}
    command(receive)
    after = snapshot(place)
    Path(f"{name}/round-0-0002.safetensors").unlink()
    command(receive)
    assert snapshot(place) == after


def test_an_exact_fit_begins_again_without_a_site(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exact for the two that are left, also where the server was killed meanwhile; replies that came are of no use."""
    capsys.readouterr()
    command("server receive dir dir/siteA-0002.safetensors dir/siteC-0002.safetensors --without siteB")
    printed = capsys.readouterr().out
    assert "The fit starts again without siteB" in printed
    assert "Round 3: dir/request-0003.safetensors is for siteA, siteC." in printed
    command("client reply dir/request-0003.safetensors siteB.npz", code=2)
    assert "unknown site 'siteB'" in capsys.readouterr().err
    Path("dir/request-0003.safetensors").unlink()
    command("server status dir")
    number = 3
    while (request := Path(f"dir/request-{number:04d}.safetensors")).exists():
        for site in ("siteA", "siteC"):
            command(f"client reply {request} {site}.npz")
        command(f"server receive dir dir/siteA-{number:04d}.safetensors dir/siteC-{number:04d}.safetensors")
        number += 1
    samples = samples_of_sites()
    del samples["siteB"]
    whole, by_files = fedcal.calibrate(samples), Scaler.load("dir/scaler.safetensors")
    assert bits(by_files.params) == bits(whole.params)
    command("client finish dir/scaler.safetensors siteA.npz --out own.safetensors")
    assert bits(Scaler.load("own.safetensors").personal["siteA"]) == bits(whole.personal["siteA"])


@pytest.mark.parametrize("average", ["latest", "round"])
def test_an_averaging_fit_goes_on_without_a_site(
    average: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With average=latest, the last scaler of a site that left still counts."""
    monkeypatch.chdir(tmp_path)
    samples, spec = samples_of_sites(), f"fedcal-small:rounds=3,steps=5,average={average}"
    for number, site in enumerate(SITES):
        write_site(Path(f"{site}.npz"), number)
    command(f"server start dir --classes {K} --sites siteA,siteB,siteC --method {spec}")
    clients = {site: Client(get_method(spec), *pair) for site, pair in samples.items()}
    server = Server(spec, K)
    for number, sites in enumerate([SITES, ["siteA", "siteC"], ["siteA", "siteC"]], start=1):
        for site in sites:
            command(f"client reply dir/request-{number:04d}.safetensors {site}.npz")
        replies = " ".join(f"dir/{site}-{number:04d}.safetensors" for site in sites)
        command(f"server receive dir {replies}" + (" --without siteB" if number == 2 else ""))
        request = server.request
        assert request is not None
        server.receive({site: clients[site].reply(request) for site in sites})
    assert "Continuing without siteB." in capsys.readouterr().out
    assert bits(Scaler.load("dir/scaler.safetensors").params) == bits(server.scaler.params)
    assert len(getattr(server.fit, "latest", {})) == (3 if average == "latest" else 0)


def test_a_finished_federation_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(f"server start t --classes {K} --sites siteA --method avg-t")
    command("client reply t/request-0001.safetensors siteA.npz --state t.state")
    command("server receive t t/siteA-0001.safetensors")
    assert "Done after 1 round: t/scaler.safetensors" in capsys.readouterr().out
    command("server receive t t/siteA-0001.safetensors", code=2)
    assert "t is done after 1 round: its scaler is t/scaler.safetensors" in capsys.readouterr().err


def test_a_site_that_took_no_part_can_finish(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fedcal.calibrate(samples_of_sites()).save("plus.safetensors")
    write_site(Path("new.npz"), 5)
    np.savez("unlabelled.npz", logits=make_samples(5)[0])
    capsys.readouterr()
    for name in ("new", "unlabelled"):
        command(f"client finish plus.safetensors {name}.npz --out {name}-scaler.safetensors")
        assert "took no part" in capsys.readouterr().out
        assert any(key.startswith(f"personal/{name}/") for key in load_file(f"{name}-scaler.safetensors"))


def test_unlabelled_samples_do_not_lose_a_personal_net(place: Path) -> None:
    np.savez("unlabelled.npz", logits=make_samples(1)[0])
    scaler = Server(get_method("fedcal-no-wm:rounds=3,steps=5"), K).scaler
    scaler.federation = kept_in("nets-siteB").stem
    scaler.save("net.safetensors")
    for file in ("siteB", "unlabelled"):
        command(
            f"client finish net.safetensors {file}.npz --name siteB --state nets-siteB --out {file}-scaler.safetensors"
        )
    found = [Scaler.load(f"{file}-scaler.safetensors").personal["siteB"] for file in ("siteB", "unlabelled")]
    assert found[0] and bits(found[0]) == bits(found[1])


@pytest.mark.parametrize("kinds", [["probs"] * 3, ["probs", "probs", "logits"]])
def test_the_servers_scaler_takes_probabilities_where_all_sites_have_them(
    kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command(f"server start dir --classes {K} --sites siteA,siteB,siteC --method avg-t:rounds=2")
    for (site, (logits, labels)), kind in zip(samples_of_sites().items(), kinds, strict=True):
        np.savez(f"{site}.npz", **{kind: softmax(logits, 1) if kind == "probs" else logits, "labels": labels})
    for number in (1, 2):
        for site in SITES:
            command(f"client reply dir/request-{number:04d}.safetensors {site}.npz")
        command("server receive dir " + " ".join(f"dir/{site}-{number:04d}.safetensors" for site in SITES))
    assert Scaler.load("dir/scaler.safetensors").probs is (True if kinds[2] == "probs" else None)
    for site, kind in zip(SITES, kinds, strict=True):
        command(f"client finish dir/scaler.safetensors {site}.npz --out {site}-scaler.safetensors")
        assert Scaler.load(f"{site}-scaler.safetensors").probs is (kind == "probs")
