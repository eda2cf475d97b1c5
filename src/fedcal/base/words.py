"""Other programs' messages in plain words, for reasons that are shown to users."""

from __future__ import annotations

import re

_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.")  # what steers a terminal
_DRAWN = re.compile(r"[\u2500-\u259f\u2800-\u28ff]")  # boxes, blocks, spinners


def plain(text: str) -> str:
    """Return the text in one line, without colour codes and box characters."""
    words = _DRAWN.sub(" ", _CODES.sub("", text))
    return " ".join("".join(c if c.isprintable() else " " for c in words).split())


def last_words(text: str, fallback: str) -> str:
    """Return a log's last line that says anything, in plain words; `fallback` where there is none."""
    lines = [plain(line) for line in text.splitlines()]
    return next((line for line in reversed(lines) if any(c.isalnum() for c in line)), fallback)
