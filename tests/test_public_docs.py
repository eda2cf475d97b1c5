"""Every public function says what it takes, what it returns and what it raises."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedcal[flower]'")

PACKAGES = ["", ".data", ".methods", ".protocol", ".report", ".transport.files", ".transport.flower"]


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions in `__all__` of a package, and those of classes and modules there; what a base class explains is left out."""
    for package in PACKAGES:
        module = importlib.import_module(f"fedcal{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing):
                yield f"{module.__name__}.{name}", inspect.unwrap(thing)
            elif inspect.ismodule(thing) or (inspect.isclass(thing) and thing.__module__.startswith("fedcal")):
                for inner, value in vars(thing).items():
                    known = any(hasattr(base, inner) for base in getattr(thing, "__bases__", ()))
                    function = inspect.unwrap(getattr(value, "__func__", value))
                    here = getattr(function, "__module__", "") in (thing.__name__, getattr(thing, "__module__", ""))
                    if inspect.isfunction(function) and here and not known and not inner.startswith("_"):
                        yield f"{module.__name__}.{name}.{inner}", function


FUNCTIONS = {
    function: name for name, function in functions() if not name.endswith(".wire.pack") and ".Privacy." not in name
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=FUNCTIONS.values())
def test_arguments_results_and_errors_are_documented(function: Callable[..., Any]) -> None:
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    named = re.findall(r"^    (\w+): ", text.partition("Args:")[2].partition("\nR")[0], re.MULTILINE)
    assert named == [name for name in signature.parameters if name not in ("self", "cls")]
    if signature.return_annotation not in (None, "None"):
        assert "\nReturns:\n" in text or text.startswith("Return "), "what does it return?"
    if "raise FedCalError" in inspect.getsource(function):
        assert "\nRaises:\n" in text, "what does it raise?"
