"""An evaluation by files: every site writes its sums, and the server reads them all. One file per site, one way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedcal.assess.evaluation import MIN_COUNT, Evaluation
from fedcal.assess.message import SiteMessage, evaluate_messages
from fedcal.base.store import read_bytes, write_bytes
from fedcal.errors import error_context


def write_sums(path: Path, message: SiteMessage) -> None:
    """Write a site's sums for the server. They show its scores: for its owner's eyes alone."""
    write_bytes(path, message.pack(), private=True)


def read_sums(paths: Sequence[Path], min_count: int = MIN_COUNT) -> Evaluation:
    """Evaluate what the sites sent.

    Raises:
        FedCalError: a file is damaged, or the sites do not fit together.
    """
    messages = []
    for path in paths:
        data = read_bytes(path)
        with error_context(path):
            messages.append(SiteMessage.unpack(data))
    return evaluate_messages(messages, min_count)
