"""A server's rounds in a folder: killed after any round, it goes on to the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conversations import make_samples
from fedcal import FedCalError
from fedcal.base.store import read_tensors, write_tensors
from fedcal.methods import get_method
from fedcal.protocol import Client, Plan, Server
from fedcal.protocol.server import RESTARTS
from fedcal.transport.journal import Journal

K = 3
CLIENTS = {f"site{i}": pair for i, pair in enumerate(make_samples([60, 70, 80], K))}
LATEST = "fedcal-small:rounds=4,steps=5,average=latest"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(folder: Path, plan: Plan, killed: bool, drops: dict[int, str], absent: dict[int, str]) -> Server:
    """Run a fit with a journal; `killed`: the server after every round, and every client after every reply.

    Args:
        folder: of the journal.
        plan: of the federation.
        killed: whether to bring everybody back from what is stored.
        drops: the client that falls away before a round, by the round's number.
        absent: the client that misses a round.
    """
    folder.mkdir()
    journal, server = Journal(folder), Server.of(plan)
    clients = {name: Client(plan.method, *pair) for name, pair in CLIENTS.items()}
    gone: set[str] = set()
    while (request := server.request) is not None:
        if request.round in drops and drops[request.round] not in gone:
            gone.add(drops[request.round])
            if server.drop([drops[request.round]]):
                journal.append(server)
                if killed:
                    server = brought_back(folder, plan)
                continue
        here = [name for name in clients if name not in gone and absent.get(request.round) != name]
        server.receive({name: clients[name].reply(request) for name in here})
        journal.append(server)
        if killed:
            server = brought_back(folder, plan)
            clients = {name: with_state(client) for name, client in clients.items()}
    server.scaler.save(folder / "scaler.safetensors")
    return server


def brought_back(folder: Path, plan: Plan) -> Server:
    server = Server.of(plan)
    assert Journal(folder).load(server)
    return server


def with_state(client: Client) -> Client:
    again = Client.of(client.method, client.samples)
    again.load_state_dict(client.state_dict())
    return again


CASES: dict[str, tuple[str, dict[int, str], dict[int, str]]] = {
    "averages the latest": (LATEST, {}, {2: "site0", 3: "site2"}),
    "averages the latest, without one": (LATEST, {3: "site1"}, {2: "site0"}),
    "remembers": ("fedcal-no-wm:rounds=3,steps=5", {2: "site1"}, {}),
    "ens": ("ens:rounds=2", {}, {2: "site0"}),
    "exact": ("fedcal-plus", {}, {}),
    "exact, begins again": ("fedcal-plus", {3: "site1"}, {}),
    "exact, begins again twice": ("fed-bias", {2: "site1", 4: "site0"}, {}),
    "exact, begins again late": ("fedcal-plus:accuracy=keep,prior_shift=true", {10: "site2"}, {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_killed_after_any_round(case: tuple[str, dict[int, str], dict[int, str]], tmp_path: Path) -> None:
    """The journal and the scaler have the same bytes as without a kill, and the books are the same."""
    spec, drops, absent = case
    plan = Plan(get_method(spec), K, seed=5)
    whole = run(tmp_path / "whole", plan, False, drops, absent)
    killed = run(tmp_path / "killed", plan, True, drops, absent)
    assert snapshot(tmp_path / "killed") == snapshot(tmp_path / "whole")
    assert killed.ledger == whole.ledger and killed.known == whole.known
    assert whole.ledger.dropped == list(drops.values())
    assert whole.ledger.restarts == (len(drops) if plan.method.additive else 0)


def test_a_fit_that_began_again_is_exact_for_those_who_are_left(tmp_path: Path) -> None:
    plan = Plan(get_method("fed-bias"), K)
    run(tmp_path / "dropped", plan, True, {3: "site1"}, {})
    server = Server.of(plan)
    clients = {name: Client(plan.method, *pair) for name, pair in CLIENTS.items() if name != "site1"}
    while (request := server.request) is not None:
        server.receive({name: client.reply(request) for name, client in clients.items()})
    server.scaler.save(tmp_path / "two.safetensors")
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "dropped" / "scaler.safetensors").read_bytes()


def test_a_fit_begins_again_only_so_often(tmp_path: Path) -> None:
    journal, plan = Journal(tmp_path), Plan(get_method("fed-bias"), K)
    server, pairs = Server.of(plan), make_samples([40] * (RESTARTS + 2), K)
    clients = {f"site{i}": Client(plan.method, *pair) for i, pair in enumerate(pairs)}
    for number in range(RESTARTS + 1):
        assert (request := server.request)  # noqa: RUF018
        server.receive({name: client.reply(request) for name, client in clients.items()})
        journal.append(server)
        server = brought_back(tmp_path, plan)
        assert server.drop([f"site{number}"]) is (number < RESTARTS)
        del clients[f"site{number}"]
        if number < RESTARTS:
            journal.append(server)
            server = brought_back(tmp_path, plan)
            assert server.fit.received == 0 and server.ledger.restarts == number + 1
            assert server.ledger.rounds == 2 * (number + 1)  # numbers of rounds never repeat
    assert server.fit.received == 1


# --- damage --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A journal of three rounds of fed-bias, the fit having begun again once."""
    plan = Plan(get_method("fed-bias"), K, federation="f")
    run(tmp_path / "journal", plan, False, {2: "site1"}, {})
    for path in (tmp_path / "journal").glob("round-1-*"):
        if int(path.stem.split("-")[2]) > 3:
            path.unlink()
    return tmp_path / "journal"


def edit(name: str, change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        tensors, about = read_tensors(folder / name)
        change(tensors, about)
        write_tensors(folder / name, tensors, about)

    return do


LAST = "round-1-0003.safetensors"
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda f: (f / "round-1-0002.safetensors").unlink(), "round-1-0002.safetensors is missing"),
    "first is missing": (lambda f: (f / "round-1-0000.safetensors").unlink(), "round-1-0000.safetensors is missing"),
    "cut short": (
        lambda f: (f / LAST).write_bytes((f / LAST).read_bytes()[:40]),
        "round-1-0003.safetensors is damaged",
    ),
    "no safetensors": (lambda f: (f / LAST).write_text("x"), "is damaged"),
    "a tensor is missing": (edit(LAST, lambda t, _: t.pop("0003/-1/grad")), "'-1/grad' is missing"),
    "a tensor has another shape": (
        edit(LAST, lambda t, _: t.update({"0003/-1/loss": t["0003/-1/grad"]})),
        "the state is damaged",
    ),
    "no fit": (edit(LAST, lambda _, a: a.pop("fit")), "the state is damaged"),
    "no books": (edit(LAST, lambda _, a: a.pop("ledger")), "the state is damaged"),
    "other books": (edit(LAST, lambda _, a: a.update(ledger={"x": 1})), "the state is damaged: ledger has no 'rounds'"),
    "known of another shape": (edit(LAST, lambda _, a: a.update(known={"a": 5})), "the state is damaged"),
    "another method": (edit(LAST, lambda _, a: a.update(method="fed-ts")), "its method is 'fed-ts', not 'fed-bias'"),
    "other options": (edit(LAST, lambda _, a: a.update(options={"ridge": 2.0})), "its options is"),
    "another seed": (edit(LAST, lambda _, a: a.update(seed=9)), "its seed is 9, not 0"),
    "of several federations": (edit(LAST, lambda _, a: a.update(federation="g")), "of several federations"),
}


@pytest.mark.parametrize("case", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_is_one_line(case: tuple[Callable[[Path], Any], str], folder: Path) -> None:
    damage, words = case
    damage(folder)
    with pytest.raises(FedCalError, match=words) as error:
        Journal(folder).load(Server("fed-bias", K))
    assert str(folder) in str(error.value) and "\n" not in str(error.value)


def test_a_journal_is_found_and_cleared(folder: Path, tmp_path: Path) -> None:
    server = Server("fed-bias", K)
    (folder / "round-x-1.safetensors").write_text("not ours")
    assert Journal(folder).load(server)
    assert (server.fit.received, server.ledger.restarts, server.plan.federation) == (3, 1, "f")
    Journal(folder).clear()
    assert set(snapshot(folder)) == {"scaler.safetensors", "round-x-1.safetensors"}
    assert not Journal(folder).load(Server("fed-bias", K))
    assert not Journal(tmp_path / "nowhere").load(Server("fed-bias", K))
