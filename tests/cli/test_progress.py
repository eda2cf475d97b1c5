"""Progress: a bar with total, elapsed and left on a terminal; plain lines elsewhere, at intervals; nothing where quiet."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from fedcal.cli.progress import Parts, fitting


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def shown(terminal: bool, quiet: bool = False, width: int = 80) -> tuple[Parts, Clock, io.StringIO]:
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, force_terminal=terminal, width=width, color_system=None, legacy_windows=False)
    return Parts(console, quiet, every=10.0, clock=clock), clock, text


def test_plain_lines_come_at_intervals_with_total_elapsed_and_left() -> None:
    parts, clock, text = shown(terminal=False)
    with parts:
        parts.begin("round", 100, done=20)
        for done in range(21, 61):
            clock.now += 1.0
            parts.step(done, "loss [1]")
    lines = text.getvalue().splitlines()
    assert lines == [f"round {20 + n}/100  loss [1]  {n} s, about {80 - n} s left" for n in (10, 20, 30, 40)]


def test_what_is_said_at_once_and_what_has_no_total() -> None:
    parts, clock, text = shown(terminal=False)
    with parts:
        parts.begin("fitting, round")
        clock.now = 1.0
        parts.step(1)
        parts.step(2, say=True)
        clock.now = 12.0
        parts.step(3)
    assert text.getvalue() == "fitting, round 2  1.0 s\nfitting, round 3  12 s\n"


def test_a_terminal_has_a_bar_that_fits() -> None:
    parts, clock, text = shown(terminal=True)
    with parts:
        parts.begin("reading\x1b[2J file", 3)
        clock.now = 5.0
        parts.step(1, "a name that is rather long [red] and has markup in it, and goes on and on for ever and ever")
        parts.bar.refresh()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    assert "1/3" in last and "0:05" in last and "\x1b[2J" not in text.getvalue()
    assert max(len(line) for line in last.splitlines()) <= 80


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_is_silent(terminal: bool) -> None:
    parts, clock, text = shown(terminal, quiet=True)
    with parts:
        parts.begin("round", 2)
        clock.now = 100.0
        parts.step(2, say=True)
        with fitting(parts, "all samples"):
            pass
    assert text.getvalue() == ""


def test_counting_a_mapping_counts_each_client_once() -> None:
    parts, _, _ = shown(terminal=False)
    with parts:
        samples = parts.over("measuring sample", {"a": [1, 2], "b": [3], "c": [4]}, len)
        assert parts.total == 4
        first = next(iter(samples.values()))  # looks at a client before going through them
        assert first == [1, 2] and parts.done == 0
        seen = []
        for name, _value in samples.items():
            seen.append((name, parts.done))
        assert seen == [("a", 0), ("b", 2), ("c", 3)] and len(samples) == 3
