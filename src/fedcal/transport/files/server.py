"""The server's half of a federation by files."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedcal.base.checks import check_whole
from fedcal.base.labels import check_classes
from fedcal.base.logits import Params
from fedcal.base.seeds import torch_rng
from fedcal.base.store import read_json, read_tensors, write_json, write_tensors
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError, counted, unknown
from fedcal.methods import METHODS, Method, Update, get_method, method_from_json, method_to_json
from fedcal.methods.method import Averaged, total
from fedcal.protocol.checks import (
    SCHEMA,
    Expected,
    check_content,
    check_file,
    check_header,
    check_name,
    declared_squares,
    digest,
)
from fedcal.protocol.rounds import Calibration, advance, begin, name_columns, plain
from fedcal.protocol.scaler_file import load_scaler, save_scaler


@dataclass
class Server:
    """A federation as its folder tells it."""

    folder: Path
    about: dict[str, Any]  # federation.json
    state: Calibration
    sites: list[str]  # those that still take part, sorted
    n: dict[str, int]  # how many samples each said that it has
    squares: dict[str, float]  # and what their squared logits add up to
    asked: list[Params]  # the questions of earlier rounds

    @property
    def done(self) -> bool:
        method = self.state.method
        return self.state.rounds >= method.rounds if isinstance(method, Averaged) else self.state.done

    @property
    def round(self) -> int:
        """The round that is on: 1 at first."""
        return self.state.rounds + 1

    @property
    def question(self) -> Params:
        return self.state.params if isinstance(self.state.method, Averaged) else self.state.question

    def summed(self, number: int) -> Path:
        kind = "params" if isinstance(self.state.method, Averaged) else "sums"
        return self.folder / f"{kind}-{number:04d}.safetensors"

    def current(self) -> Path:
        """What the sites get next."""
        return self.folder / ("scaler.safetensors" if self.done else f"question-{self.round:04d}.safetensors")


def start(folder: Path, method: str, classes: Any, sites: list[str], seed: int) -> Server:
    """A new federation, with its first question. `classes` is their number, or a list of the columns' labels."""
    chosen = get_method(method)
    n_classes = check_whole(len(classes) if isinstance(classes, list) else classes, "classes", low=2)
    labels = name_columns(check_classes(classes, n_classes)) if isinstance(classes, list) else ()
    if chosen.needs_pooled_data:
        raise FedCalError(
            f"{chosen.name} sends every logit and label to the server: use `fedcal calibrate` where they are"
        )
    if not chosen.rounds:
        raise FedCalError(f"{chosen.name} asks the sites nothing: choose another method, or add rounds=N to it")
    for site in sites:
        check_name(site)
    if not sites or len(set(sites)) < len(sites):
        raise FedCalError(f"sites must be named, and apart, not {','.join(sites)!r}: --sites siteA,siteB")
    if (folder / "federation.json").exists():
        raise FedCalError(f"{folder} holds a federation already: choose another folder")
    about = {
        "schema": SCHEMA,
        "federation": uuid.uuid4().hex,
        **method_to_json(chosen),
        "n_classes": n_classes,
        "classes": list(labels),
        "seed": check_whole(seed, "seed", low=0),
        "sites": sorted(sites),
    }
    server = _begin(folder, about)
    ask(server)
    write_json(folder / "federation.json", about)
    return server


def replay(folder: Path) -> Server:
    """The server as it stood after the last round that was summed."""
    if not (folder / "federation.json").exists():
        raise FedCalError(f"{folder} holds no federation: begin one with `fedcal server start`")
    about = read_json(folder / "federation.json")
    if about.get("schema") != SCHEMA or about.get("method") not in METHODS:
        raise FedCalError(f"{folder}/federation.json: not of a schema that this fedcal knows: start anew")
    server = _begin(folder, about)
    while not server.done and (path := server.summed(server.round)).exists():
        sums, header = read_tensors(path)
        if [header.get(key) for key in ("federation", "round")] != [about["federation"], server.round]:
            raise FedCalError(f"{path} belongs to another federation or round: put the right file back")
        _advance(server, sums, header["sites"], header["n"], header.get("squares", {}))
    return server


@one_thread()
def add(folder: Path, answers: list[Path], without: list[str]) -> Server:
    """The round's answers added up: the next question, or the scaler. Nothing is written unless all is well."""
    server = replay(folder)
    if server.done:
        raise FedCalError(
            f"{folder} is done after {counted(server.round - 1, 'round')}: its scaler is {server.current()}"
        )
    for site in without:
        if site not in server.sites:
            raise unknown("site", site, server.sites)
    expected = Expected(
        federation=server.about["federation"],
        round=server.round,
        question=digest(server.question),
        n_classes=server.about["n_classes"],
        sites=[site for site in server.sites if site not in without],
        n=server.n,
        squares=server.squares,
        content=stand_in(server.state.method, server.about["n_classes"], [*server.asked, server.question]),
        asked=server.question,
    )
    updates: dict[str, Update] = {}
    for path in answers:
        check_file(path, expected)
        content, header = read_tensors(path)
        site = check_header(path, header, expected)
        if site in updates:
            raise FedCalError(f"{path}: a second answer of {site}: give one of each site")
        check_content(site, str(path), content, header["n"], expected)
        updates[site] = Update(plain(content), header["n"])
    if missing := [site for site in expected.sites if site not in updates]:
        raise FedCalError(
            f"round {server.round}: no answer of {', '.join(missing)}; wait for it, or go on with --without {missing[0]}"
        )
    return _write_round(server, dict(sorted(updates.items())))


def _write_round(server: Server, updates: dict[str, Update]) -> Server:
    method, number, words = server.state.method, server.round, list(updates.values())
    if not any(update.content for update in words):
        raise FedCalError(f"round {number}: every answer is empty: the sites have too few samples")
    summed, n = server.summed(number), {site: update.n for site, update in updates.items()}
    squares = declared_squares(server.squares, updates)
    try:
        sums = method.server(server.state.params, words) if isinstance(method, Averaged) else total(words)
        _advance(server, sums, list(updates), n, squares)
    except (RuntimeError, ArithmeticError, KeyError, IndexError) as error:
        raise FedCalError(
            f"round {number}: the sums lead nowhere ({str(error).splitlines()[0]}): check the sites"
        ) from None
    ask(server)
    header = {"federation": server.about["federation"], "round": number, "sites": server.sites, "n": n}
    header |= {"squares": squares}
    write_tensors(summed, sums, header)  # last: the round counts from here on
    return server


def ask(server: Server) -> Path:
    """Write what the sites get next: a question, or the scaler. The same bytes each time."""
    path = server.current()
    if server.done:
        state = server.state
        final = Calibration(state.method, state.params, n_classes=state.n_classes, classes=state.classes)
        save_scaler(path, final)
    else:
        header = {**server.about, "kind": "question", "round": server.round, "sites": server.sites}
        write_tensors(path, server.question, header)
    return path


def merge(scaler: Path, parts: list[Path], out: Path) -> list[str]:
    """One file of the global scaler and those sites' own parts, for sites that wish to be served from one place."""
    whole = load_scaler(scaler)
    for path in parts:
        part = load_scaler(path)
        if part.method != whole.method or digest(part.params) != digest(whole.params):
            raise FedCalError(f"{path}: not a part of {scaler}: its global scaler is another one")
        whole.own |= part.own
    save_scaler(out, whole)
    return sorted(whole.own)


def _begin(folder: Path, about: dict[str, Any]) -> Server:
    try:
        state = begin(method_from_json(about), about["n_classes"], about["seed"])
        state.classes = tuple(about.get("classes", ()))
        return Server(folder, about, state, list(about["sites"]), {}, {}, [])
    except (KeyError, TypeError, FedCalError) as error:
        raise FedCalError(f"{folder}/federation.json is damaged ({error}): start anew") from None


def _advance(server: Server, sums: Params, sites: list[str], n: dict[str, int], squares: dict[str, float]) -> None:
    state = server.state
    if isinstance(state.method, Averaged):
        state.params = plain(sums)
    else:
        server.asked.append(state.question)
        advance(state, sums)
    state.rounds += 1
    server.sites, server.n, server.squares = sites, n, squares


def stand_in(method: Method, n_classes: int, questions: list[Params]) -> Params:
    """What a site of a single sample would answer to the last question: it shows names, shapes and types.

    A site may build on what it kept from an earlier question; then the stand-in is asked that one first.
    """
    logits, labels = torch.eye(n_classes, dtype=torch.float64)[:1], torch.zeros(1, dtype=torch.int64)
    for first in reversed(range(len(questions))):
        update = Update({}, 0)
        try:
            for question in questions[first:]:
                whole = {name: value for name, value in question.items() if name != "share"}  # of all its samples
                update = method.client(whole, update.own, logits, labels, torch_rng(0, "stand-in"))
            return update.content
        except KeyError:
            continue
    raise FedCalError("the questions of the rounds do not fit each other: start anew")
