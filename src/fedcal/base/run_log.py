"""rounds.jsonl: one line per training round, with its digest. A run appends to it; a resumed run and a report read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedcal.base.codec import parse_json, seal, unseal
from fedcal.base.schema import NUMBER, Maybe, Number, Record, check
from fedcal.base.store import finite, read_bytes
from fedcal.errors import FedCalError

MOST = 1 << 28  # bytes of a log
VALUE = Maybe(NUMBER)  # null where it was not finite
ROUND = Record(
    {"round": Number(1, 10**9, whole=True), "loss": VALUE, "accuracy": VALUE, "ece": VALUE},
    optional={"seconds": VALUE},
    open=True,
)


def append_round(path: Path, record: dict[str, Any]) -> None:
    """Enter one more round."""
    try:
        with path.open("a") as file:
            file.write(json.dumps(seal(finite(record)), sort_keys=True) + "\n")
    except OSError as error:
        raise FedCalError(
            f"cannot write {path}: {error.strerror or error}; correct that and continue with --resume"
        ) from None


def read_rounds(path: Path, first: int | None = None) -> list[dict[str, Any]]:
    """Read the log.

    Args:
        path: of rounds.jsonl.
        first: look at no more than so many rounds: a run that was killed may have left half a line after them.

    Returns:
        The rounds, in their order.

    Raises:
        FedCalError: where a line is damaged or missing; it says which one.
    """
    rounds: list[dict[str, Any]] = []
    for number, line in enumerate(read_bytes(path, MOST).splitlines()[:first], start=1):
        where = f"{path}, line {number}"
        try:
            record = unseal(parse_json(line, where), where)
            check(record, ROUND, where)
        except FedCalError as error:
            raise FedCalError(f"{error}: repeat the run with --overwrite") from None
        if record["round"] != number:
            raise FedCalError(f"{where}: it is of round {record['round']}: repeat the run with --overwrite")
        rounds.append(record)
    if first is not None and len(rounds) < first:
        raise FedCalError(f"{path} has {len(rounds)} of {first} rounds: repeat the run with --overwrite")
    return rounds
