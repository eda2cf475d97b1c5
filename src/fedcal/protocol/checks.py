"""An answer that comes to the server in a file, checked before it is added: one line that names the site and the reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcal.base.logits import Params
from fedcal.errors import FedCalError, unknown
from fedcal.methods.method import Update, n_bytes
from fedcal.protocol.plausible import Reply, check_plausible, check_size
from fedcal.protocol.rounds import plain

SCHEMA = 1  # of federation.json, questions and answers
HEADER = 1 << 20  # bytes that a file may be larger than its tensors
KEYS = ("federation", "round", "question", "n_classes", "site", "n")


@dataclass(frozen=True)
class Expected:
    """What the answers of this round must be."""

    federation: str
    round: int
    question: str  # its digest
    n_classes: int
    sites: list[str]
    n: dict[str, int]  # samples that the sites declared in earlier rounds
    squares: dict[str, float]  # the sums of squared logits that the sites declared in earlier rounds
    content: Params  # names, shapes and types count
    asked: Params  # the question itself
    private: bool = False  # sums are clipped (differential privacy): they need not be what samples give


def check_file(path: Path, expected: Expected) -> None:
    """Not larger than an answer can be, asked before it is read."""
    if not path.is_file():
        raise FedCalError(f"{path}: no such file")
    size, most = path.stat().st_size, n_bytes(expected.content) + HEADER
    if size > most:
        raise FedCalError(f"{path}: {size} bytes, where an answer has at most {most}: not an answer of this round")


def check_header(path: Path, header: dict[str, Any], expected: Expected) -> str:
    """The site, once the answer is known to be one to this question."""
    if header.get("kind") != "answer" or any(key not in header for key in KEYS):
        raise FedCalError(f"{path}: not an answer: it must come from `fedcal client answer`")
    site = header["site"]
    if header["federation"] != expected.federation:
        raise FedCalError(f"{path}: {site} answers another federation: ask it to answer this one's question")
    if site not in expected.sites:
        raise FedCalError(f"{path}: {unknown('site', site, expected.sites)}")
    if header["round"] != expected.round:
        raise FedCalError(f"{path}: {site} answers round {header['round']}, but round {expected.round} is on")
    if header["n_classes"] != expected.n_classes:
        raise FedCalError(f"{path}: {site} has {header['n_classes']} classes, the federation {expected.n_classes}")
    if header["question"] != expected.question:
        raise FedCalError(f"{path}: {site} answers another question of this round: send it the present one again")
    n = header["n"]
    if type(n) is not int or not 1 <= n <= 10**12:
        raise FedCalError(f"{path}: {site} declares {n!r} samples: a whole number of at least 1 is needed")
    if expected.n.get(site, n) != n:
        raise FedCalError(f"{path}: {site} declares {n} samples, but {expected.n[site]} in the round before")
    return site


def check_content(site: str, where: str, content: Params, n: int, expected: Expected) -> None:
    """Names, types, shapes, and values that sums over n samples can have.

    Args:
        site: whose answer it is.
        where: what errors begin with: the file or node that it came from.
        content: the answer's tensors.
        n: the samples that the site declares.
        expected: what an answer of this round must be.
    """
    who = f"{where}: {site}"
    if not content and "share" in expected.asked:  # of which the site may have none
        return
    odd = sorted(set(content) ^ set(expected.content))
    if odd:
        fault = "lacks" if odd[0] in expected.content else "should not hold"
        raise FedCalError(f"{who}'s answer {fault} {odd[0]!r}")
    for name, value in content.items():
        like = expected.content[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            raise FedCalError(
                f"{who}'s answer: {name!r} is {value.dtype} of shape {tuple(value.shape)}, not {like.dtype} of "
                f"{tuple(like.shape)}"
            )
    reply = Reply(who, content, n, expected.n_classes, expected.asked, expected.squares.get(site))
    check_size(reply)
    if not expected.private:
        check_plausible(reply)


def declared_squares(before: dict[str, float], updates: dict[str, Update]) -> dict[str, float]:
    """The squared logits of each site, once it has declared them; the most where it did so of a share as well."""
    found = {name: float(u.content["squares"]) for name, u in updates.items() if "squares" in u.content}
    return before | {name: max(squares, before.get(name, 0.0)) for name, squares in found.items()}


def digest(params: Params) -> str:
    """A fingerprint of a question."""
    whole = hashlib.blake2b(digest_size=16)
    for name, value in sorted(plain(params).items()):
        whole.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode() + value.numpy().tobytes())
    return whole.hexdigest()


def check_name(site: str) -> str:
    """A site's name is part of file names."""
    if not site or site.startswith(".") or any(c in site for c in "/\\,\0") or site != site.strip():
        raise FedCalError(f"{site!r} cannot name a site: use letters, digits, - and _")
    return site
