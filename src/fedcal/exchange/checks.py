"""An answer that comes to the server in a file, checked before it is added: one line that names the site and the reason."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedcal.calibrate.methods.method import n_bytes
from fedcal.calibrate.rounds import plain
from fedcal.calibrate.scalers import Params
from fedcal.errors import FedCalError, unknown

SCHEMA = 1  # of federation.json, questions and answers
MOST = 1e9  # the largest value of a sum, a sample and class: what real logits never reach
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
    content: Params  # names, shapes and types count
    may_be_empty: bool  # a question about a share of the samples, of which a site may have none


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


def check_content(who: str, content: Params, n: int, expected: Expected) -> None:
    """Names, types, shapes, and values that sums over n samples can have."""
    if not content and expected.may_be_empty:
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
    check_values(who, content, n, expected.n_classes)
    if "n" in content:
        counted = float(content["n"])
        if not 0 <= counted <= n:  # fewer, where the method asks of some of them only
            raise FedCalError(f"{who}'s answer counts {counted:g} samples, but declares {n}")


def check_values(who: str, content: Params, n: int, n_classes: int) -> None:
    """Finite, and no larger than sums over n samples can be."""
    for name, value in content.items():
        if not bool(torch.isfinite(value).all()):
            raise FedCalError(f"{who}'s answer: {name!r} is not finite")
        largest, most = float(value.abs().max()) if value.numel() else 0.0, MOST * n * n_classes
        if largest > most:
            raise FedCalError(
                f"{who}'s answer: {name!r} reaches {largest:.3g}, beyond all that {n} samples can add up to"
            )


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
