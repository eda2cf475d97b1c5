"""Two functions timed side by side, and a row of the table made of it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Times:
    """Seconds of every run: the process's own, which other jobs on the machine hardly touch, and the clock's."""

    cpu: np.ndarray
    wall: np.ndarray

    def __str__(self) -> str:
        low, middle, high = np.quantile(self.cpu * 1e3, [0.25, 0.5, 0.75])
        return f"{middle:.1f} ({self.cpu.min() * 1e3:.1f}; {low:.1f}–{high:.1f})"


@dataclass(frozen=True)
class Row:
    """One comparison: what, against whom, both times, how far the results lie apart, and what we want of them."""

    subject: str
    rival: str
    ours: Times
    theirs: Times
    accuracy: str
    accurate: bool
    speedup_wanted: float

    @property
    def speedup(self) -> float:
        """By the medians of CPU time."""
        return float(np.median(self.theirs.cpu) / np.median(self.ours.cpu))

    @property
    def wall_speedup(self) -> float:
        """By the medians of the clock."""
        return float(np.median(self.theirs.wall) / np.median(self.ours.wall))

    @property
    def reached(self) -> bool:
        return self.accurate and self.speedup >= self.speedup_wanted


def side_by_side(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> tuple[Times, Times]:
    """Both in turn, again and again: whatever slows the machine down meanwhile slows down both."""
    gc.collect()
    gc.disable()
    found = np.array([[_seconds(ours), _seconds(theirs)] for _ in range(repeats)])  # (repeats, who, clock)
    gc.enable()
    return Times(*found[:, 0].T), Times(*found[:, 1].T)


def _seconds(call: Callable[[], object]) -> tuple[float, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return time.process_time() - cpu, time.perf_counter() - wall
