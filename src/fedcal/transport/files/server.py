"""The server's folder: federation.json (plan and sites), requests, rounds (journal.py), and in the end scaler.safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedcal.base.checks import check_whole
from fedcal.base.labels import check_classes
from fedcal.base.lock import locked
from fedcal.base.schema import NAME, ListOf, Record, check
from fedcal.base.store import check_outputs, read_bytes, read_json, regular_size, write_bytes, write_json
from fedcal.data.samples import name_columns
from fedcal.errors import FedCalError, check_known, counted, error_context
from fedcal.methods import get_method
from fedcal.protocol import Reply, Scaler, Server
from fedcal.protocol.checks import check_bytes, check_client_name, outliers
from fedcal.protocol.wire import pack_request, plan_from_json, plan_to_json, unpack_reply
from fedcal.transport.journal import Journal

OWN = re.compile(r"request|round-\d+", re.IGNORECASE)  # SITE-0001.safetensors would be a request, or a round
FEDERATION = Record({"sites": ListOf(NAME)}, open=True)  # `plan_from_json` checks the rest


@dataclass(frozen=True)
class ServerFolder:
    """A federation, read from its folder."""

    folder: Path
    server: Server
    named: tuple[str, ...]  # the sites that it began with, sorted

    @property
    def sites(self) -> list[str]:
        """The sites that still take part."""
        return [site for site in self.named if site not in self.server.ledger.dropped]

    @property
    def output(self) -> Path:
        """The file that the sites get next: a request, or the scaler."""
        request = self.server.request
        return self.folder / (f"request-{request.round:04d}.safetensors" if request else "scaler.safetensors")

    def write_output(self) -> None:
        """Write that file: the same bytes each time."""
        if request := self.server.request:
            write_bytes(self.output, pack_request(self.server.plan, request, self.sites))
        else:
            scaler = self.server.scaler
            scaler.federation = self.server.plan.federation
            scaler.save(self.output)


def start(folder: Path, method: str, classes: int | list[Any], sites: Sequence[str], seed: int = 0) -> ServerFolder:
    """Begin a federation: write its plan and the first request.

    Args:
        folder: the server's.
        method: see `fedcal methods`; with options as in "fedcal-plus:accuracy=keep".
        classes: their number, or the label of each column.
        sites: names of the sites.
        seed: for everything that is random.

    Returns:
        The federation.

    Raises:
        FedCalError: where an argument is not as it should be, or the folder holds a federation.
    """
    chosen = get_method(method)
    n_classes = check_whole(len(classes) if isinstance(classes, list) else classes, "classes", low=2)
    labels = name_columns(check_classes(classes, n_classes)) if isinstance(classes, list) else ()
    if chosen.takes == "features":
        raise FedCalError(
            f"{chosen.name} needs the model at every site, not only logits: use Flower, or fedcal.calibrate"
        )
    if not chosen.rounds:
        raise FedCalError(f"{chosen.name} asks the sites nothing: choose another method, or its option rounds=N")
    for site in sites:
        check_client_name(site)
        if OWN.fullmatch(site):
            raise FedCalError(
                f"{site!r} cannot name a site: its replies would have the names of the server's own files"
            )
    if not sites or len(set(sites)) < len(sites):
        raise FedCalError(f"sites must have different names, not {','.join(sites)!r}: --sites siteA,siteB")
    with locked(folder, "fedcal server start"):
        if (folder / "federation.json").exists():
            raise FedCalError(f"{folder} holds a federation already: choose another folder")
        federation = ServerFolder(folder, Server(chosen, n_classes, seed, classes=labels), tuple(sorted(sites)))
        federation.write_output()
        about = plan_to_json(federation.server.plan) | {"sites": list(federation.named)}
        write_json(folder / "federation.json", about)  # last: the federation exists from here on
    return federation


def receive(folder: Path, replies: Sequence[Path], without: Sequence[str] = ()) -> ServerFolder:
    """Take a round's replies: write the next request, or the scaler. Nothing is written unless all is well.

    Args:
        folder: the server's.
        replies: the reply of every site.
        without: sites to leave out. An exact fit that contains their sums starts again with the others (see
            `Server.drop`); `replies` are then of no use.

    Returns:
        The federation after this round.

    Raises:
        FedCalError: where a reply is missing, doubled or refused, or there is nothing to reply to.
    """
    with _held(folder, "receive") as federation:
        _receive(federation, replies, without)
        return federation


def _receive(federation: ServerFolder, replies: Sequence[Path], without: Sequence[str]) -> None:
    folder, server = federation.folder, federation.server
    if server.request is None:
        rounds = counted(server.ledger.rounds, "round")
        raise FedCalError(f"{folder} is done after {rounds}: its scaler is {federation.output}")
    for site in without:
        check_known("site", site, federation.sites)
    begins_again = server.drop(without)
    if not federation.sites:
        raise FedCalError("no site is left: keep at least one")
    if not begins_again:
        server.receive(_read_replies(federation, replies), check=False)
    federation.write_output()
    Journal(folder).append(server)  # last: the round counts from here on


def status(folder: Path) -> ServerFolder:
    """Read where a federation stands, and write its request (or scaler) again if that was lost.

    Args:
        folder: the server's.

    Returns:
        The federation after its last round.

    Raises:
        FedCalError: the folder holds no federation, or a damaged one.
    """
    with _held(folder, "status") as federation:
        if not federation.output.exists():
            federation.write_output()
        return federation


def merge(scaler: Path, parts: Sequence[Path], out: Path) -> list[str]:
    """Write one file of the global scaler and those sites' personal parts, to serve them from one place.

    Args:
        scaler: the server's.
        parts: scalers that sites have finished.
        out: the file to write.

    Returns:
        The sites in that file.

    Raises:
        FedCalError: where a part is of another scaler.
    """
    check_outputs({"--out": out}, [scaler, *parts])
    whole = Scaler.load(scaler)
    whole.federation = ""
    for path in parts:
        part = Scaler.load(path)
        same = part.method == whole.method and part.params.keys() == whole.params.keys()
        if not same or not all(np.array_equal(part.params[name], value) for name, value in whole.params.items()):
            raise FedCalError(f"{path}: not a part of {scaler}: its global scaler is another one")
        whole.personal |= part.personal
    whole.save(out)
    return sorted(whole.personal)


@contextmanager
def _held(folder: Path, command: str) -> Iterator[ServerFolder]:
    """The federation as it stood after the last round in its journal, held for this process."""
    if not (folder / "federation.json").exists():
        raise FedCalError(f"{folder} holds no federation: begin one with `fedcal server start`")
    with locked(folder, f"fedcal server {command}"):
        yield _load(folder)


def _load(folder: Path) -> ServerFolder:
    path = folder / "federation.json"
    about = read_json(path)
    try:
        check(about, FEDERATION, "its content")
        server = Server.of(plan_from_json(about))
    except FedCalError as error:
        raise FedCalError(f"{path} is damaged ({error}): put the right file back, or start again") from None
    Journal(folder).load(server)
    if server.plan.federation != about["federation"]:
        raise FedCalError(f"{folder}: the rounds belong to another federation: put the right files back")
    return ServerFolder(folder, server, tuple(about["sites"]))


def _read_replies(federation: ServerFolder, paths: Sequence[Path]) -> dict[str, Reply]:
    """The round's replies by site, in the order of their names, checked."""
    server, sites, found = federation.server, federation.sites, dict[str, Reply]()
    for path in paths:
        size = regular_size(path) if path.exists() else 0
        check_bytes(str(path), size, server.example, server.plan.method.needs_pooled_data)
        with error_context(path):
            site, reply = unpack_reply(read_bytes(path))
            check_known("site", site, sites)
            if site in found:
                raise FedCalError(f"a second reply of {site}: give one of each site")
        found[site] = reply
        try:
            server.check(site, reply)
        except FedCalError as error:
            raise FedCalError(f"{path}: {error}; {_without(site)}") from None
    if missing := [site for site in sites if site not in found]:
        number = federation.server.ledger.rounds + 1
        them, options = "them" if len(missing) > 1 else "it", " ".join(f"--without {site}" for site in missing)
        raise FedCalError(
            f"round {number}: no reply from {', '.join(missing)}: wait for {them}, or continue without ({options})"
        )
    if far := outliers(found, server.plan.method.additive, server.known):
        site, reason = next(iter(far.items()))
        raise FedCalError(f"{reason}; {_without(site)}")
    return dict(sorted(found.items()))


def _without(site: str) -> str:
    return f"ask {site} for another reply, or continue with --without {site}"
