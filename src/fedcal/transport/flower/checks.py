"""What comes back from nodes, checked before anything is made of it: one line a refusal, naming the node and the reason.

A node's reply is taken whole or not at all: a model from a node whose scaler is broken is not averaged either.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message

from fedcal.base.logits import Params
from fedcal.errors import FedCalError
from fedcal.measure.paired import Paired, comparable
from fedcal.measure.tally import Tally
from fedcal.measure.views import Measured
from fedcal.methods.method import Averaged, Method, Update, n_bytes
from fedcal.protocol.checks import HEADER, Expected, check_content, check_header
from fedcal.protocol.rounds import plain
from fedcal.transport.flower.records import ANSWER, PAIRED, SAID, TALLY, VIEWS, size, unpack

FAR = 1000.0  # times what the others send: beyond, an update is refused
MOST_LEFT = 10**9  # rounds: no fit has as many
SAID_KEYS = {"kind": str, "federation": str, "round": int, "question": str, "n_classes": int, "site": str, "n": int}

Signature = tuple[tuple[str, tuple[int, ...]], ...]


def check_said(node: int, said: Any) -> dict[str, Any]:
    """A reply's header, its types as they should be."""
    if said is None:
        raise FedCalError(f"node {node} does not answer FedCal: is calibration_mod the first of its ClientApp's mods?")
    header = dict(said)
    for key, kind in SAID_KEYS.items():
        if type(header.get(key)) is not kind:
            raise FedCalError(f"node {node}: its answer's {key!r} is {header.get(key)!r}")
    return header


def read_answer(node: int, records: dict[str, Any], expected: Expected) -> tuple[str, Update]:
    """The name that the node goes by, and its update: none of its content where it has no samples."""
    header = check_said(node, records.get(SAID))
    if header["n"] == 0:
        check_header(Path(f"node {node}"), {**header, "n": 1}, expected)
        return header["site"], Update({}, 0)
    site = check_header(Path(f"node {node}"), header, expected)
    answer = records.get(ANSWER)
    if answer is None:
        raise FedCalError(f"node {node}: {site} sent no answer")
    sent, most = size([answer]), n_bytes(expected.content) + HEADER
    if sent > most:
        raise FedCalError(f"node {node}: {site} sent {sent} bytes, where an answer has at most {most}")
    try:
        content = plain(unpack(answer))
    except FedCalError as error:
        raise FedCalError(f"node {node}: {site}: {error}") from None
    if local_privacy(node, header):  # it adds noise of its own
        expected = replace(expected, private=True)
    check_content(site, f"node {node}", content, header["n"], expected)
    return site, Update(content, header["n"], notes=_notes(node, header))


def read_measured(name: str, records: Mapping[str, Any], n_classes: int, n_bins: int) -> Measured:
    """What a node measured, once its sums are known to be of as many classes, samples and bins as they should be.

    Raises:
        FedCalError: sums are missing, damaged or contradict each other.
    """
    tallies = {view: Tally.from_tensors(unpack(records.get(TALLY + view))) for view in VIEWS}
    if any(len(tally.classwise) != n_classes for tally in tallies.values()):
        raise FedCalError(f"{name} measures {len(tallies['uncal'].classwise)} classes")
    paired, last = None, tallies["own"]
    if comparable(len(VIEWS), n_bins):
        paired = Paired.from_tensors(VIEWS, unpack(records.get(PAIRED)))
        if paired.n != last.n or paired.errors.shape[1] != len(last.reliability.count):
            raise FedCalError(f"{name}'s paired sums are not of its tallies' {last.n} samples and bins")
    return Measured({view: {name: tally} for view, tally in tallies.items()}, paired)


def local_privacy(node: int, said: Any) -> dict[str, Any]:
    """What a node says of its own privacy: (ε, δ) so far, and how many answers it has left. Nothing where it is silent."""
    told = _told(node, said, "privacy")
    if told and (type(told.get("left")) is not int or abs(told["left"]) > MOST_LEFT):
        raise FedCalError(f"node {node}: it does not say how many private answers it has left")
    return told


def _notes(node: int, said: Any) -> dict[str, float]:
    """A node's remarks; what is not finite is left out."""
    told = _told(node, said, "notes")
    try:
        found = {name: float(value) for name, value in told.items()}
    except (TypeError, ValueError, OverflowError):
        raise FedCalError(f"node {node}: its answer's 'notes' are no numbers") from None
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _told(node: int, said: Any, key: str) -> dict[str, Any]:
    """A dict within a header, by JSON; empty where there is none."""
    try:
        found = json.loads(said.get(key, "{}"))
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FedCalError(f"node {node}: its answer's {key!r} cannot be read")
    return found


def too_far(updates: dict[str, Update], method: Method, declared: Collection[str] = ()) -> dict[str, str]:
    """Updates far larger than the others', by name with the reason. A sum is measured a sample, a scaler as it is.

    A sum may be 0 at an honest node, where the model is sure and right: it must be far from the largest of the others'. Nodes
    that have `declared` their squared logits are left alone: their sums are within what these allow, and these were compared.
    """
    scalers = isinstance(method, Averaged)
    sizes = {
        name: _largest(update.content) / (1 if scalers else update.n)
        for name, update in updates.items()
        if update.content
    }
    return {
        name: f"{name}'s update reaches {sizes[name]:.3g}, the others' about {others:.3g}"
        for name, others in _others(sizes, statistics.median if scalers else max).items()
        if name not in declared and sizes[name] > FAR * max(1.0, others)
    }


def _others(sizes: dict[str, float], usual: Callable[[list[float]], float] = statistics.median) -> dict[str, float]:
    """For each one what is usual of the others; nothing where there are no others."""
    if len(sizes) < 2:
        return {}
    return {name: usual([v for k, v in sizes.items() if k != name]) for name in sizes}


def _largest(content: Params) -> float:
    return max((float(value.abs().max()) for value in content.values() if value.numel()), default=0.0)


# --- models --------------------------------------------------------------------------------------------------------------


def bad_models(replies: dict[int, Message], sent: ArrayRecord) -> dict[int, str]:
    """Nodes whose model cannot be averaged with the others', with the reason."""
    found: dict[int, str] = {}
    sizes: dict[int, float] = {}
    signatures: dict[int, Signature] = {}
    for node, reply in replies.items():
        arrays, metrics = list(reply.content.array_records.values()), list(reply.content.metric_records.values())
        if len(arrays) != 1 or len(metrics) != 1:
            found[node] = f"sent {len(arrays)} models and {len(metrics)} sets of metrics, where one of each is needed"
            continue
        try:
            finite = all(np.isfinite(value).all() for value in metrics[0].values())
            values = {name: array.numpy() for name, array in arrays[0].items()}
            numeric = all(value.dtype.kind in "biuf" for value in values.values())
        except Exception:  # whatever a stranger's bytes make a reader raise
            found[node] = "its model or metrics cannot be read"
            continue
        if not finite or not numeric:
            found[node] = "its model is not of numbers" if finite else "its metrics are not finite"
            continue
        signatures[node] = tuple((name, tuple(v.shape)) for name, v in values.items())
        if not all(np.isfinite(value).all() for value in values.values()):
            found[node] = "its model is not finite"
        else:
            sizes[node] = max((float(np.abs(v).max()) for v in values.values() if v.size), default=0.0)
    usual = _usual(signatures, sent)
    found |= {node: "its model has other names or shapes" for node, mine in signatures.items() if mine != usual}
    sizes = {node: largest for node, largest in sizes.items() if node not in found}
    for node, others in _others({str(node): largest for node, largest in sizes.items()}).items():
        if sizes[int(node)] > FAR * max(1.0, others):
            found[int(node)] = f"its model reaches {sizes[int(node)]:.3g}, the others' about {others:.3g}"
    return found


def _usual(signatures: dict[int, Signature], sent: ArrayRecord) -> Signature:
    """The shape of model that counts: the one that was sent, or what most nodes send where nobody keeps to that."""
    mine = tuple((name, tuple(array.shape)) for name, array in sent.items())
    kinds = Counter(signatures.values())
    return mine if mine in kinds or not kinds else kinds.most_common(1)[0][0]
