"""One thread for calibration, whatever the machine offers.

A scaler is fitted on small tensors. A second thread gains nothing there, and where another program runs, the threads of
PyTorch and of NumPy's BLAS spend most of their time waiting for each other (10 to 25 times the work of one). How sums are
split between threads also changes their last bits, and the same seed must give the same bytes on every machine.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy  # noqa: F401 - its BLAS must be loaded before the controller looks for it
from threadpoolctl import ThreadpoolController

_lock = threading.Lock()
_here = threading.local()  # `.inside`: whether this thread is in `one_thread` now
_inside = 0  # how many threads of this process are
_before: int | None = None  # PyTorch's threads when the first of them came in; None: it was not loaded
_blas: Any = None  # what gives BLAS its threads back, when the last of them leaves


def _controller() -> ThreadpoolController:
    """The BLAS libraries of this process: NumPy's, and SciPy's once that is imported."""
    return _found("scipy.linalg" in sys.modules)


@cache
def _found(scipy: bool) -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the body (or, as a decorator, the function) with one thread in PyTorch and in BLAS; then as it was before."""
    torch = _loaded_torch()
    traced = torch is not None and torch.compiler.is_compiling()  # such a graph runs elsewhere
    if traced or getattr(_here, "inside", False):
        yield
        return
    _enter()
    try:
        yield
    finally:
        _leave()


def load_torch() -> Any:
    """Import PyTorch where it may not be loaded yet; within `one_thread` it begins with one thread too."""
    fresh = "torch" not in sys.modules
    import torch

    if fresh and getattr(_here, "inside", False):
        with _lock:
            _note_torch()
            torch.set_num_threads(1)
    return torch


def _enter() -> None:
    global _inside, _blas
    with _lock:
        _note_torch()  # before BLAS is limited, whose number PyTorch would take over
        if not _inside:
            _blas = _controller().limit(limits=1, user_api="blas")
        _inside += 1
        _here.inside = True
        if torch := _loaded_torch():
            torch.set_num_threads(1)  # counts for the calling thread, so every one of them says it


def _note_torch() -> None:
    """Remember PyTorch's threads, if it is loaded: calibration alone does not need it."""
    global _before
    if torch := _loaded_torch():
        here = torch.get_num_threads()  # asked in any case: PyTorch sets a new thread's number when first asked for it
        _before = here if _before is None else _before


def _loaded_torch() -> Any:
    return sys.modules.get("torch")


def _leave() -> None:
    global _inside, _before
    with _lock:
        _inside -= 1
        _here.inside = False
        if _before is not None:
            _loaded_torch().set_num_threads(_before)
        if not _inside:
            _before = None
            _release_blas()
            _blas.restore_original_limits()
            _release_blas()


def _release_blas() -> None:
    """Let any thread set BLAS's number: newer threadpoolctl heeds only the one that set it last, and the first of our
    callers to come in need not be the last to leave."""
    for library in _controller().lib_controllers:
        if clear := getattr(library, "clear_controlling_thread", None):
            clear(force=True)
