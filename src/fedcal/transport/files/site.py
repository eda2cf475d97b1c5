"""A site's half of a federation by files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from fedcal.base.logits import Params
from fedcal.base.seeds import torch_rng
from fedcal.base.store import nest, read_tensors, unnest, write_tensors
from fedcal.base.threads import one_thread
from fedcal.errors import FedCalError, unknown
from fedcal.methods import method_from_json
from fedcal.methods.method import Averaged, Method
from fedcal.protocol.checks import SCHEMA, check_name, digest
from fedcal.protocol.plausible import Reply, check_size
from fedcal.protocol.rounds import plain
from fedcal.protocol.scaler_file import load_scaler, save_scaler


def classes_of(path: Path) -> list[Any] | None:
    """The label of each column, if the question or the scaler names them."""
    classes = read_tensors(path)[1].get("classes")
    return classes if isinstance(classes, list) and classes else None


@one_thread()
def answer(question: Path, samples: tuple[Tensor, Tensor], site: str, state: Path, out: Path | None) -> Path:
    """Answer a question from the site's samples. What the site must remember goes to `state`; that stays here."""
    (sent, header), (logits, labels) = read_tensors(question), samples
    method = _check_question(question, header)
    if site not in header["sites"]:
        raise FedCalError(f"{unknown('site', site, header['sites'])} (this federation's; say which one with --name)")
    if logits.shape[1] != header["n_classes"]:
        raise FedCalError(f"{site}: {logits.shape[1]} classes, where the federation has {header['n_classes']}")
    own = _own_before(state, header, site)
    sent = plain(sent)
    rng = torch_rng(header["seed"], "scaler", header["round"] - 1, site)
    update = method.client(sent, own, logits.double(), labels, rng)
    said = {key: header[key] for key in ("federation", "round", "n_classes")} | {"site": site, "n": len(labels)}
    # Logits beyond all measure show here first.
    check_size(Reply(site, update.content, len(labels), header["n_classes"], sent))
    write_tensors(state, nest("before", own) | nest("after", update.own), {**said, "kind": "state"})
    path = out or question.with_name(f"{site}-{header['round']:04d}.safetensors")
    write_tensors(path, update.content, {**said, "schema": SCHEMA, "kind": "answer", "question": digest(sent)})
    return path


@one_thread()
def finish(
    scaler: Path, samples: tuple[Tensor, Tensor | None], site: str, state: Path, out: Path, probs: bool = False
) -> bool:
    """The site's scaler: the global one and its own part. True if it took part, so that there was a state to go by.

    `probs` says what the site's scores were, which the server does not know: its scaler takes the same from then on.
    """
    final = load_scaler(scaler)
    final.probs = probs
    logits, labels = samples[0].double(), samples[1]
    final.check_width(logits)
    took_part = state.exists()
    own = unnest("after", _read_state(state, site)[0]) if took_part else {}
    if not isinstance(final.method, Averaged):
        own = final.method.personal(plain(final.params), own, logits, labels)
    final.own = {check_name(site): own}
    save_scaler(out, final)
    return took_part


def _check_question(path: Path, header: dict[str, Any]) -> Method:
    """The method that the question is of."""
    kinds = {"federation": str, "round": int, "n_classes": int, "seed": int, "sites": list}
    if header.get("kind") != "question" or header.get("schema") != SCHEMA:
        raise FedCalError(f"{path} is not a question of a server that this fedcal knows")
    try:
        if all(isinstance(header[key], kind) for key, kind in kinds.items()):
            return method_from_json(header)
    except (KeyError, TypeError, ValueError):
        pass
    raise FedCalError(f"{path} is damaged, or of another version of fedcal: ask for it again")


def _own_before(path: Path, question: dict[str, Any], site: str) -> Params:
    """What the site keeps from earlier rounds; a round that is answered again starts where it started."""
    if not path.exists():
        if question["round"] > 1:
            raise FedCalError(f"{path} is missing: {site} needs what it kept from earlier rounds: give --state")
        return {}
    tensors, header = _read_state(path, site)
    if header["federation"] != question["federation"]:
        if question["round"] == 1:
            return {}  # a new federation begins
        raise FedCalError(f"{path} is of another federation: give the --state of this one")
    if header["round"] > question["round"]:
        raise FedCalError(f"round {question['round']} is past: {site} has answered round {header['round']} already")
    return plain(unnest("before" if header["round"] == question["round"] else "after", tensors))


def _read_state(path: Path, site: str) -> tuple[Params, dict[str, Any]]:
    tensors, header = read_tensors(path)
    if header.get("kind") != "state" or header.get("site") != site:
        raise FedCalError(f"{path} is not the state of {site}: give its own with --state")
    return tensors, header
